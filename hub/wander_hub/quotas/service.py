"""Enforcement of quotas.

Usage is not stored in counters. If an owner has a limit, the usage is summed from the rows. A transaction
that adds something locks the owner, adds the rows and then sums, so simultaneous additions cannot exceed the
limit together. `require_quota` rejects an announced addition before any bytes are received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from sqlalchemy import Subquery, func, select, union_all
from sqlalchemy.orm import Session
from wander.wire.people import Allowance, NewQuota, OwnerQuota

from wander_hub import audit
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.environments.models import Environment, File, Version, VersionDocument
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.models.models import Model, Revision, RevisionFile
from wander_hub.quotas.models import Quota
from wander_hub.rights import rights
from wander_hub.runs.models import Run
from wander_hub.settings import Settings

Kind = Literal["stored_bytes", "versions", "runs"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNLIMITED = -1
OF_VERSIONS: tuple[Kind, ...] = ("stored_bytes", "versions")
OF_RUNS: tuple[Kind, ...] = ("stored_bytes", "runs")
_BATCH = 500
_WORDS: dict[Kind, str] = {"stored_bytes": "stored bytes", "versions": "versions", "runs": "runs"}


def limits_of(session: Session, settings: Settings, owner: Owner) -> dict[Kind, int]:
    """Return the limits of an owner, for each kind that is limited."""
    own = session.get(Quota, owner.id, populate_existing=True)
    limits: dict[Kind, int] = {}
    for kind in KINDS:
        limit: int | None = getattr(own, kind, None)
        limit = getattr(settings, f"quota_{kind}") if limit is None else limit
        if limit not in (None, UNLIMITED):
            limits[kind] = limit
    return limits


def used_by(session: Session, owner: Owner, kind: Kind) -> int:
    """Return an owner's usage. Runs count for the owner that has the name of the user who posted them."""
    posted = select(func.count()).select_from(Run).join(User, Run.posted_by_id == User.id)
    posted = posted.where(User.name == owner.name)
    if kind == "runs":
        return session.scalar(posted.where(Run.withdrawn_at.is_(None))) or 0
    if kind == "versions":
        versions = select(func.count()).select_from(Version).join(Version.environment)
        versions = versions.where(Environment.owner_id == owner.id, Version.deleted_at.is_(None))
        revisions = select(func.count()).select_from(Revision).join(Revision.model)
        revisions = revisions.where(Model.owner_id == owner.id, Revision.deleted_at.is_(None))
        return (session.scalar(versions) or 0) + (session.scalar(revisions) or 0)
    objects = _objects(owner)
    once = select(func.max(objects.c.size).label("size")).group_by(objects.c.sha256).subquery()
    stored = session.scalar(select(func.sum(once.c.size))) or 0
    return int(stored) + int(session.scalar(posted.with_only_columns(func.sum(Run.stored_bytes))) or 0)


def _objects(owner: Owner) -> Subquery:
    """Return digests and sizes of the files of an owner's versions and models; a digest may occur several
    times."""
    environments = select(Environment.id).where(Environment.owner_id == owner.id)
    versions = select(Version.id).where(
        Version.environment_id.in_(environments), Version.deleted_at.is_(None)
    )
    models = select(Model.id).where(Model.owner_id == owner.id)
    revisions = select(Revision.id).where(Revision.model_id.in_(models), Revision.deleted_at.is_(None))
    return union_all(
        select(File.sha256, File.size).where(File.version_id.in_(versions)),
        select(VersionDocument.sha256, VersionDocument.size).where(VersionDocument.version_id.in_(versions)),
        select(RevisionFile.sha256, RevisionFile.size).where(RevisionFile.revision_id.in_(revisions)),
    ).subquery()


def require_room(session: Session, settings: Settings, owner: Owner, kinds: Sequence[Kind]) -> None:
    """Raise a problem if the added rows exceed a limit. The transaction must have locked the owner before."""
    session.flush()
    for kind, allowed in limits_of(session, settings, owner).items():
        if kind in kinds and (needed := used_by(session, owner, kind)) > allowed:
            raise _refusal(owner, kind, allowed, needed)


