"""Passwords: which are accepted, and how their hashes are computed."""

from __future__ import annotations

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from wander_hub.http.problems import HubProblem

SHORTEST, LONGEST = 10, 200
_GUESSED_BY_SCORE = 2
"""Minimum zxcvbn score; a password with this score withstands a million guesses."""
_LOOKED_AT = 72
_AT_ONCE, _WAIT_SECONDS = 4, 3.0
_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""OWASP's minimum parameters for argon2id: 40 ms of CPU time and 19 MiB of memory."""
_slots = threading.BoundedSemaphore(_AT_ONCE)


def hash_password(password: str, user: str) -> str:
    """Return the hash of a new password. Raises a problem if the password is easy to guess."""
    if fault := _fault(password, user):
        hint = "four unrelated words are easy to remember"
        raise HubProblem(422, "bad_password", f"the password {fault}", hint=hint)
    return hash_again(password)


def hash_again(password: str) -> str:
    """Return the hash of a password that was already accepted when it was chosen."""
    with _HashingSlot():
        return _hasher.hash(password)


def verify_password(password: str, stored_hash: str | None) -> bool:
    """Return whether a password matches its stored hash; without a hash, this takes the same time."""
    with _HashingSlot():
        try:
            matches = _hasher.verify(stored_hash or _dummy_hash(), password[: LONGEST + 1])
            return matches and stored_hash is not None
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(stored_hash: str) -> bool:
    """Return whether a hash has other parameters than the current ones."""
    return _hasher.check_needs_rehash(stored_hash)


class _HashingSlot:
    """Limits simultaneous hash computations, so that guessing cannot occupy all threads or all memory."""

    def __enter__(self) -> None:
        if not _slots.acquire(timeout=_WAIT_SECONDS):
            headers = {"Retry-After": "5"}
            raise HubProblem(429, "busy", "too many people are signing in right now", headers=headers)

    def __exit__(self, *_: object) -> None:
        _slots.release()


def _fault(password: str, user: str) -> str | None:
    from zxcvbn import zxcvbn  # imported here, because its lists of common passwords take 60 ms to load

    if len(password) < SHORTEST:
        return f"has fewer than {SHORTEST} characters"
    if len(password) > LONGEST:
        return f"has more than {LONGEST} characters"
    if zxcvbn(password[:_LOOKED_AT], user_inputs=[user, "wander"])["score"] < _GUESSED_BY_SCORE:
        return "is easy to guess"
    return None


@cache
def _dummy_hash() -> str:
    return _hasher.hash("nobody's")
