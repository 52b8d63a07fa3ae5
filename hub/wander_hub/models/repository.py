"""Queries on models. Every read starts from `visible`, so that none can forget the permissions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, true
from sqlalchemy.orm import Session, contains_eager, defer, joinedload, selectinload

from wander_hub.accounts.models import Owner
from wander_hub.database import READER
from wander_hub.identity import Identity
from wander_hub.models.models import Model, Revision, RevisionFile


def _readable(session: Session) -> ColumnElement[bool]:
    """Return the condition on models that the session's reader may see.

    Only roles on the owner count. A token that is limited to one environment does not show private models.
    """
    reader: Identity | None = session.info.get(READER)
    public = Model.private.is_(False)
    if reader is None or reader.only_environment is not None:
        return public
    held = Model.owner_id.in_(reader.roles) | Model.internal.is_(True)
    mine: list[ColumnElement[bool]] = [true() if reader.admin else held]
    if reader.only_owner is not None:
        mine.append(Model.owner_id == reader.only_owner)
    return or_(public, and_(*mine))


def visible(session: Session) -> Select[Model]:
    """Return the base statement of every read: models that the reader may see, with their owners."""
    query = select(Model).join(Model.owner).options(contains_eager(Model.owner))
    return query.where(_readable(session))


def visible_revisions(session: Session) -> Select[Revision]:
    """Return the statement for revisions of models that the reader may see, with their files."""
    whole = (joinedload(Revision.pushed_by), selectinload(Revision.files))
    owned = contains_eager(Revision.model).contains_eager(Model.owner)
    query = select(Revision).join(Revision.model).join(Model.owner)
    return query.where(_readable(session)).options(*whole, owned)


def model_named(session: Session, owner: str, name: str) -> Model | None:
    """Return a model, even if it is deleted, or None."""
    return session.scalar(visible(session).where(Owner.name == owner, Model.name == name))


def find_taken(session: Session, owner_id: int, name: str) -> Model | None:
    """Return the holder of a name, even if hidden from the reader. Names are never reused."""
    query = select(Model).where(Model.owner_id == owner_id, Model.name == name)
    return session.scalar(query.options(joinedload(Model.owner)))


def models_of(session: Session, owner_id: int, limit: int) -> Sequence[Model]:
    """Return an owner's models, up to a limit."""
    query = visible(session).where(Model.owner_id == owner_id, Model.deleted_at.is_(None))
    return session.scalars(query.order_by(Model.name).limit(limit)).all()


def list_newest(session: Session, word: str, before: int | None, limit: int) -> Sequence[Revision]:
    """Return the newest revision of each model that the reader may see and whose name contains a word.

    The most recently pushed revision comes first. `before` continues after the revision with that id.
    """
    live = select(func.max(Revision.id)).where(Revision.deleted_at.is_(None)).group_by(Revision.model_id)
    query = visible_revisions(session).options(defer(Revision.card_html))
    query = query.where(Revision.id.in_(live), Model.deleted_at.is_(None))
    if word:
        query = query.where((Owner.name + "/" + Model.name).icontains(word, autoescape=True))
    if before is not None:
        query = query.where(Revision.id < before)
    return session.scalars(query.order_by(Revision.id.desc()).limit(limit)).all()


def revisions_of(session: Session, model: Model) -> Sequence[Revision]:
    """Return all revisions of a model, newest first."""
    query = visible_revisions(session).where(Revision.model_id == model.id)
    return session.scalars(query.order_by(Revision.id.desc())).all()


def names_of_weights(session: Session, weights: Iterable[str | None]) -> dict[str, str]:
    """Return for each digest of weights the `owner/name@revision` that was pushed first, if it is on this
    hub."""
    wanted = {digest for digest in weights if digest is not None}
    if not wanted:
        return {}
    query = select(Revision.weights_sha256, Owner.name, Model.name, Revision.revision)
    query = (
        query.join(Revision.model)
        .join(Model.owner)
        .where(
            _readable(session),
            Revision.weights_sha256.in_(wanted),
            Revision.deleted_at.is_(None),
            Revision.yanked.is_(False),
        )
    )
    rows = session.execute(query.order_by(Revision.id.desc()))
    return {sha256: f"{owner}/{name}@{revision[:12]}" for sha256, owner, name, revision in rows}


def first_pushers(session: Session, weights: Iterable[str]) -> dict[str, int]:
    """Return the users who pushed weights first, by digest, including revisions that the reader may not
    see."""
    wanted = set(weights)
    if not wanted:
        return {}
    query = select(Revision.weights_sha256, Revision.pushed_by_id)
    query = query.where(Revision.weights_sha256.in_(wanted)).order_by(Revision.id.desc())
    return {sha256: user_id for sha256, user_id in session.execute(query)}


def held_files(session: Session, owner_id: int, name: str) -> dict[tuple[str, str], int]:
    """Return the sizes of a model's files, by name and digest."""
    query = select(RevisionFile.filename, RevisionFile.sha256, RevisionFile.size)
    query = query.join(Revision, RevisionFile.revision_id == Revision.id).join(Revision.model)
    query = query.where(Model.owner_id == owner_id, Model.name == name, Revision.deleted_at.is_(None))
    return {(filename, sha256): size for filename, sha256, size in session.execute(query)}
