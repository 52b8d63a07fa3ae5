"""Brings an archive into a hub, which may have other things already.

The rows go into a database of their own first, at the schema that they were read from, and are brought to
this release's schema by its migrations. What is taken here is told before anything is written. Then come the
objects, each checked by its digest, and then each environment in one transaction, which notes that it came:
the same command goes on where it was killed, and changes nothing when all is there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from alembic.util import CommandError
from sqlalchemy import Connection, Integer, Row, Table, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, joinedload
from wander.wire.gate import MANIFEST
from zstandard import ZstdError

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.accounts.service import new_owner
from wander_hub.database import Base, Database, now
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment
from wander_hub.environments.readme import clean, render
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.index import repository as index_rows
from wander_hub.index import service as index
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards import listing
from wander_hub.models import repository as models
from wander_hub.names import BUNDLED_OWNER
from wander_hub.operation import archive
from wander_hub.operation.backup import AT_ONCE, bad_copy, load_rows, read_rows, writable
from wander_hub.operation.belongings import needed_objects, object_column, one_of, roots_of, rows_below
from wander_hub.operation.export import FORMAT
from wander_hub.operation.models import Import
from wander_hub.rights.tokens import ensure_administrator
from wander_hub.runs.models import Run, SigningKey
from wander_hub.settings import Settings
from wander_hub.storage import Storage, digest_of
from wander_hub.verification import service as verification

_UNPACKED, _TIMES = 2**30, 100
"""Bytes that the rows of any archive may unpack to, and how many times their own size in it."""
_COLUMNS = {
    "owners": ("id", "name", "private_by_default", "internal_by_default", "created_at"),
    "users": ("id", "name", "created_at"),
    "environments": ("id", "owner_id", "name"),
    "models": ("id", "owner_id", "name"),
    "signing_keys": ("id", "user_id", "fingerprint"),
}
"""By table, what is read of all rows at once."""
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_TOLD = 20
_TABLES = Base.metadata.tables
_FAULTS = (
    *(ZstdError, SQLAlchemyError, CommandError),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
"""What rows raise that no hub wrote."""


@dataclass(frozen=True)
class Choices:
    """What the operator says about names."""

    under: str | None = None
    """The owner that gets what the archive's only owner has."""
    merge: bool = False
    """Owners and users whose names are here already are the same ones."""
    unpacked: int | None = None
    """Bytes that the rows may unpack to; unset: a gigabyte, and a hundred times what they are packed."""


@dataclass
class _Import:
    """One archive on its way into one hub."""

    database: Database
    storage: Storage
    source: Connection
    """The archive's rows, at this release's schema."""
    sha256: str
    """Digest of its rows, by which it is known again."""
    choices: Choices
    origin: audit.Origin
    objects: dict[str, int | None]
    owners: dict[int, str]
    """The owners of the archive, by their keys there."""
    keys: dict[str, dict[int, int]] = field(default_factory=dict)
    """By table, the keys here of rows that have other keys in the archive."""

    def rows(self, name: str) -> Sequence[Row[Any]]:
        columns = _TABLES[name].c
        query = select(*(columns[one] for one in _COLUMNS[name]))
        return self.source.execute(query.order_by(columns.id)).all()

    def name_here(self, owner: str) -> str:
        return self.choices.under or owner


def bring(
    database: Database,
    storage: Storage,
    path: Path,
    *,
    settings: Settings,
    origin: audit.Origin,
    choices: Choices | None = None,
) -> dict[str, int]:
    """Bring an archive in; return how many environments and models it has, and how many of them are new."""
    choices = choices or Choices()
    # A manifest in JSON without other letters than ASCII is at most three times its bytes.
    longest = 3 * MANIFEST.most_bytes + settings.max_metadata_bytes
    with path.open("rb") as file, _scratch(file, longest, choices.unpacked) as (source, sha256):
        objects = needed_objects(source, roots_of(None))
        owners = _TABLES["owners"].c
        named = {key: name for key, name in source.execute(select(owners.id, owners.name))}
        work = _Import(database, storage, source, sha256, choices, origin, objects, named)
        _refuse_bad_names(work)
        database.commit(ensure_administrator)  # lest a name of the archive takes that place
        # Of one moment, lest what another import of this archive brings meanwhile is told as taken.
        with database.read(HUB, one_moment=True) as session:
            _refuse_another(session, work)
            _refuse_taken(session, work)
        archive.store_objects(file, storage, objects)
        work.keys.update(database.commit(partial(_name_people, work=work), HUB))
        told = {name: 0 for name in ("environments", "models")} | {"new": 0}
        for name in ("environments", "models"):
            work.keys[name] = {}
            for row in work.rows(name):
                try:
                    key, fresh = database.commit(partial(_place, work=work, name=name, row=row), HUB)
                except IntegrityError as error:
                    detail = f"`{row.name}` does not fit beside what is here"
                    raise HubProblem(409, "names_taken", detail, hint="run the same command again") from error
                work.keys[name][row.id] = key
                told[name] += 1
                told["new"] += fresh
    queue = TableQueue.of(settings, database)
    with database.read(HUB) as session:
        jobless = verification.list_jobless(session, settings)
    ask = partial(verification.request_after_post, queue=queue, settings=settings)
    for run_id in jobless:
        database.commit(partial(ask, run_id=run_id), HUB)
    return told


