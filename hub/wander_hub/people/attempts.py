"""Slows down who guesses, without a word on whether what they guess at exists, and nobody else.

Each failure is counted twice: for the name from this address, and for the address. Who signs in from another
address waits for nobody, so nobody can lock a user out. Guesses at a second factor are counted together, from
wherever: who makes them knows the password.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from wander_hub.database import Database, now
from wander_hub.http.limits import network_of
from wander_hub.http.problems import HubProblem
from wander_hub.people.models import Attempts

_FREE = {"name": 5, "address": 50, "code": 10}
"""Failures before anybody waits."""
_LONGEST = timedelta(minutes=15)
_KEPT = timedelta(days=1)
_HALVED = timedelta(hours=1)
"""After each such time without an attempt half of the failures are forgotten."""


def count_attempt(database: Database, name: str, address: str) -> None:
    """Count an attempt as a failure before it is one; raise a 429 when it comes too early.

    Counted before: of a hundred attempts at once no more are tried than one after another.
    """
    _refuse(_count(database, _keys(name, address)))


def count_guess(database: Database, user_id: int) -> None:
    """Count a guess at somebody's second factor, wherever it comes from; raise a 429 when it is too early."""
    _refuse(_count(database, {"code": _guesses_at(user_id)}))


def may_guess(database: Database, name: str, address: str, user_id: int | None) -> bool:
    """Count such a guess and tell whether it may be tried; `user_id` is None where the password was wrong.

    Who does not know the password guesses nothing and keeps nobody out; something is counted all the same, or
    time would tell that the password is right.
    """
    key = _hash(f"{network_of(address)}|code|{name}") if user_id is None else _guesses_at(user_id)
    return _count(database, {"code": key}) == 0


def forget_guesses(session: Session, user_id: int) -> None:
    """Forget what was guessed at somebody's second factor."""
    session.execute(delete(Attempts).where(Attempts.sha256 == _guesses_at(user_id)))


def _refuse(wait: int) -> None:
    if wait:
        raise HubProblem(
            429,
            "too_many_attempts",
            f"too many attempts; try again in {wait} s",
            headers={"Retry-After": str(wait)},
        )


def _count(database: Database, keys: dict[str, str]) -> int:
    """Count a failure under each key, or return for how many seconds nobody may try."""

    def count(session: Session) -> int:
        found = []
        session.execute(delete(Attempts).where(Attempts.until < now() - _KEPT))
        if wait := _wait([row for key in keys.values() if (row := session.get(Attempts, key))]):
            return wait  # who is refused adds nothing
        for kind, key in keys.items():
            row = session.get(Attempts, key, with_for_update=True)
            if row is None:
                row = Attempts(sha256=key, failures=0, until=now())
                session.add(row)
                session.flush()
            found.append((kind, row))
        if wait := _wait([row for _, row in found]):
            return wait
        moment = now()
        for kind, row in found:
            row.failures = (row.failures >> min((moment - row.until) // _HALVED, 30)) + 1
            over = min(row.failures - _FREE[kind], 10)
            row.until = moment + min(timedelta(seconds=2**over if over >= 0 else 0), _LONGEST)
        return 0

    return database.commit(count)


def _wait(rows: list[Attempts]) -> int:
    """Return for how many seconds somebody must wait, 0 for who need not."""
    moment = now()  # after the rows were read: who was counted a moment ago is no reason to wait
    wait = max(((row.until - moment).total_seconds() for row in rows), default=0)
    return int(wait) + 1 if wait > 0 else 0


def forget_failures(session: Session, name: str, address: str) -> None:
    """Forget the failures of a name from an address, and what this attempt was counted as."""
    for kind, key in _keys(name, address).items():
        row = session.get(Attempts, key, with_for_update=True)
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
