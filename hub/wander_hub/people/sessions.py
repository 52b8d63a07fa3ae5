"""Browser sessions: they start with signing in, and end with signing out, after a time, or all together."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from wander.wire import TokenInfo

from wander_hub.accounts.models import User
from wander_hub.accounts.repository import user_with_owners
from wander_hub.database import Database, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import ALL_SCOPES, Identity
from wander_hub.people.models import BrowserSession
from wander_hub.rights.tokens import identity_of_user, record_use
from wander_hub.security import token_hash
from wander_hub.settings import Settings

IDLE_HOURS = 48
"""How long a browser may do nothing and stay signed in."""
_SEEN_PRECISION = timedelta(minutes=1)
_BYTES = 32


def begin_session(session: Session, user: User, settings: Settings) -> str:
    """Start a session and return its cookie, a new random value. Only the cookie's hash is stored.

    Disabled users are rejected, no matter how they sign in. The row of `user` must be locked.
    """
    if user.disabled_at is not None:
        raise HubProblem(401, "user_disabled", "this account is disabled")
    secret, moment = secrets.token_urlsafe(_BYTES), now()
    session.execute(delete(BrowserSession).where(BrowserSession.expires_at < moment))
    session.add(
        BrowserSession(
            user_id=user.id,
            sha256=token_hash(secret),
            created_at=moment,
            seen_at=moment,
            expires_at=moment + timedelta(hours=settings.session_hours),
        )
    )
    return secret


def authenticate(database: Database, cookie: str) -> Identity | None:
    """Return the user of a session cookie and update the session's last use; None if the session has
    ended."""
    moment, idle = now(), timedelta(hours=IDLE_HOURS)
    with database.read() as session:
        row = session.scalar(select(BrowserSession).where(BrowserSession.sha256 == token_hash(cookie)))
        if row is None or row.expires_at <= moment or row.seen_at + idle <= moment:
            return None
        user = user_with_owners(session, row.user_id)
        info = TokenInfo(
            name="browser",
            prefix="",
            scopes=list(ALL_SCOPES),
            created_at=row.created_at,
            expires_at=row.expires_at,
            last_used_at=row.seen_at,
        )
        identity = identity_of_user(session, user, info, browser_session=row.id)
    if identity is not None and moment - row.seen_at >= _SEEN_PRECISION:
        here = update(BrowserSession).where(BrowserSession.id == row.id)
        record_use(database, here.values(seen_at=moment))
    return identity


def end_session(session: Session, cookie: str) -> None:
    """End the session of a cookie."""
    session.execute(delete(BrowserSession).where(BrowserSession.sha256 == token_hash(cookie)))


def end_sessions(session: Session, user_id: int) -> None:
    """End all sessions of a user."""
    session.execute(delete(BrowserSession).where(BrowserSession.user_id == user_id))


def renew_session(session: Session, user: User, caller: Identity, settings: Settings) -> str | None:
    """End a user's sessions; return the cookie of a new session if the caller uses a browser.

    The current cookie ends as well, because someone else may have it. The row of `user` must be locked.
    """
    end_sessions(session, user.id)
    return begin_session(session, user, settings) if caller.browser_session is not None else None
