"""Queries on models. Every read starts from `visible`, so that none can forget a permission."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, true
from sqlalchemy.orm import Session, contains_eager, defer, joinedload, selectinload

from wander_hub.accounts.models import Owner
from wander_hub.database import READER
from wander_hub.identity import Identity
from wander_hub.models.models import Model, Revision, RevisionFile


def _readable(session: Session) -> ColumnElement[bool]:
    """Return the condition on models that holds for those the session's reader may see.

    Roles are those on the owner; a token that is for one environment alone shows no private model.
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
    """Return the statement every read builds on: the models the caller may see, owner loaded."""
    query = select(Model).join(Model.owner).options(contains_eager(Model.owner))
    return query.where(_readable(session))


def visible_revisions(session: Session) -> Select[Revision]:
    """Return the statement on the revisions of models that the caller may see, with their files."""
    whole = (joinedload(Revision.pushed_by), selectinload(Revision.files))
    owned = contains_eager(Revision.model).contains_eager(Model.owner)
    query = select(Revision).join(Revision.model).join(Model.owner)
    return query.where(_readable(session)).options(*whole, owned)


def model_named(session: Session, owner: str, name: str) -> Model | None:
    """Return one model, a deleted one too."""
    return session.scalar(visible(session).where(Owner.name == owner, Model.name == name))


def find_taken(session: Session, owner_id: int, name: str) -> Model | None:
    """Return what holds a name, seen or unseen: names are never given twice."""
    query = select(Model).where(Model.owner_id == owner_id, Model.name == name)
    return session.scalar(query.options(joinedload(Model.owner)))


def models_of(session: Session, owner_id: int, limit: int) -> Sequence[Model]:
    """Return models of an owner."""
    query = visible(session).where(Model.owner_id == owner_id, Model.deleted_at.is_(None))
    return session.scalars(query.order_by(Model.name).limit(limit)).all()


def newest_of(session: Session, limit: int) -> Sequence[Revision]:
    """Return the newest revisions of public models, of each model one."""
    last = select(func.max(Revision.id)).where(Revision.deleted_at.is_(None)).group_by(Revision.model_id)
    query = select(Revision).join(Revision.model).join(Model.owner).where(Revision.id.in_(last))
    query = query.where(Model.private.is_(False), Model.deleted_at.is_(None)).options(
        contains_eager(Revision.model).contains_eager(Model.owner), joinedload(Revision.pushed_by)
    )
    return session.scalars(query.order_by(Revision.id.desc()).limit(limit)).all()


def list_newest(session: Session, word: str, before: int | None, limit: int) -> Sequence[Revision]:
    """Return the newest revision of each model that the caller may see and whose name holds a word, the last
    pushed first, from before a revision on.
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
    """Return every revision of a model, the newest first."""
    query = visible_revisions(session).where(Revision.model_id == model.id)
    return session.scalars(query.order_by(Revision.id.desc())).all()


def names_of_weights(session: Session, weights: Iterable[str | None]) -> dict[str, str]:
    """Return `owner/name@revision` for those digests of weights that are here: what was pushed first."""
    wanted = {one for one in weights if one is not None}
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
    """Return who pushed weights first, by their digest; weights that the reader may not see count too."""
    wanted = set(weights)
    if not wanted:
        return {}
    query = select(Revision.weights_sha256, Revision.pushed_by_id)
    query = query.where(Revision.weights_sha256.in_(wanted)).order_by(Revision.id.desc())
    return {sha256: user_id for sha256, user_id in session.execute(query)}


def held_files(session: Session, owner_id: int, name: str) -> dict[tuple[str, str], int]:
    """Return the sizes of the files that a model has, by name and digest."""
    query = select(RevisionFile.filename, RevisionFile.sha256, RevisionFile.size)
    query = query.join(Revision, RevisionFile.revision_id == Revision.id).join(Revision.model)
    query = query.where(Model.owner_id == owner_id, Model.name == name, Revision.deleted_at.is_(None))
    return {(filename, sha256): size for filename, sha256, size in session.execute(query)}
