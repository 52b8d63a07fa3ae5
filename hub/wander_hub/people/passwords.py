"""Passwords: which are taken, and how they are kept."""

from __future__ import annotations

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from wander_hub.http.problems import HubProblem

SHORTEST, LONGEST = 10, 200
_GUESSED_BY_SCORE = 2
"""What zxcvbn gives at least to a password of which a million guesses find none."""
_LOOKED_AT = 72
_AT_ONCE, _WAIT_SECONDS = 4, 3.0
_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""The least that OWASP's cheat sheet on storing passwords names for argon2id: 40 ms of a core, 19 MiB."""
_slots = threading.BoundedSemaphore(_AT_ONCE)


def hash_password(password: str, user: str) -> str:
    """Return what is kept of a new password; refuse one that is easily guessed."""
    if fault := _fault(password, user):
        hint = "four words that do not belong together are easy to keep in mind"
        raise HubProblem(422, "bad_password", f"the password {fault}", hint=hint)
    return hash_again(password)


def hash_again(password: str) -> str:
    """Return what is kept of a password that was good enough when it was chosen."""
    with _HashingSlot():
        return _hasher.hash(password)


def verify_password(password: str, kept: str | None) -> bool:
    """Tell whether a password is the one that was kept; it takes as long when none was."""
    with _HashingSlot():
        try:
            return _hasher.verify(kept or _nobodys(), password[: LONGEST + 1]) and kept is not None
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(kept: str) -> bool:
    """Tell whether what was kept was made with other parameters than today's."""
    return _hasher.check_needs_rehash(kept)


class _HashingSlot:
    """A place among those who compute at once: guessing must not take all threads, nor all memory."""

    def __enter__(self) -> None:
        if not _slots.acquire(timeout=_WAIT_SECONDS):
            headers = {"Retry-After": "5"}
            raise HubProblem(429, "busy", "too many people sign in right now", headers=headers)

    def __exit__(self, *_: object) -> None:
        _slots.release()


def _fault(password: str, user: str) -> str | None:
    from zxcvbn import zxcvbn  # its lists of common passwords take 60 ms to read

    if len(password) < SHORTEST:
        return f"has fewer than {SHORTEST} characters"
    if len(password) > LONGEST:
        return f"has more than {LONGEST} characters"
    if zxcvbn(password[:_LOOKED_AT], user_inputs=[user, "wander"])["score"] < _GUESSED_BY_SCORE:
        return "is among those that are guessed first"
    return None


@cache
def _nobodys() -> str:
    return _hasher.hash("nobody's")
