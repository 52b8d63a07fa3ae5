"""The global generators that foreign environments draw from, put under the determinism contract.

Wander's own environments draw from seeded generators of their own. Published ones call `random.choice`; so
the global state is set whenever the environment goes on after a model call, from what that moment depends on.
Then a rollout draws the same numbers wherever and beside whatever it runs, as long as it does not wait for
something else between.
"""

from __future__ import annotations

import random
import sys

from wander.seeding import Key, derived_seed


def settle(*parts: Key) -> None:
    """Set `random`'s state, and NumPy's where it is loaded, from these parts."""
    seed = derived_seed("global-random", *parts)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed % 2**32)
