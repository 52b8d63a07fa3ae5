"""Import of an archive into a hub, which may have other content.

The rows are first loaded into a temporary database with the schema of the archive, and migrated to the schema
of this release. Name conflicts are reported before anything is written. Then the objects are stored, each
checked by its digest. Finally, each environment and model is added in one transaction that also records its
import. The same command therefore continues after an interruption, and changes nothing if everything exists.
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
from wander.wire.untrusted_text import MANIFEST
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
from wander_hub.leaderboards import environment_listing
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
from wander_hub.upload.archives import limits
from wander_hub.verification import service as verification

_UNPACKED, _TIMES = 2**30, 100
"""Default limit of the unpacked rows: this number of bytes plus a multiple of their compressed size."""
_COLUMNS = {
    "owners": ("id", "name", "private_by_default", "internal_by_default", "created_at"),
    "users": ("id", "name", "created_at"),
    "environments": ("id", "owner_id", "name"),
    "models": ("id", "owner_id", "name"),
    "signing_keys": ("id", "user_id", "fingerprint"),
}
"""Columns that are read from all rows of a table, by table."""
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_TOLD = 20
_TABLES = Base.metadata.tables
_FAULTS = (
    *(ZstdError, SQLAlchemyError, CommandError),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
"""Exceptions that malformed rows can raise."""


@dataclass(frozen=True)
class Choices:
    """The operator's decisions about names, and the size limit."""

    under: str | None = None
    """Owner under which the content of the archive's only owner is imported."""
    merge: bool = False
    """Whether owners and users with the same names are the same ones."""
    unpacked: int | None = None
    """Limit of the unpacked rows in bytes; by default a gigabyte plus a hundred times the compressed size."""


@dataclass
class _Import:
    """The import of one archive into one hub."""

    database: Database
    storage: Storage
    source: Connection
    """Rows of the archive, with the schema of this release."""
    sha256: str
    """Digest of the archive's rows, which identifies it when the import is repeated."""
    choices: Choices
    origin: audit.Origin
    objects: dict[str, int | None]
    owners: dict[int, str]
    """Owners of the archive, by their ids in the archive."""
    keys: dict[str, dict[int, int]] = field(default_factory=dict)
    """Ids in this hub by id in the archive, by table."""

    def rows(self, name: str) -> Sequence[Row[Any]]:
        columns = _TABLES[name].c
        query = select(*(columns[key] for key in _COLUMNS[name]))
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
    """Import an archive; return the number of its environments and models, and how many of them are new."""
    choices = choices or Choices()
    # A manifest in ASCII-only JSON has at most three times as many characters as it has bytes.
    longest = 3 * MANIFEST.most_bytes + limits.MAX_METADATA_BYTES
    with path.open("rb") as file, _scratch(file, longest, choices.unpacked) as (source, sha256):
        objects = needed_objects(source, roots_of(None))
        owners = _TABLES["owners"].c
        named = {key: name for key, name in source.execute(select(owners.id, owners.name))}
        work = _Import(database, storage, source, sha256, choices, origin, objects, named)
        _refuse_bad_names(work)
        database.commit(ensure_administrator)  # first, so that a name of the archive cannot take that role
        # Use a snapshot, so that objects of a concurrent import of this archive do not count as conflicts.
        with database.read(HUB, one_moment=True) as session:
            _refuse_another(session, work)
            _refuse_taken(session, work)
        archive.store_objects(file, storage, objects)
        work.keys.update(database.commit(partial(_name_people, work=work), HUB))
        counts = {name: 0 for name in ("environments", "models")} | {"new": 0}
        for name in ("environments", "models"):
            work.keys[name] = {}
            for row in work.rows(name):
                try:
                    key, fresh = database.commit(partial(_place, work=work, name=name, row=row), HUB)
                except IntegrityError as error:
                    detail = f"`{row.name}` conflicts with an existing name"
                    raise HubProblem(409, "names_taken", detail, hint="run the same command again") from error
                work.keys[name][row.id] = key
                counts[name] += 1
                counts["new"] += fresh
    queue = TableQueue.of(settings, database)
    with database.read(HUB) as session:
        jobless = verification.list_jobless(session, settings)
    ask = partial(verification.request_after_post, queue=queue, settings=settings)
    for run_id in jobless:
        database.commit(partial(ask, run_id=run_id), HUB)
    return counts


@contextmanager
def _scratch(file: IO[bytes], longest: int, most: int | None) -> Iterator[tuple[Connection, str]]:
    """Yield a temporary database with the archive's rows and this release's schema, and the digest of the
    rows."""
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
                    raise bad_copy(f"its rows are not valid ({type(error).__name__})") from error
            with scratch.engine.connect() as connection:
                yield connection, sha256
        finally:
            scratch.close()


