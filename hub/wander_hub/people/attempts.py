"""Rate limits for sign-in attempts, which never reveal whether a user exists.

Each failure is counted for the name from this address, and for the address. Someone at another address is not
affected, so nobody can lock a user out. Guesses at a second factor are counted per user from all addresses,
because anyone who can guess already knows the password.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from wander_hub.database import Database, now
from wander_hub.http.limits import network_of
from wander_hub.http.problems import HubProblem
from wander_hub.people.models import SignInAttempts

_FREE = {"name": 5, "address": 50, "code": 10}
"""Number of failures before an attempt has to wait."""
_LONGEST = timedelta(minutes=15)
_KEPT = timedelta(days=1)
_HALVED = timedelta(hours=1)
"""Time without an attempt after which half of the failures are forgotten."""


def count_attempt(database: Database, name: str, address: str) -> None:
    """Count an attempt as a failure before its outcome is known; raise a 429 problem if it comes too early.

    Because of this order, a hundred simultaneous attempts succeed no more often than sequential ones.
    """
    _refuse(_count(database, _keys(name, address)))


def count_guess(database: Database, user_id: int) -> None:
    """Count a guess at a user's second factor from any address; raise a 429 problem if it comes too early."""
    _refuse(_count(database, {"code": _guesses_at(user_id)}))


def may_guess(database: Database, name: str, address: str, user_id: int | None) -> bool:
    """Count a guess at a second factor and return whether it may be tried; `user_id` is None if the password
    was wrong.

    With a wrong password, the guess is counted for the sender's address instead. Counting something in both
    cases keeps the timing from revealing whether the password is right.
    """
    key = _hash(f"{network_of(address)}|code|{name}") if user_id is None else _guesses_at(user_id)
    return _count(database, {"code": key}) == 0


def forget_guesses(session: Session, user_id: int) -> None:
    """Reset the count of guesses at a user's second factor."""
    session.execute(delete(SignInAttempts).where(SignInAttempts.sha256 == _guesses_at(user_id)))


def _refuse(wait: int) -> None:
    if wait:
        raise HubProblem(
            429,
            "too_many_attempts",
            f"too many attempts; try again in {wait} s",
            headers={"Retry-After": str(wait)},
        )


def _count(database: Database, keys: dict[str, str]) -> int:
    """Count a failure under each key, or return the seconds to wait if it is too early."""

    def count(session: Session) -> int:
        counted = []
        session.execute(delete(SignInAttempts).where(SignInAttempts.until < now() - _KEPT))
        if wait := _wait([row for key in keys.values() if (row := session.get(SignInAttempts, key))]):
            return wait  # a rejected attempt is not counted
        for kind, key in keys.items():
            row = session.get(SignInAttempts, key, with_for_update=True)
            if row is None:
                row = SignInAttempts(sha256=key, failures=0, until=now())
                session.add(row)
                session.flush()
            counted.append((kind, row))
        if wait := _wait([row for _, row in counted]):
            return wait
        moment = now()
        for kind, row in counted:
            row.failures = (row.failures >> min((moment - row.until) // _HALVED, 30)) + 1
            over = min(row.failures - _FREE[kind], 10)
            row.until = moment + min(timedelta(seconds=2**over if over >= 0 else 0), _LONGEST)
        return 0

    return database.commit(count)


def _wait(rows: list[SignInAttempts]) -> int:
    """Return the number of seconds to wait, or 0."""
    moment = now()  # after the rows, so that an attempt counted just now is not a reason to wait
    wait = max(((row.until - moment).total_seconds() for row in rows), default=0)
    return int(wait) + 1 if wait > 0 else 0


def forget_failures(session: Session, name: str, address: str) -> None:
    """Forget the failures of a name from an address, and take back the count of this attempt."""
    for kind, key in _keys(name, address).items():
        row = session.get(SignInAttempts, key, with_for_update=True)
        if row is not None and kind == "name":
            session.delete(row)
        elif row is not None:
            row.failures, row.until = row.failures - 1, min(row.until, now())


def _keys(name: str, address: str) -> dict[str, str]:
    network = network_of(address)
    texts = {"address": network, "name": f"{network}|{name}"}
    return {kind: _hash(text) for kind, text in texts.items()}


def _guesses_at(user_id: int) -> str:
    return _hash(f"code|{user_id}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
