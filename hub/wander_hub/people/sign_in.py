"""Signing in with a password, and choosing one."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import User
from wander_hub.database import Database, now
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.people import attempts, passwords, second_factor, sessions
from wander_hub.people.models import OneTimeCode
from wander_hub.security import token_hash
from wander_hub.settings import Settings

_CODE_LIVES = timedelta(days=7)
_CODE_BYTES = 24


def sign_in(
    database: Database, settings: Settings, name: str, password: str, code: str, origin: audit.Origin
) -> str:
    """Return the cookie of a new session; refuse whatever is wrong in the same words, after the same time.

    `code` is that of a second factor, which nobody is told whether a user has.
    """
    name, address = names.normalize_owner(name.strip()), origin.address or ""
    attempts.count_attempt(database, name, address)
    with database.read() as session:
        user = accounts.user_named(session, name)
        fits = second_factor.code_fits(session, user.id if user is not None else 0, code)
    kept = user.password_hash if user is not None and user.disabled_at is None else None
    known = passwords.verify_password(password, kept)
    known_id = user.id if user is not None and known else None
    guess = not code or attempts.may_guess(database, name, address, known_id)
    if user is None or kept is None or not (known and guess and fits):
        raise _refusal()
    renewed = passwords.hash_again(password) if passwords.is_outdated(kept) else kept

    def begin(session: Session) -> str:
        found = session.get_one(User, user.id, with_for_update=True)
        if found.password_hash != kept or found.disabled_at is not None:  # since this one was checked
            raise _refusal()
        if not second_factor.spend_code(session, found.id, code):
            raise _refusal()
        found.password_hash = renewed
        attempts.forget_failures(session, name, address)
        audit.about(session, actor=name, target=name)
        return sessions.begin_session(session, found, settings)

    return database.commit(audit.recorded(begin, origin))


def _refusal() -> HubProblem:
    hint = "whoever runs the hub gives you a way back: `wander-hub user password NAME --link`"
    wrong = "the name, the password or the code of a second factor is wrong"
    return HubProblem(401, "wrong_password", wrong, hint=hint)


def change_password(context: Context, old: str | None, new: str, code: str) -> str | None:
    """Give the caller another password; their sessions end. Return the cookie of a new one, for a browser.

    Who has a second factor sends a `code` of it, too.
    """
    caller, address = context.caller, (context.origin and context.origin.address) or ""
    with context.read() as session:
        user = session.get_one(User, caller.user_id)
    present = user.password_hash
    wrong = HubProblem(403, "wrong_password", "the present password is another one")
    attempts.count_attempt(context.database, user.name, address)
    if present is not None and not passwords.verify_password(old or "", present):
        raise wrong
    if code:
        attempts.count_guess(context.database, user.id)
    kept = passwords.hash_password(new, user.name)

    def change(session: Session) -> str | None:
        found = session.get_one(User, user.id, with_for_update=True)
        if found.password_hash != present:  # it was changed while this one was checked
            raise wrong
        second_factor.require_code(session, found.id, code)
        set_hash(session, found, kept)
        attempts.forget_failures(session, user.name, address)
        audit.about(session, target=user.name)
        return sessions.renew_session(session, found, caller, context.settings)

    return context.commit(change)


def has_password(session: Session, user_id: int) -> bool:
    """Tell whether a user can sign in with a password."""
    return session.get_one(User, user_id).password_hash is not None


def set_hash(session: Session, user: User, kept: str) -> None:
    """Keep a new password; the sessions that the old one began end, and codes to choose one."""
    user.password_hash = kept
    sessions.end_sessions(session, user.id)
    if (code := session.get(OneTimeCode, user.id)) is not None:
        session.delete(code)


def make_code(session: Session, user: User) -> str:
    """Return a code with which a user may choose a password, once, within a week; an earlier one ends."""
    if user.disabled_at is not None:
        hint = f"`wander-hub user enable {user.name}` lets them back in"
        raise HubProblem(409, "user_disabled", f"the user `{user.name}` is disabled", hint=hint)
    secret = secrets.token_urlsafe(_CODE_BYTES)
    row = session.get(OneTimeCode, user.id) or OneTimeCode(user_id=user.id)
    row.sha256, row.expires_at = token_hash(secret), now() + _CODE_LIVES
    session.add(row)
    return secret


def link_of(code: str, base_url: str) -> str:
    """Return the address at which a code is used; browsers keep what stands after `#` to themselves."""
    return f"{base_url}/login/password#{code}"


def use_code(
    database: Database, settings: Settings, code: str, new: str, second: str, origin: audit.Origin
) -> str:
    """Choose a password with a code; return the cookie of a new session.

    Who has a second factor sends a code of that, too.
    """
    address = origin.address or ""
    attempts.count_attempt(database, "", address)
    digest = token_hash(code.strip().rpartition("#")[2])  # who copied the whole link means its end
    query = select(OneTimeCode).where(OneTimeCode.sha256 == digest)
    with database.read() as session:
        row = session.scalar(query)
        if row is None or row.expires_at <= now():
            raise _spent()
        user = session.get_one(User, row.user_id)
    kept = passwords.hash_password(new, user.name)
    if second:
        attempts.count_guess(database, user.id)

    def choose(session: Session) -> str:
        if session.scalar(query.with_for_update()) is None:
            raise _spent()
        found = session.get_one(User, user.id, with_for_update=True)
        second_factor.require_code(session, found.id, second)
        set_hash(session, found, kept)
        attempts.forget_failures(session, "", address)
        audit.about(session, actor=user.name, target=user.name)
        return sessions.begin_session(session, found, settings)

    return database.commit(audit.recorded(choose, origin))


def _spent() -> HubProblem:
    hint = "whoever runs the hub makes a new one: `wander-hub user password NAME --link`"
    return HubProblem(403, "bad_code", "the code is unknown, used or too old", hint=hint)
