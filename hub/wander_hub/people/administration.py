"""Adding users and letting them back in, by administrators over the API; `wander-hub user` does the same."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire.people import UserLink

from wander_hub import audit, names
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import User
from wander_hub.accounts.repository import user_named
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.people import departures, identities, second_factor, sign_in
from wander_hub.people.models import LinkedIdentity
from wander_hub.rights import rights


def add(context: Context, name: str) -> UserLink:
    """Add a user, who chooses a password by the link."""
    rights.administrator(context.caller)

    def work(session: Session) -> UserLink:
        user = accounts.add_user(session, name)
        audit.about(session, owner=user.name, target=user.name)
        return _link(context, session, user)

    return context.commit(work)


def give_link(context: Context, name: str) -> UserLink:
    """Return a link by which a user chooses another password, once, within a week; an earlier one ends."""
    rights.administrator(context.caller)

    def work(session: Session) -> UserLink:
        user = _other(context, session, name)
        audit.about(session, target=user.name)
        return _link(context, session, user)

    return context.commit(work)


def remove_second_factor(context: Context, name: str) -> None:
    """Let somebody in who lost phone and recovery codes."""
    rights.administrator(context.caller)

    def work(session: Session) -> None:
        user = _other(context, session, name)
        audit.about(session, target=user.name)
        second_factor.remove(session, user.id)

    context.commit(work)


def link_identity(context: Context, name: str, issuer: str | None, subject: str) -> None:
    """Let a user sign in as a subject of a provider, the hub's own unless another is named."""
    rights.administrator(context.caller)
    place = _issuer(context, issuer)

    def work(session: Session) -> None:
        identities.link(session, place, subject, _other(context, session, name).id)

    context.commit(work)


def unlink_identity(context: Context, name: str, issuer: str | None, subject: str) -> None:
    """Let a user sign in so no more."""
    rights.administrator(context.caller)
    place = _issuer(context, issuer)
    context.commit(lambda session: identities.unlink(session, place, subject, _other(context, session, name)))


def identities_of(session: Session, caller: Identity, name: str) -> list[LinkedIdentity]:
    """Return as whom a user signs in at providers."""
    rights.administrator(caller)
    user = user_named(session, names.normalise_owner(name))
    if user is None:
        raise departures.no_user(name)
    return identities.of_user(session, user.id)


def _issuer(context: Context, issuer: str | None) -> str:
    if issuer is not None:
        return issuer
    provider = context.settings.sign_in_provider
    if provider is None:
        hint = "pass `issuer`, or set `WANDER_HUB_SIGN_IN_PROVIDER`"
        raise HubProblem(422, "no_provider", "this hub has no provider to sign in at", hint=hint)
    return provider.issuer


def _other(context: Context, session: Session, name: str) -> User:
    """Return a user who is no other administrator: a token that was stolen must not become their account."""
    user = departures.lock(session, name)
    if user.admin and user.id != context.caller.user_id:
        hint = f"whoever runs the hub does it by command: `wander-hub user password {user.name} --link`"
        raise HubProblem(403, "administrator", f"`{user.name}` is an administrator too", hint=hint)
    return user


def _link(context: Context, session: Session, user: User) -> UserLink:
    code = sign_in.make_code(session, user)
    return UserLink(user=departures.info_of(session, user), link=sign_in.link_of(code, context.base_url))
