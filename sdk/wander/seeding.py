"""Seeded generators: all randomness in an environment comes from here.

A generator is a pure function of (run seed, example seed, keys), never of the rollout's number or of what
was drawn before. So two rollouts of one example that reach the same position meet the same reply, and a
stored rollout can be replayed bit for bit.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from wander.types import canonical_json

__all__ = ["derived_rng", "derived_seed"]

_WRITTEN: dict[type, Callable[[Any], str]] = {str: encode_basestring, int: repr}
_seed = super(random.Random, random.Random).seed
_UNMIXED = hashlib.blake2b(digest_size=8, person=b"wander-seed")
Key = str | int | float | bool | None | list["Key"] | tuple["Key", ...] | dict[str, "Key"]


def derived_seed(*parts: Key) -> int:
    """Mix any JSON-like parts into a 64-bit seed, the same on every platform and Python version."""
    # As `canonical_json` writes the list, several times faster where all parts are plain.
    text = f"[{','.join([_WRITTEN.get(type(part), canonical_json)(part) for part in parts])}]"
    mixed = _UNMIXED.copy()  # in half the time of a new one
    mixed.update(text.encode())
    return int.from_bytes(mixed.digest(), "big")


def derived_rng(*parts: Key) -> random.Random:
    """Return a fresh generator seeded by `derived_seed(*parts)`."""
    rng = random.Random.__new__(random.Random)
    # What `Random(seed)` does with a whole number, in half the time.
    _seed(rng, derived_seed(*parts))
    rng.gauss_next = None  # type: ignore[attr-defined]
    return rng
