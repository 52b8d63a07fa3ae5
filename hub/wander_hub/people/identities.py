"""Identities at a sign-in provider, linked by issuer and subject, never by name or email address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wander_hub import audit
from wander_hub.accounts import service
from wander_hub.accounts.models import User
from wander_hub.database import now
from wander_hub.http.problems import HubProblem
from wander_hub.people import sessions
from wander_hub.people.models import LinkedIdentity
from wander_hub.people.provider import refusal
from wander_hub.settings import Settings


def sign_in_by_provider(session: Session, settings: Settings, claims: Mapping[str, Any]) -> str:
    """Return the cookie of a new session for the linked user, who is added if the settings allow it.

    The provider is responsible for a second factor, so the hub does not ask for its own.
    """
    linked = session.get(LinkedIdentity, (claims["iss"], claims["sub"]))
    user_id = linked.user_id if linked is not None else _add_user(session, settings, claims).id
    user = session.get_one(User, user_id, with_for_update=True)
    audit.about(session, actor=user.name, target=user.name, issuer=claims["iss"])
    return sessions.begin_session(session, user, settings)


def link_identity(session: Session, issuer: str, subject: str, user_id: int) -> User:
    """Let a user sign in with an identity. Raises a problem if it is linked to another user."""
    user = session.get_one(User, user_id, with_for_update=True)
    if user.disabled_at is not None:
        raise HubProblem(409, "user_disabled", f"the user `{user.name}` is disabled")
    linked = session.get(LinkedIdentity, (issuer, subject))
    if linked is not None and linked.user_id != user_id:
        raise HubProblem(409, "identity_taken", "this identity is already linked to another user")
    if linked is None:
        session.add(LinkedIdentity(issuer=issuer, subject=subject, user_id=user_id, created_at=now()))
    audit.about(session, target=user.name, issuer=issuer, subject=subject)
    return user


def unlink_identity(session: Session, issuer: str, subject: str, user: User) -> None:
    """Remove a linked identity and end the user's sessions, because they may have started with it."""
    linked = session.get(LinkedIdentity, (issuer, subject))
    if linked is None or linked.user_id != user.id:
        hint = f"`wander-hub user identity {user.name}` lists the linked identities"
        raise HubProblem(
            404, "identity_not_found", f"`{subject[:80]}` is not linked to `{user.name}`", hint=hint
        )
    session.delete(linked)
    sessions.end_sessions(session, user.id)
    audit.about(session, target=user.name, issuer=issuer, subject=subject)


def list_identities(session: Session, user_id: int) -> list[LinkedIdentity]:
    """Return a user's linked identities by issuer and subject."""
    query = select(LinkedIdentity).where(LinkedIdentity.user_id == user_id)
    return list(session.scalars(query.order_by(LinkedIdentity.issuer, LinkedIdentity.subject)))


def _add_user(session: Session, settings: Settings, claims: Mapping[str, Any]) -> User:
    """Add a user with the name of the configured claim. A name that exists already is rejected."""
    provider, subject = settings.sign_in_provider, claims["sub"]
    if provider is None or not provider.add_users:
        hint = "sign in with your password and link this identity, or ask the hub's operator to run "
        hint += f"`wander-hub user identity NAME --link {subject[:80]}`"
        raise HubProblem(403, "identity_unknown", f"no user is linked to `{subject[:80]}`", hint=hint)
    name = claims.get(provider.name_claim)
    if not isinstance(name, str):
        raise refusal("no_name", f"the provider sent no user name in `{provider.name_claim}`")
    user = service.add_user(session, name)
    session.add(LinkedIdentity(issuer=claims["iss"], subject=subject, user_id=user.id, created_at=now()))
    audit.about(session, added=True)
    return user