def _refuse_bad_names(work: _Import) -> None:
    """Reject names that this hub would not allow, because names become paths and addresses."""
    bad = [f"owner `{owner}`" for owner in work.owners.values() if names.owner_fault(owner)]
    bad += [f"user `{user.name}`" for user in work.rows("users") if names.owner_fault(user.name)]
    for table in ("environments", "models"):
        published = [row.name for row in work.rows(table)]
        bad += [f"`{name}`" for name in published if not names.is_environment_name(name)]
    for table, key in (("files", "filename"), ("run_artifacts", "name"), ("model_files", "filename")):
        files = work.source.scalars(select(_TABLES[table].c[key]))
        bad += [f"file `{name}`" for name in files if not _FILENAME.fullmatch(name)]
    if bad:
        raise bad_copy(f"it has invalid names: {', '.join(bad[:_TOLD])}")
    if work.choices.under is None:
        return
    if len({row.owner_id for name in ("environments", "models") for row in work.rows(name)}) > 1:
        raise HubProblem(422, "many_owners", "the archive has content of several owners", hint="omit `--as`")


def _refuse_taken(session: Session, work: _Import) -> None:
    """Raise a problem that lists the conflicts if names of the archive already exist in this hub."""
    came = _came(session, work.sha256)
    owners = work.owners
    taken, here = [], dict[int, Owner | None]()
    for key, name in owners.items():
        here[key] = accounts.owner_named(session, work.name_here(name))
        chosen = work.choices.merge or work.choices.under or name == BUNDLED_OWNER
        if here[key] is not None and not chosen and ("owner", name) not in came:
            taken.append(f"owner `{name}`")
    for user in work.rows("users"):
        known = accounts.user_named(session, user.name) or accounts.owner_named(session, user.name)
        is_own_owner = user.name in owners.values() and work.choices.under is None
        if known and not work.choices.merge and ("user", user.name) not in came and not is_own_owner:
            taken.append(f"user `{user.name}`")
    fresh: list[int] = []
    for row in work.rows("environments"):
        if ("environment", f"{owners[row.owner_id]}/{row.name}") in came:
            continue
        fresh.append(row.id)
        owner = here[row.owner_id]
        wanted = {(owner, project) for project in (row.name, *_projects(work, row.id))}
        former = _TABLES["former_names"].c
        query = select(former.owner_id, former.name).where(former.environment_id == row.id)
        wanted |= {(here[owner_id], name) for owner_id, name in work.source.execute(query)}
        for holder, name in sorted(wanted, key=lambda pair: pair[1]):
            if holder is not None and environments.find_taken(session, holder.id, name) is not None:
                taken.append(f"environment `{holder.name}/{name}`")
    for row in work.rows("models"):
        owner = here[row.owner_id]
        known_model = owner is not None and models.find_taken(session, owner.id, row.name) is not None
        if known_model and ("model", f"{owners[row.owner_id]}/{row.name}") not in came:
            taken.append(f"model `{work.name_here(owners[row.owner_id])}/{row.name}`")
    taken += [f"run `{run_id}`" for run_id in _taken_runs(session, work, fresh)]
    taken += [f"signing key `{fingerprint}`" for fingerprint in _taken_keys(session, work)]
    if taken:
        more = f" and {len(taken) - _TOLD} more" if len(taken) > _TOLD else ""
        hint = "pass `--as OWNER` to import one owner under another name, or `--merge` if owners and"
        hint += " users with the same names are the same"
        detail = f"nothing was imported, because these already exist: {', '.join(taken[:_TOLD])}{more}"
        raise HubProblem(409, "names_taken", detail, hint=hint)


def _refuse_another(session: Session, work: _Import) -> None:
    """Raise a problem if a part of the archive was already imported under another owner."""
    came = _came(session, work.sha256)
    for name in work.owners.values():
        key = came.get(("owner", name))
        began = session.get_one(Owner, key).name if key is not None else None
        if began not in (None, work.name_here(name)):
            hint = f"continue with `--as {began}`" if began != name else "continue without `--as`"
            detail = f"a part of `{name}` in this archive was already imported as `{began}`"
            raise HubProblem(409, "names_taken", detail, hint=hint)


def _projects(work: _Import, environment: int) -> set[str]:
    files = _TABLES["files"].c
    filenames = work.source.scalars(select(files.filename).where(files.environment_id == environment))
    return {names.distribution_of(filename) for filename in filenames}


def _taken_runs(session: Session, work: _Import, fresh: list[int]) -> Iterator[str]:
    runs = _TABLES["runs"].c
    run_ids = work.source.scalars(select(runs.run_id).where(runs.environment_id.in_(fresh)))
    for batch in run_ids.partitions(AT_ONCE):
        yield from session.scalars(select(Run.run_id).where(Run.run_id.in_(batch)))


def _taken_keys(session: Session, work: _Import) -> Iterator[str]:
    """Yield the signing keys that belong to another user in this hub."""
    people = {user.id: user.name for user in work.rows("users")}
    for key in work.rows("signing_keys"):
        query = select(User.name).join(SigningKey, SigningKey.user_id == User.id)
        holder = session.scalar(query.where(SigningKey.fingerprint == key.fingerprint))
        if holder not in (None, people[key.user_id]):
            yield str(key.fingerprint)