@contextmanager
def _scratch(file: IO[bytes], longest: int, most: int | None) -> Iterator[tuple[Connection, str]]:
    """Give the rows of an archive in a database of their own, at this release's schema, and their digest."""
    with tempfile.TemporaryDirectory(prefix="wander-import-") as folder:
        scratch = Database(f"sqlite:///{folder}/rows.db")
        try:
            with tempfile.TemporaryFile() as rows:
                archive.read_rows(file, rows)
                sha256, packed = digest_of(rows)
                unpacked = read_rows(rows, longest=longest, most=most or _UNPACKED + _TIMES * packed)
                try:
                    with scratch.engine.execution_options(writes=True).begin() as connection:
                        load_rows(connection, unpacked, FORMAT)
                    scratch.migrate()
                except _FAULTS as error:
                    raise bad_copy(f"its rows are not those of a hub ({type(error).__name__})") from error
            with scratch.engine.connect() as connection:
                yield connection, sha256
        finally:
            scratch.close()


def _refuse_bad_names(work: _Import) -> None:
    """Refuse names that this hub would give nobody, lest they become paths or addresses."""
    bad = [f"owner `{one}`" for one in work.owners.values() if names.owner_fault(one)]
    people = [one.name for one in work.rows("users") if not names.is_foreign(one.name)]
    bad += [f"user `{one}`" for one in people if names.owner_fault(one)]
    for table in ("environments", "models"):
        found = [one.name for one in work.rows(table)]
        bad += [f"`{one}`" for one in found if not names.is_environment_name(one)]
    for table, key in (("files", "filename"), ("run_artifacts", "name"), ("model_files", "filename")):
        files = work.source.scalars(select(_TABLES[table].c[key]))
        bad += [f"file `{one}`" for one in files if not _FILENAME.fullmatch(one)]
    if bad:
        raise bad_copy(f"it holds names that no hub gives: {', '.join(bad[:_TOLD])}")
    if work.choices.under is None:
        return
    if len({one.owner_id for name in ("environments", "models") for one in work.rows(name)}) > 1:
        raise HubProblem(422, "many_owners", "the archive holds what several owners have", hint="omit `--as`")


def _refuse_taken(session: Session, work: _Import) -> None:
    """Refuse an archive that needs names which are taken here, and say which."""
    came = _came(session, work.sha256)
    owners = work.owners
    taken, here = [], dict[int, Owner | None]()
    for key, name in owners.items():
        here[key] = accounts.owner_named(session, work.name_here(name))
        chosen = work.choices.merge or work.choices.under or name == BUNDLED_OWNER
        if here[key] is not None and not chosen and ("owner", name) not in came:
            taken.append(f"owner `{name}`")
    for one in work.rows("users"):
        known = accounts.user_named(session, one.name) or accounts.owner_named(session, one.name)
        mine = one.name in owners.values() and work.choices.under is None
        if known and not work.choices.merge and ("user", one.name) not in came and not mine:
            taken.append(f"user `{one.name}`")
    fresh: list[int] = []
    for row in work.rows("environments"):
        if ("environment", f"{owners[row.owner_id]}/{row.name}") in came:
            continue
        fresh.append(row.id)
        owner = here[row.owner_id]
        wanted = {(owner, one) for one in (row.name, *_projects(work, row.id))}
        former = _TABLES["former_names"].c
        query = select(former.owner_id, former.name).where(former.environment_id == row.id)
        wanted |= {(here[owner_id], one) for owner_id, one in work.source.execute(query)}
        for holder, one in sorted(wanted, key=lambda pair: pair[1]):
            if holder is not None and environments.find_taken(session, holder.id, one) is not None:
                taken.append(f"environment `{holder.name}/{one}`")
    for row in work.rows("models"):
        owner = here[row.owner_id]
        known_model = owner is not None and models.find_taken(session, owner.id, row.name) is not None
        if known_model and ("model", f"{owners[row.owner_id]}/{row.name}") not in came:
            taken.append(f"model `{work.name_here(owners[row.owner_id])}/{row.name}`")
    taken += [f"run `{one}`" for one in _taken_runs(session, work, fresh)]
    taken += [f"signing key `{one}`" for one in _taken_keys(session, work)]
    if taken:
        more = f" and {len(taken) - _TOLD} more" if len(taken) > _TOLD else ""
        hint = "`--as OWNER` brings the environments of one owner under another name; `--merge` says that"
        hint += " owners and users of the same name are the same"
        detail = f"taken here, nothing was written: {', '.join(taken[:_TOLD])}{more}"
        raise HubProblem(409, "names_taken", detail, hint=hint)


