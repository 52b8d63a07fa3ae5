"""Attestations (PEP 740): who signed a file, checked when it is uploaded and served beside it."""
