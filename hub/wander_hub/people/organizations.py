"""Organisations: owners without a user of their name, which people make and leave."""

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
    """Make an organisation, of which the caller is the first owner."""
    rights.require_whole_token(caller)
    if settings.organizations == "administrators":
        rights.require_administrator(caller)
    # Of two requests at once one waits, so that both count.
    user = session.get_one(User, caller.user_id, with_for_update={"key_share": True})
    owned = select(func.count()).select_from(Membership).join(Membership.owner).where(_is_organization())
    count = session.scalar(owned.where(Membership.user_id == user.id, Membership.role == "owner")) or 0
    if count >= settings.max_organizations and not caller.administers:
        hint = "whoever runs the hub can make more: `wander-hub org add NAME --owner USER`"
        raise HubProblem(409, "too_many_organisations", f"you own {count} organisations", hint=hint)
    return add_organization(session, name, user)


def add_organization(session: Session, name: str, user: User) -> OwnerInfo:
    """Make an organisation for its first owner."""
    owner = service.add_owner(session, name)
    session.add(Membership(owner_id=owner.id, user_id=user.id, role="owner"))
    audit.about(session, owner=owner.name, target=owner.name, first_owner=user.name)
    return fill(OwnerInfo, owner, kind="organisation", role="owner")


def list_owners_of_caller(session: Session, caller: Identity) -> list[OwnerInfo]:
    """Return the owners on which the caller has a role, by name."""
    rights.require_whole_token(caller)
    query = select(Owner, Membership.role, _is_organization()).join(
        Membership, Membership.owner_id == Owner.id
    )
    found = session.execute(query.where(Membership.user_id == caller.user_id).order_by(Owner.name))
    return [
        fill(OwnerInfo, owner, kind="organisation" if organisation else "user", role=role)
        for owner, role, organisation in found
    ]


def with_owners(session: Session, *, after: str = "", limit: int | None = None) -> dict[Owner, list[str]]:
    """Return organisations by name, each with the users who own it."""
    these = select(Owner.id).where(_is_organization(), Owner.name > after).order_by(Owner.name).limit(limit)
    theirs = Membership.owner_id == Owner.id, Membership.role == "owner"
    query = select(Owner, User.name).outerjoin(Membership, and_(*theirs)).outerjoin(Membership.user)
    query = query.where(Owner.id.in_(these.subquery().select())).order_by(Owner.name, User.name)
    found: dict[Owner, list[str]] = {}
    for owner, user in session.execute(query):
        found.setdefault(owner, []).extend([user] if user else [])
    return found


def find_organization(session: Session, name: str) -> Owner:
    """Return an organisation, or say how to make one."""
    name = names.normalize_owner(name)
    owner = session.scalar(select(Owner).where(Owner.name == name, _is_organization()))
    if owner is None:
        hint = "`wander-hub org list` names the organisations"
        raise HubProblem(404, "owner_not_found", f"there is no organisation `{name[:80]}`", hint=hint)
    return owner


def remove_own_organization(session: Session, caller: Identity, name: str) -> None:
    """Remove an organisation, for who owns it; a user's own name goes with the user alone."""
    owner = rights.owner_for(session, caller, "manage", name)
    if accounts.user_named(session, owner.name) is not None or owner.name == names.BUNDLED_OWNER:
        hint = "`wander auth org list` tells which owners are organisations"
        raise HubProblem(409, "not_an_organisation", f"`{owner.name}` is no organisation", hint=hint)
    remove_organization(session, owner.name)


def remove_organization(session: Session, name: str) -> Owner:
    """End all roles, invitations, tokens and trust of an organisation.

    What it published stays, for administrators to look after, and so does its name.
    """
    owner = find_organization(session, name)
    accounts.lock_owner(session, owner)
    its = select(Environment.id).where(Environment.owner_id == owner.id)
    for table in (Membership, Invitation, Publisher):
        session.execute(delete(table).where(table.owner_id == owner.id))
    for single in (Grant, Invitation):
        session.execute(delete(single).where(single.environment_id.in_(its)))
    live = or_(Token.owner_id == owner.id, Token.environment_id.in_(its)) & Token.revoked_at.is_(None)
    session.execute(update(Token).where(live).values(revoked_at=now()))
    audit.about(session, owner=owner.name, target=owner.name)
    return owner


def _is_organization() -> ColumnElement[bool]:
    return (Owner.name != names.BUNDLED_OWNER) & ~exists().where(User.name == Owner.name).correlate(Owner)
