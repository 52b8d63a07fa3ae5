"""Adding users and letting them back in, by administrators over the API; `wander-hub user` does the same."""

from __future__ import annotations

from sqlalchemy.orm import Session
from wander.wire.people import UserLink

from wander_hub import audit
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import User
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.people import departures, second_factor, sign_in
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


def _other(context: Context, session: Session, name: str) -> User:
    """Return a user who is no other administrator: a token that was stolen must not become their account."""
    user = departures.lock(session, name)
    if user.admin and user.id != context.caller.user_id:
        hint = f"whoever runs the hub does it by command: `wander-hub user password {user.name} --link`"
        raise HubProblem(403, "administrator", f"`{user.name}` is an administrator too", hint=hint)
    return user


def _link(context: Context, session: Session, user: User) -> UserLink:
    code = sign_in.make_code(session, user)
    return UserLink(user=departures.info_of(user), link=sign_in.link_of(code, context.base_url))
