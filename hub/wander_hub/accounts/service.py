"""Who somebody is, and who may do what."""

from __future__ import annotations

import hmac
from datetime import timedelta

from sqlalchemy.orm import Session
from wander.wire import TokenInfo

from wander_hub import names, security
from wander_hub.accounts import repository
from wander_hub.accounts.models import Membership, Owner, Token, User
from wander_hub.accounts.schemas import Identity
from wander_hub.database import Database, now
from wander_hub.problems import HubProblem

_LAST_USE_PRECISION = timedelta(minutes=1)


def add_user(session: Session, name: str, *, admin: bool = False) -> User:
    """Add a user and the owner of the same name; refuse a name that is bad or taken."""
    name = names.normalise_owner(name)
    if fault := names.owner_fault(name):
        raise HubProblem(422, "bad_name", f"the name `{name}` {fault}")
    if repository.user_named(session, name) or repository.owner_named(session, name):
        raise HubProblem(409, "name_taken", f"the name `{name}` is taken", hint="choose another name")
    user = User(name=name, admin=admin, created_at=now())
    owner = Owner(name=name, created_at=now())
    session.add_all([user, owner])
    session.flush()
    session.add(Membership(owner_id=owner.id, user_id=user.id))
    return user


def add_member(session: Session, owner_name: str, user: User) -> Owner:
    """Let a user publish under an owner, which is made when it does not exist yet."""
    owner_name = names.normalise_owner(owner_name)
    owner = repository.owner_named(session, owner_name) or new_owner(session, owner_name)
    if session.get(Membership, (owner.id, user.id)) is None:
        session.add(Membership(owner_id=owner.id, user_id=user.id))
    return owner


def new_owner(session: Session, name: str) -> Owner:
    """Add an owner without members; refuse a bad name."""
    if fault := names.owner_fault(name):
        raise HubProblem(422, "bad_name", f"the name `{name}` {fault}")
    owner = Owner(name=name, created_at=now())
    session.add(owner)
    session.flush()
    return owner


def add_token(session: Session, user: User, name: str) -> str:
    """Make a token for a user and return its secret, which is not kept."""
    secret = security.new_token()
    session.add(
        Token(
            user_id=user.id,
            name=name,
            prefix=security.shown_prefix(secret),
            sha256=security.token_hash(secret),
            created_at=now(),
        )
    )
    return secret


def revoke_token(session: Session, prefix: str) -> Token:
    """End a token, named by the prefix that listings show."""
    found = [one for one in repository.tokens_of(session, None) if one.prefix == prefix]
    if len(found) != 1:
        raise HubProblem(404, "token_not_found", f"no token has the prefix `{prefix}`")
    found[0].revoked_at = found[0].revoked_at or now()
    return found[0]


def first_administrator(session: Session) -> str | None:
    """On an empty hub add the user `admin` and return the secret of its token; later None."""
    if repository.has_users(session):
        return None
    return add_token(session, add_user(session, "admin", admin=True), "first start")


def authenticate(database: Database, secret: str) -> Identity:
    """Return whose token this is and note its use; raise a 401 for anything but a live token."""
    if not security.well_formed(secret):
        hint = "a token begins with `wnd_`; copy it whole"
        raise HubProblem(401, "bad_token", "the token is malformed", hint=hint)
    sha256 = security.token_hash(secret)
    with database.read() as session:
        token = repository.token_hashed(session, sha256)
    if token is None or not hmac.compare_digest(token.sha256, sha256) or token.revoked_at is not None:
        hint = "ask for a new one (`wander-hub token create`), then run `wander login`"
        raise HubProblem(401, "bad_token", "the token is unknown or revoked", hint=hint)
    _note_use(database, token)
    return identity_of(token)


def identity_of(token: Token) -> Identity:
    """Return the caller that a loaded token stands for."""
    return Identity(
        user_id=token.user.id,
        user=token.user.name,
        admin=token.user.admin,
        owners=tuple(sorted(one.owner.name for one in token.user.memberships)),
        token=token_info(token),
    )


def token_info(token: Token) -> TokenInfo:
    """Return a token without its secret."""
    return TokenInfo(
        name=token.name,
        prefix=token.prefix,
        created_at=token.created_at,
        last_used_at=token.last_used_at,
    )


def publishing_owner(session: Session, identity: Identity, name: str) -> Owner:
    """Return the owner that the caller may publish under; raise 404 or 403 otherwise."""
    owner = repository.owner_named(session, name)
    if owner is None:
        mine = ", ".join(f"`{one}`" for one in identity.owners)
        hint = f"you may publish under {mine}" if mine else None
        raise HubProblem(404, "owner_not_found", f"there is no owner `{name}`", hint=hint)
    if not identity.may_publish_under(name):
        hint = f"you may publish under {', '.join(f'`{one}`' for one in identity.owners)}"
        raise HubProblem(403, "not_permitted", f"`{identity.user}` may not publish under `{name}`", hint=hint)
    return owner


def _note_use(database: Database, token: Token) -> None:
    moment = now()
    if token.last_used_at is not None and moment - token.last_used_at < _LAST_USE_PRECISION:
        return
    with database.write() as session:
        stored = session.get(Token, token.id)
        if stored is not None:
            stored.last_used_at = moment