def _refuse_another(session: Session, work: _Import) -> None:
    """Refuse to go on under another owner than the one under which a part of the archive is already."""
    came = _came(session, work.sha256)
    for name in work.owners.values():
        key = came.get(("owner", name))
        began = session.get_one(Owner, key).name if key is not None else None
        if began not in (None, work.name_here(name)):
            hint = f"go on with `--as {began}`" if began != name else "go on without `--as`"
            detail = f"what `{name}` has in this archive is coming here as what `{began}` has"
            raise HubProblem(409, "names_taken", detail, hint=hint)


def _projects(work: _Import, environment: int) -> set[str]:
    files = _TABLES["files"].c
    found = work.source.scalars(select(files.filename).where(files.environment_id == environment))
    return {names.distribution_of(one) for one in found}


def _taken_runs(session: Session, work: _Import, fresh: list[int]) -> Iterator[str]:
    runs = _TABLES["runs"].c
    found = work.source.scalars(select(runs.run_id).where(runs.environment_id.in_(fresh)))
    for some in found.partitions(AT_ONCE):
        yield from session.scalars(select(Run.run_id).where(Run.run_id.in_(some)))


def _taken_keys(session: Session, work: _Import) -> Iterator[str]:
    """Yield the signing keys that are another user's here."""
    people = {one.id: one.name for one in work.rows("users")}
    for one in work.rows("signing_keys"):
        query = select(User.name).join(SigningKey, SigningKey.user_id == User.id)
        holder = session.scalar(query.where(SigningKey.fingerprint == one.fingerprint))
        if holder not in (None, people[one.user_id]):
            yield str(one.fingerprint)


def _came(session: Session, sha256: str) -> dict[tuple[str, str], int]:
    """Return what of an archive is here already, with its keys."""
    query = select(Import.kind, Import.name, Import.key).where(Import.archive == sha256)
    return {(kind, name): key for kind, name, key in session.execute(query)}


def _name_people(session: Session, work: _Import) -> dict[str, dict[int, int]]:
    """Return the keys here of owners and users, adding those that are not here.

    A user that is added has neither password nor token nor role: a name that nobody else can take.
    """
    came, owners, users = _came(session, work.sha256), dict[int, int](), dict[int, int]()

    def note(kind: str, name: str, key: int) -> None:
        if (kind, name) not in came:
            session.add(Import(archive=work.sha256, kind=kind, name=name, key=key, at=now()))

    for row in work.rows("owners"):
        owner = accounts.owner_named(session, work.name_here(row.name))
        if owner is None:
            owner = new_owner(session, work.name_here(row.name))
            owner.private_by_default, owner.internal_by_default = (
                row.private_by_default,
                row.internal_by_default,
            )
            owner.created_at = row.created_at
        owners[row.id] = owner.id
        private = _TABLES["private_names"].c
        projects = work.source.scalars(select(private.project).where(private.owner_id == row.id))
        index_rows.note_private(session, owner.id, projects)
        note("owner", row.name, owner.id)
    for row in work.rows("users"):
        user = accounts.user_named(session, row.name)
        if user is None:
            if accounts.owner_named(session, row.name) is None and not names.is_foreign(row.name):
                new_owner(session, row.name)
            user = User(name=row.name, admin=False, created_at=row.created_at)
            session.add(user)
            session.flush()
        users[row.id] = user.id
        note("user", row.name, user.id)
    return {"owners": owners, "users": users}


