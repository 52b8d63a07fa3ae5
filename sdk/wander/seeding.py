"""Seeded generators: all randomness in an environment comes from here.

A generator is a pure function of (run seed, example seed, keys), never of the rollout's number or of what
was drawn before. So two rollouts of one example that reach the same position meet the same reply, and a
stored rollout can be replayed bit for bit.
"""

from __future__ import annotations

import hashlib
import random

from wander.types import canonical_json

__all__ = ["derived_rng", "derived_seed"]

Key = str | int | float | bool | None | list["Key"] | tuple["Key", ...] | dict[str, "Key"]


def derived_seed(*parts: Key) -> int:
    """Mix any JSON-like parts into a 64-bit seed, the same on every platform and Python version."""
    digest = hashlib.blake2b(
        canonical_json(list(parts)).encode(), digest_size=8, person=b"wander-seed"
    ).digest()
    return int.from_bytes(digest, "big")


def derived_rng(*parts: Key) -> random.Random:
    """Return a fresh generator seeded by `derived_seed(*parts)`."""
    return random.Random(derived_seed(*parts))  # noqa: S311 - reproducibility, not secrecy
