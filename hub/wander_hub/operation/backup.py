"""Copies of a whole hub: made while it runs, the same for every database and storage, checked by digest.

A backup is a folder: `objects`, under their digests as in the data folder, and `database.jsonl.zst`, every
row of one moment. Objects are copied before that moment and once more after it, so that those are there of
which the rows tell. What lies there already is not copied again: a backup that was killed goes on, and the
next one takes what is new. A restore writes objects first, then all rows in one transaction; it may be
killed, too.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any

import zstandard
from alembic import command
from sqlalchemy import (
    JSON,
    ColumnClause,
    Connection,
    Date,
    LargeBinary,
    Select,
    String,
    TableClause,
    column,
    func,
    select,
    table,
    text,
    update,
)
from sqlalchemy import inspect as look_at
from wander.wire import RunManifest

from wander_hub import __version__
from wander_hub.database import (
    FIRST_REVISION,
    UNRELEASED_REVISION,
    Base,
    Database,
    UtcDateTime,
    alembic_config,
    newest_revision,
    now,
)
from wander_hub.environments.models import Environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.index.namespaces import covers
from wander_hub.leaderboards import listing
from wander_hub.operation import tables  # noqa: F401 - registers every table
from wander_hub.runs.models import without_examples
from wander_hub.storage import Storage, copy_pieces

FORMAT = "wander.backup/1"
ROWS = "database.jsonl.zst"
_DERIVED = ("alembic_version", "environment_search", "sqlite_")
"""How tables begin that no model describes: each database makes them for itself."""
_NOT_COPIED = ("content_revision", "transfers", "transfer_parts")
"""Transfers, whose clients send them again, and the count of changes, which each hub has
for itself."""
AT_ONCE, _CHARACTERS_AT_ONCE = 500, 8 * 2**20
"""Rows that are sent to a database at once, and of how many characters."""
_WINDOW = 8 * 2**20
"""Bytes that whoever reads rows keeps of what was unpacked: what `write_rows` asks for is less."""
_LONGEST_LINE = 256 * 2**20
"""Characters; a row holds at most the manifest of a run, or the page of an index."""


def back_up(
    database: Database, storage: Storage, folder: Path, check: Callable[[], None] = lambda: None
) -> dict[str, int]:
    """Bring a backup up to date with a hub that may be running; return how many objects and rows it has.

    Damaged objects are left out, and told of when all else is copied. `check` raises to have it leave off.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = Storage.open(None, folder / "objects")
    _copy(storage, copies, check)
    rows = _dump(database, folder / ROWS)
    objects, damaged = _copy(storage, copies, check)
    _tell_of(damaged)
    return {"objects": objects, "rows": rows}


def restore(database: Database, storage: Storage, folder: Path) -> dict[str, int]:
    """Make a backup the content of an empty hub, whose database may be of another kind; refuse any other."""
    with (folder / ROWS).open("rb") as file:
        with database.engine.connect() as connection:
            _refuse_unless_empty(connection)  # before anything is written
        objects, damaged = _copy(Storage.open(None, folder / "objects"), storage)
        with database.engine.execution_options(writes=True).begin() as connection:
            _refuse_unless_empty(connection)
            rows = load_rows(connection, read_rows(file), FORMAT)
        database.migrate()
    with database.write(HUB) as session:  # the text index is not copied: without marks, it is made anew
        session.execute(update(Environment).where(Environment.listed).values(marks=""))
    listing.fill_search(database)  # where this is killed, the hub does it when it starts
    _tell_of(damaged)
    return {"objects": objects, "rows": rows}


def _copy(
    source: Storage, target: Storage, check: Callable[[], None] = lambda: None
) -> tuple[int, list[str]]:
    """Copy the objects that the target lacks; return how many are whole, and the damaged ones."""
    present = {one.sha256: one.size for one in target.objects()}
    count, damaged = 0, list[str]()
    for one in source.objects():
        check()
        if one.sha256 is None:
            continue  # not an object of the hub's
        count += 1
        if present.get(one.sha256) == one.size:
            continue
        with tempfile.TemporaryFile() as file:
            try:
                found = copy_pieces(source.pieces(one.sha256), file)
            except FileNotFoundError:
                count -= 1  # deleted meanwhile
                continue
            if found != one.sha256:
                count -= 1
                damaged.append(one.path)
                continue
            target.keep(file, one.sha256, one.size)
    return count, damaged