def _place(session: Session, work: _Import, name: str, row: Row[Any]) -> tuple[int, bool]:
    """Add all that belongs to an environment or a model; return its key, and whether it is new."""
    owner = work.owners[row.owner_id]
    kind, label = name.removesuffix("s"), f"{owner}/{row.name}"
    known = session.get(Import, (work.sha256, kind, label))
    if known is not None:
        return known.key, False
    noted = Import(archive=work.sha256, kind=kind, name=label, key=0, at=now())
    session.add(noted)
    session.flush()  # another import of this archive waits here, and finds it then
    work.database.lock_objects(session, exclusive=False)
    keys = {table: dict(known) for table, known in work.keys.items()}
    try:
        objects = _add_rows(session, work, name, row.id, keys)
    except (KeyError, TypeError, ValueError) as error:
        raise bad_copy(f"the rows of `{label}` do not fit together") from error
    if lost := sorted(one for one in objects if not work.storage.exists(one)):
        detail = f"objects of `{label}` were removed meanwhile, such as `{lost[0]}`"
        raise HubProblem(409, "object_missing", detail, hint="run the same command again")
    noted.key = keys[name][row.id]
    if name == "environments":
        options = [joinedload(Environment.owner)]
        environment = session.get_one(Environment, noted.key, options=options)
        environments.lock_environment(session, environment)
        listing.derive(session, environment)
        index.write_pages(session, environment)
    told = {"archive": work.sha256, "name": label, "objects": len(objects)}
    here = work.name_here(owner)
    audit.record(session, work.origin, owner=here, target=f"{here}/{row.name}", **told)
    return noted.key, True


def _add_rows(
    session: Session, work: _Import, name: str, root: int, keys: dict[str, dict[int, int]]
) -> set[str]:
    """Add the rows of one environment or model, with keys of this hub; return the objects they need."""
    objects = set()
    for each, query in rows_below(one_of(name, root)):
        if each.name == "private_names":
            continue  # came with their owner
        numbered = each.name != "runs" and "id" in each.c and isinstance(each.c.id.type, Integer)
        target = writable(each.name, [one.name for one in each.c if not (numbered and one.name == "id")])
        waiting = list[dict[str, Any]]()
        known = keys.setdefault(each.name, {}) if numbered else {}
        holds = object_column(each)
        for row in work.source.execute(query.order_by(*each.primary_key.columns)).mappings():
            values = _values_here(each, dict(row), keys, work.sha256)
            if holds and values[holds] in work.objects:
                objects.add(values[holds])
            if numbered:
                known[row["id"]] = _add_numbered(session, each, target, values)
                continue
            waiting.append(values)
            # A manifest alone may be as large as all other rows together.
            if len(waiting) == AT_ONCE or each.name == "runs":
                session.execute(insert(target), waiting)
                waiting.clear()
        if waiting:
            session.execute(insert(target), waiting)
    return objects


def _add_numbered(session: Session, table: Table, target: Any, values: dict[str, Any]) -> int:
    if table.name == "signing_keys":  # one that signed runs of several environments comes once
        found = session.scalar(select(SigningKey.id).where(SigningKey.fingerprint == values["fingerprint"]))
        if found is not None:
            return found
    del values["id"]
    added = session.execute(insert(target).values(values).returning(table.c.id))
    return int(added.scalar_one())


def _values_here(
    table: Table, values: dict[str, Any], keys: dict[str, dict[int, int]], sha256: str
) -> dict[str, Any]:
    """Return a row as it is here: with this hub's keys, and HTML that is safe whoever wrote it."""
    for column in table.c:
        for one in column.foreign_keys:
            there = keys.get(one.column.table.name)
            if there is None or values[column.name] is None:
                continue
            if column.nullable:
                values[column.name] = there.get(values[column.name])
            else:
                values[column.name] = there[values[column.name]]
    if table.name == "environments":
        values["star_count"] = 0  # as an export has them, whoever wrote this one
    elif table.name == "versions":
        plain = render(values["readme"], "text/plain")
        values["readme_html"] = plain if values["readme_html"] == plain else clean(values["readme_html"])
    elif table.name == "model_revisions":
        values["card_html"] = clean(values["card_html"])
    elif table.name == "jobs" and not values["key"].startswith((verification.KIND, "examine")):
        values["key"] = f"imported {sha256[:16]} {values['id']}"  # the old one names a version by its key
    return values