def _came(session: Session, sha256: str) -> dict[tuple[str, str], int]:
    """Return the objects of an archive that were already imported, with their ids."""
    query = select(Import.kind, Import.name, Import.key).where(Import.archive == sha256)
    return {(kind, name): key for kind, name, key in session.execute(query)}


def _name_people(session: Session, work: _Import) -> dict[str, dict[int, int]]:
    """Return the ids of owners and users in this hub, after adding the missing ones.

    An added user has no password, token or role. The user only reserves the name.
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
            if accounts.owner_named(session, row.name) is None:
                new_owner(session, row.name)
            user = User(name=row.name, admin=False, created_at=row.created_at)
            session.add(user)
            session.flush()
        users[row.id] = user.id
        note("user", row.name, user.id)
    return {"owners": owners, "users": users}


def _place(session: Session, work: _Import, name: str, row: Row[Any]) -> tuple[int, bool]:
    """Add all rows of an environment or a model; return its id, and whether it is new."""
    owner = work.owners[row.owner_id]
    kind, label = name.removesuffix("s"), f"{owner}/{row.name}"
    known = session.get(Import, (work.sha256, kind, label))
    if known is not None:
        return known.key, False
    noted = Import(archive=work.sha256, kind=kind, name=label, key=0, at=now())
    session.add(noted)
    session.flush()  # a concurrent import of this archive waits here and then sees this row
    work.database.lock_objects(session, exclusive=False)
    keys = {table: dict(ids) for table, ids in work.keys.items()}
    try:
        objects = _add_rows(session, work, name, row.id, keys)
    except (KeyError, TypeError, ValueError) as error:
        raise bad_copy(f"the rows of `{label}` are inconsistent") from error
    if lost := sorted(sha256 for sha256 in objects if not work.storage.exists(sha256)):
        detail = f"objects of `{label}` were deleted during the import, such as `{lost[0]}`"
        raise HubProblem(409, "object_missing", detail, hint="run the same command again")
    noted.key = keys[name][row.id]
    if name == "environments":
        options = [joinedload(Environment.owner)]
        environment = session.get_one(Environment, noted.key, options=options)
        environments.lock_environment(session, environment)
        environment_listing.derive(session, environment)
        index.write_pages(session, environment)
    details = {"archive": work.sha256, "name": label, "objects": len(objects)}
    here = work.name_here(owner)
    audit.record(session, work.origin, owner=here, target=f"{here}/{row.name}", **details)
    return noted.key, True


def _add_rows(
    session: Session, work: _Import, name: str, root: int, keys: dict[str, dict[int, int]]
) -> set[str]:
    """Insert the rows of an environment or model with ids of this hub; return the digests of their
    objects."""
    objects = set()
    for table, query in rows_below(one_of(name, root)):
        if table.name == "private_names":
            continue  # already added with their owner
        numbered = table.name != "runs" and "id" in table.c and isinstance(table.c.id.type, Integer)
        columns = [column.name for column in table.c if not (numbered and column.name == "id")]
        target = writable(table.name, columns)
        waiting = list[dict[str, Any]]()
        known = keys.setdefault(table.name, {}) if numbered else {}
        holds = object_column(table)
        for row in work.source.execute(query.order_by(*table.primary_key.columns)).mappings():
            values = _values_here(table, dict(row), keys, work.sha256)
            if holds and values[holds] in work.objects:
                objects.add(values[holds])
            if numbered:
                known[row["id"]] = _add_numbered(session, table, target, values)
                continue
            waiting.append(values)
            # The manifest of one run may be as large as all other rows together.
            if len(waiting) == AT_ONCE or table.name == "runs":
                session.execute(insert(target), waiting)
                waiting.clear()
        if waiting:
            session.execute(insert(target), waiting)
    return objects


def _add_numbered(session: Session, table: Table, target: Any, values: dict[str, Any]) -> int:
    if table.name == "signing_keys":  # a key can have signed runs of several environments
        key_id = session.scalar(select(SigningKey.id).where(SigningKey.fingerprint == values["fingerprint"]))
        if key_id is not None:
            return key_id
    del values["id"]
    added = session.execute(insert(target).values(values).returning(table.c.id))
    return int(added.scalar_one())


def _values_here(
    table: Table, values: dict[str, Any], keys: dict[str, dict[int, int]], sha256: str
) -> dict[str, Any]:
    """Return a row for this hub: with this hub's ids, and with sanitized HTML."""
    for column in table.c:
        for foreign_key in column.foreign_keys:
            there = keys.get(foreign_key.column.table.name)
            if there is None or values[column.name] is None:
                continue
            if column.nullable:
                values[column.name] = there.get(values[column.name])
            else:
                values[column.name] = there[values[column.name]]
    if table.name == "versions":
        plain = render(values["readme"], "text/plain")
        values["readme_html"] = plain if values["readme_html"] == plain else clean(values["readme_html"])
    elif table.name == "model_revisions":
        values["card_html"] = clean(values["card_html"])
    elif table.name == "jobs" and not values["key"].startswith((verification.KIND, "examine")):
        # The original key refers to ids of the other hub.
        values["key"] = f"imported {sha256[:16]} {values['id']}"
    return values