def _tell_of(damaged: list[str]) -> None:
    """Fail for objects that were left out, now that all else is copied."""
    if damaged:
        named = ", ".join(f"`{one}`" for one in damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        detail = f"all is copied but what has other bytes than its name says ({len(damaged)}): {named}"
        raise HubProblem(500, "object_damaged", detail, hint="`wander-hub fsck` tells what needs these")


def _dump(database: Database, path: Path) -> int:
    """Write every row of one moment, in an order in which they can be added again; return how many."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with database.connect_at_one_moment() as connection, temporary.open("wb") as file:
        _refuse_unknown_tables(connection)
        kept = [one for one in Base.metadata.sorted_tables if one.name not in _NOT_COPIED]
        rows = write_rows(connection, file, FORMAT, [(one.name, select(one)) for one in kept])
    temporary.replace(path)
    return rows


def write_rows(
    connection: Connection,
    file: IO[bytes],
    form: str,
    statements: Iterable[tuple[str, Select[Any]]],
    **told: Any,
) -> int:
    """Write rows as compressed lines of JSON, with their digest at the end; return how many.

    The statements come by the name of their table, in an order in which their rows can be added again.
    """
    digest, rows = hashlib.sha256(), 0
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:

        def write(value: Any) -> None:
            line = json.dumps(value, default=_plain).encode() + b"\n"
            digest.update(line)
            packed.write(line)

        revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
        write({"format": form, "revision": revision, "hub": __version__, "made_at": now(), **told})
        for name, query in statements:
            write({"table": name, "columns": [one.key for one in query.selected_columns]})
            key = Base.metadata.tables[name].primary_key.columns
            for row in connection.execute(query.order_by(*key).execution_options(yield_per=AT_ONCE)):
                write(list(row))
                rows += 1
        packed.write(json.dumps({"sha256": digest.hexdigest(), "rows": rows}).encode() + b"\n")
    return rows


def _refuse_unknown_tables(connection: Connection) -> None:
    """Refuse a database with a table that would be left out."""
    names = set(look_at(connection).get_table_names()) - set(Base.metadata.tables)
    if unknown := sorted(one for one in names if not one.startswith(_DERIVED)):
        detail = f"the database has tables that this release does not know: `{'`, `'.join(unknown)}`"
        hint = "use the release that serves this hub; other programs' tables belong into another database"
        raise HubProblem(409, "table_unknown", detail, hint=hint)


def read_rows(
    file: IO[bytes], *, longest: int = _LONGEST_LINE, most: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield what `write_rows` wrote but the end, by which it refuses what is cut or was changed.

    Each with its length. Of rows that somebody else made, `longest` and `most` bound one and all of them, in
    characters.
    """
    digest, last, read = hashlib.sha256(), b"", 0
    with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file, closefd=False) as plain:
        lines = io.TextIOWrapper(plain, "utf-8", newline="\n")
        while line := lines.readline(longest):
            read += len(line)
            if len(line) == longest:
                raise bad_copy(f"a row of it has more than {longest:,} characters")
            if most is not None and read > most:
                hint = f"where that is right, pass `--unpacked {10 * most}`"
                raise HubProblem(422, "bad_copy", f"its rows unpack to more than {most:,} bytes", hint=hint)
            if last:
                digest.update(last)
                yield len(last), json.loads(last)
            last = line.encode()
    end = json.loads(last or b"{}")
    if not isinstance(end, dict) or end.get("sha256") != digest.hexdigest():
        raise bad_copy("its rows are cut, or were changed")


