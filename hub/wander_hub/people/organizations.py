"""Organizations: owners that are not users."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session
from wander.wire.people import OwnerInfo

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service
from wander_hub.accounts.models import Membership, Owner, User
from wander_hub.database import fill, now
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.publishers.models import Publisher
from wander_hub.rights import rights
from wander_hub.rights.models import Grant, Invitation, Token
from wander_hub.settings import Settings


def make_organization(session: Session, caller: Identity, settings: Settings, name: str) -> OwnerInfo:
    """Create an organization with the caller as its first owner."""
    rights.require_whole_token(caller)
    if settings.organizations == "administrators":
        rights.require_administrator(caller)
    # Lock the user, so that simultaneous requests are counted correctly.
    user = session.get_one(User, caller.user_id, with_for_update={"key_share": True})
    owned = select(func.count()).select_from(Membership).join(Membership.owner).where(_is_organization())
    count = session.scalar(owned.where(Membership.user_id == user.id, Membership.role == "owner")) or 0
    if count >= settings.max_organizations and not caller.administers:
        hint = "an administrator of the hub can create more, and invite you as an owner"
        raise HubProblem(409, "too_many_organizations", f"you already own {count} organizations", hint=hint)
    return add_organization(session, name, user)


def add_organization(session: Session, name: str, user: User) -> OwnerInfo:
    """Create an organization with its first owner."""
    owner = service.add_owner(session, name)
    session.add(Membership(owner_id=owner.id, user_id=user.id, role="owner"))
    audit.about(session, owner=owner.name, target=owner.name, first_owner=user.name)
    return fill(OwnerInfo, owner, kind="organization", role="owner")


def list_owners_of_caller(session: Session, caller: Identity) -> list[OwnerInfo]:
    """Return the owners that the caller has a role on, by name."""
    rights.require_whole_token(caller)
    query = select(Owner, Membership.role, _is_organization()).join(
        Membership, Membership.owner_id == Owner.id
    )
    rows = session.execute(query.where(Membership.user_id == caller.user_id).order_by(Owner.name))
    return [
        fill(OwnerInfo, owner, kind="organization" if is_organization else "user", role=role)
        for owner, role, is_organization in rows
    ]


def with_owners(session: Session, *, after: str = "", limit: int | None = None) -> dict[Owner, list[str]]:
    """Return organizations by name, each with the names of its owners."""
    these = select(Owner.id).where(_is_organization(), Owner.name > after).order_by(Owner.name).limit(limit)
    theirs = Membership.owner_id == Owner.id, Membership.role == "owner"
    query = select(Owner, User.name).outerjoin(Membership, and_(*theirs)).outerjoin(Membership.user)
    query = query.where(Owner.id.in_(these.subquery().select())).order_by(Owner.name, User.name)
    owners: dict[Owner, list[str]] = {}
    for owner, user in session.execute(query):
        owners.setdefault(owner, []).extend([user] if user else [])
    return owners


def find_organization(session: Session, name: str) -> Owner:
    """Return an organization. Raises a problem if it does not exist."""
    name = names.normalize_owner(name)
    owner = session.scalar(select(Owner).where(Owner.name == name, _is_organization()))
    if owner is None:
        hint = "`wander auth org list` lists the owners in which you have a role"
        raise HubProblem(404, "owner_not_found", f"there is no organization `{name[:80]}`", hint=hint)
    return owner


def remove_own_organization(session: Session, caller: Identity, name: str) -> None:
    """Remove an organization as its owner. A user's own name can only be removed together with the user."""
    owner = rights.owner_for(session, caller, "manage", name)
    if accounts.user_named(session, owner.name) is not None or owner.name == names.BUNDLED_OWNER:
        hint = "`wander auth org list` shows which owners are organizations"
        raise HubProblem(409, "not_an_organization", f"`{owner.name}` is not an organization", hint=hint)
    remove_organization(session, owner.name)


def remove_organization(session: Session, name: str) -> Owner:
    """Delete all roles, invitations, tokens and trusted publishers of an organization.

    Its name and what it published remain, managed by administrators.
    """
    owner = find_organization(session, name)
    accounts.lock_owner(session, owner)
    environment_ids = select(Environment.id).where(Environment.owner_id == owner.id)
    for table in (Membership, Invitation, Publisher):
        session.execute(delete(table).where(table.owner_id == owner.id))
    for single in (Grant, Invitation):
        session.execute(delete(single).where(single.environment_id.in_(environment_ids)))
    bound = or_(Token.owner_id == owner.id, Token.environment_id.in_(environment_ids))
    live = bound & Token.revoked_at.is_(None)
    session.execute(update(Token).where(live).values(revoked_at=now()))
    audit.about(session, owner=owner.name, target=owner.name)
    return owner


def _is_organization() -> ColumnElement[bool]:
    return (Owner.name != names.BUNDLED_OWNER) & ~exists().where(User.name == Owner.name).correlate(Owner)