def require_quota(
    session: Session,
    settings: Settings,
    owner: Owner | None,
    *,
    files: Mapping[str, int] | None = None,
    stored_bytes: int = 0,
    versions: int = 0,
    runs: int = 0,
) -> None:
    """Raise a problem if an announced addition would exceed a limit; files that the owner already has are
    free."""
    if owner is None:
        return
    limits = limits_of(session, settings, owner)
    if "stored_bytes" in limits and files:
        stored_bytes += sum(files[sha256] for sha256 in _fresh(session, owner, files))
    for kind, more in (("stored_bytes", stored_bytes), ("versions", versions), ("runs", runs)):
        if more and kind in limits and (needed := used_by(session, owner, kind) + more) > limits[kind]:
            raise _refusal(owner, kind, limits[kind], needed)


def _fresh(session: Session, owner: Owner, files: Mapping[str, int]) -> set[str]:
    objects, fresh = _objects(owner), set(files)
    for start in range(0, len(files), _BATCH):
        batch = list(files)[start : start + _BATCH]
        fresh.difference_update(session.scalars(select(objects.c.sha256).where(objects.c.sha256.in_(batch))))
    return fresh


def poster(session: Session, user: str) -> Owner | None:
    """Return the owner whose quota covers a user's runs."""
    return accounts.owner_named(session, user)


def lock_poster(session: Session, settings: Settings, user: str) -> Owner | None:
    """Return the owner whose quota covers a user's runs, locked; None if its runs are unlimited."""
    owner = poster(session, user)
    if owner is None or not limits_of(session, settings, owner).keys() & set(OF_RUNS):
        return None
    accounts.lock_owner(session, owner)
    return owner


def quota_of_owner(session: Session, settings: Settings, caller: Identity, name: str) -> OwnerQuota:
    """Return an owner's usage and limits. For its members."""
    return describe_quota(session, settings, rights.owner_for(session, caller, "read", name))


def describe_quota(session: Session, settings: Settings, owner: Owner) -> OwnerQuota:
    """Return an owner's usage and limits."""
    own, limits = session.get(Quota, owner.id), limits_of(session, settings, owner)
    allowances = {
        kind: Allowance(
            used=used_by(session, owner, kind),
            allowed=limits.get(kind),
            own=getattr(own, kind, None) is not None,
        )
        for kind in KINDS
    }
    return OwnerQuota(owner=owner.name, **allowances)


def change_quota(
    session: Session, settings: Settings, caller: Identity, name: str, wanted: NewQuota
) -> OwnerQuota:
    """Set the limits of an owner. For administrators. Existing content remains, even if it exceeds a new
    limit."""
    rights.require_administrator(caller)
    owner = rights.find_owner(session, caller, name)
    accounts.lock_owner(session, owner)
    own = session.get(Quota, owner.id, populate_existing=True) or Quota(owner_id=owner.id)
    values = wanted.model_dump()
    for kind in KINDS:
        setattr(own, kind, UNLIMITED if values[kind] == "unlimited" else values[kind])
    session.add(own)
    session.flush()
    audit.about(session, owner=owner.name, target=owner.name, **values)
    return describe_quota(session, settings, owner)


def list_own(session: Session, settings: Settings) -> list[OwnerQuota]:
    """Return the owners that have their own limits, by name."""
    query = select(Owner).join(Quota, Quota.owner_id == Owner.id).order_by(Owner.name)
    return [describe_quota(session, settings, owner) for owner in session.scalars(query)]


def _refusal(owner: Owner, kind: Kind, allowed: int, needed: int) -> HubProblem:
    detail = f"with this, `{owner.name}` would have {needed:,} {_WORDS[kind]}, but the limit is {allowed:,}"
    hint = f"see `wander env owner quota {owner.name}`; delete something, or ask an administrator"
    hint += " of the hub to raise the limit"
    exceeded = [{"limit": kind, "allowed": allowed, "needed": needed}]
    return HubProblem(403, "quota_exceeded", detail, hint=hint, errors=exceeded)
