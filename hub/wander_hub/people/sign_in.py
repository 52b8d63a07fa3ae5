"""Signing in with a password, and choosing a password."""

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
    """Return the cookie of a new session. Every failure has the same message and takes the same time.

    `code` is a code of the second factor. A failure does not reveal whether the user has one.
    """
    name, address = names.normalize_owner(name.strip()), origin.address or ""
    attempts.count_attempt(database, name, address)
    with database.read() as session:
        user = accounts.user_named(session, name)
        code_is_valid = second_factor.code_fits(session, user.id if user is not None else 0, code)
    stored_hash = user.password_hash if user is not None and user.disabled_at is None else None
    known = passwords.verify_password(password, stored_hash)
    known_id = user.id if user is not None and known else None
    guess = not code or attempts.may_guess(database, name, address, known_id)
    if user is None or stored_hash is None or not (known and guess and code_is_valid):
        raise _refusal()
    renewed = passwords.hash_again(password) if passwords.is_outdated(stored_hash) else stored_hash

    def begin(session: Session) -> str:
        locked = session.get_one(User, user.id, with_for_update=True)
        if locked.password_hash != stored_hash or locked.disabled_at is not None:  # changed since the check
            raise _refusal()
        if not second_factor.spend_code(session, locked.id, code):
            raise _refusal()
        locked.password_hash = renewed
        attempts.forget_failures(session, name, address)
        audit.about(session, actor=name, target=name)
        return sessions.begin_session(session, locked, settings)

    return database.commit(audit.recorded(begin, origin))


def _refusal() -> HubProblem:
    hint = "the hub's operator can reset your password: `wander-hub user password NAME --link`"
    wrong = "the name, the password or the second factor's code is wrong"
    return HubProblem(401, "wrong_password", wrong, hint=hint)


def change_password(context: Context, old: str | None, new: str, code: str) -> str | None:
    """Change the caller's password and end their sessions; return the cookie of a new session for a browser.

    If the caller has a second factor, a `code` is required.
    """
    caller, address = context.caller, (context.origin and context.origin.address) or ""
    with context.read() as session:
        user = session.get_one(User, caller.user_id)
    current_hash = user.password_hash
    wrong = HubProblem(403, "wrong_password", "the current password is wrong")
    attempts.count_attempt(context.database, user.name, address)
    if current_hash is not None and not passwords.verify_password(old or "", current_hash):
        raise wrong
    if code:
        attempts.count_guess(context.database, user.id)
    new_hash = passwords.hash_password(new, user.name)

    def change(session: Session) -> str | None:
        locked = session.get_one(User, user.id, with_for_update=True)
        if locked.password_hash != current_hash:  # changed since the check
            raise wrong
        second_factor.require_code(session, locked.id, code)
        set_hash(session, locked, new_hash)
        attempts.forget_failures(session, user.name, address)
        audit.about(session, target=user.name)
        return sessions.renew_session(session, locked, caller, context.settings)

    return context.commit(change)


def has_password(session: Session, user_id: int) -> bool:
    """Return whether a user has a password."""
    return session.get_one(User, user_id).password_hash is not None


def set_hash(session: Session, user: User, new_hash: str) -> None:
    """Store a new password hash; end the user's sessions and delete their code for choosing a password."""
    user.password_hash = new_hash
    sessions.end_sessions(session, user.id)
    if (code := session.get(OneTimeCode, user.id)) is not None:
        session.delete(code)


def make_code(session: Session, user: User) -> str:
    """Return a code for choosing a password; it is valid once, for a week, and replaces an earlier code."""
    if user.disabled_at is not None:
        hint = f"run `wander-hub user enable {user.name}` to enable the account"
        raise HubProblem(409, "user_disabled", f"the user `{user.name}` is disabled", hint=hint)
    secret = secrets.token_urlsafe(_CODE_BYTES)
    row = session.get(OneTimeCode, user.id) or OneTimeCode(user_id=user.id)
    row.sha256, row.expires_at = token_hash(secret), now() + _CODE_LIVES
    session.add(row)
    return secret


def link_of(code: str, base_url: str) -> str:
    """Return the address for using a code. Browsers do not send the part after `#` to the server."""
    return f"{base_url}/login/password#{code}"


def use_code(
    database: Database, settings: Settings, code: str, new: str, second: str, origin: audit.Origin
) -> str:
    """Set a password with a one-time code; return the cookie of a new session.

    If the user has a second factor, a code of it is required as well.
    """
    address = origin.address or ""
    attempts.count_attempt(database, "", address)
    digest = token_hash(code.strip().rpartition("#")[2])  # people may paste the whole link
    query = select(OneTimeCode).where(OneTimeCode.sha256 == digest)
    with database.read() as session:
        row = session.scalar(query)
        if row is None or row.expires_at <= now():
            raise _spent()
        user = session.get_one(User, row.user_id)
    new_hash = passwords.hash_password(new, user.name)
    if second:
        attempts.count_guess(database, user.id)

    def choose(session: Session) -> str:
        if session.scalar(query.with_for_update()) is None:
            raise _spent()
        locked = session.get_one(User, user.id, with_for_update=True)
        second_factor.require_code(session, locked.id, second)
        set_hash(session, locked, new_hash)
        attempts.forget_failures(session, "", address)
        audit.about(session, actor=user.name, target=user.name)
        return sessions.begin_session(session, locked, settings)

    return database.commit(audit.recorded(choose, origin))


def _spent() -> HubProblem:
    hint = "the hub's operator can create a new code: `wander-hub user password NAME --link`"
    return HubProblem(403, "bad_code", "the code is unknown, used or expired", hint=hint)