def load_rows(connection: Connection, lines: Iterator[tuple[int, Any]], form: str) -> int:
    """Create the schema of the copy in an empty database and add its rows; return their number.

    A copy of the last schema before 0.1.0 is loaded into that of 0.1.0.
    """
    _, head = next(lines, (0, None))
    if not isinstance(head, dict) or head.get("format") != form:
        raise bad_copy(f"it is not of the form `{form}`")
    if head["revision"] > newest_revision():
        raise bad_copy("it is of a newer release than this one")
    revision = head["revision"]
    if revision == UNRELEASED_REVISION:
        revision, lines = FIRST_REVISION, _adapt_unreleased(lines)
    command.upgrade(alembic_config(connection), revision)
    rows, held, waiting = 0, 0, list[dict[str, Any]]()
    target, names = table(""), list[str]()

    def send() -> None:
        if waiting:
            connection.execute(target.insert(), waiting)
            waiting.clear()

    for length, value in lines:
        if isinstance(value, dict):
            send()
            names = value["columns"]
            target = writable(value["table"], names)
            continue
        if len(waiting) == AT_ONCE or held + length > _CHARACTERS_AT_ONCE:
            send()
            held = 0
        waiting.append(dict(zip(names, map(_read, target.columns, value), strict=True)))
        rows, held = rows + 1, held + length
    send()
    if connection.dialect.name == "postgresql":
        _count_on(connection)
    return rows


def _adapt_unreleased(lines: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of the last schema before 0.1.0 as rows of 0.1.0, which has fewer tables and columns."""
    current, names, kept, owners = "", list[str](), list[int](), dict[int, str]()
    for length, value in lines:
        if isinstance(value, dict):
            current, columns = value["table"], value["columns"]
            known = Base.metadata.tables.get(current)
            kept = [] if known is None else [at for at, name in enumerate(columns) if name in known.columns]
            names = [columns[at] for at in kept]
            if kept:
                yield length, {**value, "columns": names}
        elif kept:
            row = dict(zip(names, (value[at] for at in kept), strict=True))
            if current == "owners":
                owners[row["id"]] = row["name"]
            elif current == "runs" and row["brief"] is None:
                manifest = RunManifest.model_validate_json(row["manifest"])
                row["brief"] = without_examples(manifest).model_dump_json(by_alias=True)
            elif current == "index_pages" and row["in_namespace"] is None:
                row["in_namespace"] = covers(owners[row["owner_id"]], row["project"])
            yield length, list(row.values())


def _refuse_unless_empty(connection: Connection) -> None:
    known = connection.dialect.has_table(connection, "users")
    if known and connection.scalar(text("SELECT count(*) FROM users")):
        hint = "name an empty data folder, or an empty database"
        raise HubProblem(409, "hub_not_empty", "this hub has users already", hint=hint)


def writable(name: str, columns: Iterable[str]) -> TableClause:
    """Return a table with the columns of the backup, which may be of an earlier revision of the schema."""
    known = Base.metadata.tables.get(name)
    types = {one.name: one.type for one in known.columns} if known is not None else {}
    # What was absent stays so, and does not become the JSON word for it.
    plain = {key: JSON(none_as_null=True) if isinstance(one, JSON) else one for key, one in types.items()}
    return table(name, *(column(one, plain.get(one)) for one in columns))


def _read(target: ColumnClause[Any], value: Any) -> Any:
    """Return a value as its column takes it."""
    if isinstance(value, str) and isinstance(target.type, UtcDateTime):
        return datetime.fromisoformat(value)
    if isinstance(value, str) and isinstance(target.type, Date):
        return date.fromisoformat(value)
    longest = target.type.length if isinstance(target.type, String) else None
    if longest is not None and isinstance(value, str) and len(value) > longest:
        raise ValueError(f"`{target.name}` is too long")
    return base64.b64decode(value) if isinstance(target.type, LargeBinary) and value is not None else value


def _count_on(connection: Connection) -> None:
    """Have PostgreSQL number new rows after those that were added with their numbers."""
    for one in Base.metadata.sorted_tables:
        for key in one.primary_key.columns:
            name = {"table": one.name, "key": key.name}
            sequence = connection.scalar(text("SELECT pg_get_serial_sequence(:table, :key)"), name)
            if sequence is not None:
                last = connection.scalar(select(func.max(key)))
                connection.execute(select(func.setval(sequence, last or 1, last is not None)))


def bad_copy(fault: str) -> HubProblem:
    """Return the refusal of a backup or an archive."""
    return HubProblem(422, "bad_copy", f"the copy cannot be used: {fault}", hint="take another copy of it")


def _plain(value: Any) -> Any:
    """Return what JSON has no word for as a text: times, days, and bytes."""
    return value.isoformat() if isinstance(value, date) else base64.b64encode(value).decode()
