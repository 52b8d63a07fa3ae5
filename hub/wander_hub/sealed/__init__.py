"""Sealed task sets: hidden examples that only the hub's workers play until a date.

Until then, everything about them in the database is ciphertext (`cipher.py`), and a play is not a run: it is
a row with aggregates. No route of runs, boards, search or exports can therefore show a hidden example. When
the set opens, its plays become runs of their submitters, which are replayed like any other run.
"""
