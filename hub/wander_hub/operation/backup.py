"""Backups of a whole hub: made while it runs, the same for every database and storage, and checked by digest.

A backup is a folder with `objects`, stored under their digests as in the data folder, and
`database.jsonl.zst`, a consistent snapshot of all rows. Objects are copied before and after the snapshot, so
that every object that the rows refer to is included. Existing objects are not copied again: an interrupted
backup continues, and the next backup adds only what is new. A restore writes objects first and then all rows
in one transaction, so it can be interrupted as well.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
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
from wander_hub.leaderboards import environment_listing
from wander_hub.operation import tables  # noqa: F401 - registers every table
from wander_hub.runs.models import without_examples
from wander_hub.storage import Storage, copy_pieces

FORMAT = "wander.backup/1"
ROWS = "database.jsonl.zst"
_DERIVED = ("alembic_version", "environment_search", "sqlite_")
"""Name prefixes of tables without a model, which each database creates for itself."""
_NOT_COPIED = ("content_revision", "transfers", "transfer_parts")
"""Tables that are not copied. Clients repeat interrupted transfers, and each database has its own counter of
changes."""
AT_ONCE, _CHARACTERS_AT_ONCE = 500, 8 * 2**20
"""Maximum number of rows, and of their characters, in one statement."""
_WINDOW = 8 * 2**20
"""Memory limit of the decompressor. `write_rows` needs less."""
_LONGEST_LINE = 256 * 2**20
"""Maximum number of characters of a row. The largest rows have the manifest of a run or an index page."""


def back_up(database: Database, storage: Storage, folder: Path) -> dict[str, int]:
    """Update a backup of a hub that may be running; return the number of its objects and rows.

    Damaged objects are skipped and reported after everything else is copied.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = Storage.open(None, folder / "objects")
    _copy(storage, copies)
    rows = _dump(database, folder / ROWS)
    objects, damaged = _copy(storage, copies)
    _tell_of(damaged)
    return {"objects": objects, "rows": rows}


def restore(database: Database, storage: Storage, folder: Path) -> dict[str, int]:
    """Load a backup into an empty hub, whose database may be of another kind. Raises a problem if the hub is
    not empty."""
    if not (folder / ROWS).is_file():
        raise HubProblem(
            422,
            "bad_copy",
            f"`{folder}` is not a backup: `{ROWS}` is missing",
            hint="pass the folder that `wander-hub backup` wrote",
        )
    with (folder / ROWS).open("rb") as file:
        with database.engine.connect() as connection:
            _refuse_unless_empty(connection)  # check before anything is written
        objects, damaged = _copy(Storage.open(None, folder / "objects"), storage)
        with database.engine.execution_options(writes=True).begin() as connection:
            _refuse_unless_empty(connection)
            rows = load_rows(connection, read_rows(file), FORMAT)
        database.migrate()
    # The text index is not part of the backup. Clearing the marks makes `fill_search` rebuild it.
    with database.write(HUB) as session:
        session.execute(update(Environment).where(Environment.listed).values(marks=""))
    environment_listing.fill_search(database)  # after an interruption, the hub does this when it starts
    _tell_of(damaged)
    return {"objects": objects, "rows": rows}


def _copy(source: Storage, target: Storage) -> tuple[int, list[str]]:
    """Copy the objects that the target lacks; return the number of valid objects, and the paths of damaged
    ones."""
    present = {stored.sha256: stored.size for stored in target.objects()}
    count, damaged = 0, list[str]()
    for stored in source.objects():
        if stored.sha256 is None:
            continue  # not an object of the hub
        count += 1
        if present.get(stored.sha256) == stored.size:
            continue
        with tempfile.TemporaryFile() as file:
            try:
                actual = copy_pieces(source.pieces(stored.sha256), file)
            except FileNotFoundError:
                count -= 1  # deleted in the meantime
                continue
            if actual != stored.sha256:
                count -= 1
                damaged.append(stored.path)
                continue
            target.keep(file, stored.sha256, stored.size)
    return count, damaged


def _tell_of(damaged: list[str]) -> None:
    """Raise a problem for damaged objects that were skipped, after everything else was copied."""
    if damaged:
        listed = ", ".join(f"`{path}`" for path in damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        detail = f"{len(damaged)} objects do not match their digest and were skipped: {listed}"
        raise HubProblem(500, "object_damaged", detail, hint="run `wander-hub fsck` to see what needs them")


def _dump(database: Database, path: Path) -> int:
    """Write a consistent snapshot of all rows, in an order suitable for inserting them; return their
    number."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with database.connect_at_one_moment() as connection, temporary.open("wb") as file:
        _refuse_unknown_tables(connection)
        copied = [table for table in Base.metadata.sorted_tables if table.name not in _NOT_COPIED]
        rows = write_rows(connection, file, FORMAT, [(table.name, select(table)) for table in copied])
    temporary.replace(path)
    return rows


def write_rows(
    connection: Connection,
    file: IO[bytes],
    form: str,
    statements: Iterable[tuple[str, Select[Any]]],
    **header: Any,
) -> int:
    """Write rows as compressed JSON lines, with their digest at the end; return their number.

    Each statement comes with the name of its table, in an order suitable for inserting the rows.
    """
    digest, rows = hashlib.sha256(), 0
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:

        def write(value: Any) -> None:
            line = json.dumps(value, default=_plain).encode() + b"\n"
            digest.update(line)
            packed.write(line)

        revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
        write({"format": form, "revision": revision, "hub": __version__, "made_at": now(), **header})
        for name, query in statements:
            write({"table": name, "columns": [selected.key for selected in query.selected_columns]})
            key = Base.metadata.tables[name].primary_key.columns
            for row in connection.execute(query.order_by(*key).execution_options(yield_per=AT_ONCE)):
                write(list(row))
                rows += 1
        packed.write(json.dumps({"sha256": digest.hexdigest(), "rows": rows}).encode() + b"\n")
    return rows


def _refuse_unknown_tables(connection: Connection) -> None:
    """Raise a problem if the database has a table that a backup would leave out."""
    names = set(look_at(connection).get_table_names()) - set(Base.metadata.tables)
    if unknown := sorted(name for name in names if not name.startswith(_DERIVED)):
        detail = f"the database has tables that this release does not know: `{'`, `'.join(unknown)}`"
        hint = "use the release that serves this hub; move tables of other programs to another database"
        raise HubProblem(409, "table_unknown", detail, hint=hint)


def read_rows(
    file: IO[bytes], *, longest: int = _LONGEST_LINE, most: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the length and value of each line that `write_rows` wrote, and verify the digest at the end.

    For rows from an untrusted source, `longest` and `most` limit the characters of one line and of all lines.
    """
    digest, last, read = hashlib.sha256(), b"", 0
    with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file, closefd=False) as plain:
        lines = io.TextIOWrapper(plain, "utf-8", newline="\n")
        while line := lines.readline(longest):
            read += len(line)
            if len(line) == longest:
                raise bad_copy(f"a row is longer than {longest:,} characters")
            if most is not None and read > most:
                hint = f"if that is correct, pass `--unpacked {10 * most}`"
                raise HubProblem(422, "bad_copy", f"the rows unpack to more than {most:,} bytes", hint=hint)
            if last:
                digest.update(last)
                yield len(last), json.loads(last)
            last = line.encode()
    end = json.loads(last or b"{}")
    if not isinstance(end, dict) or end.get("sha256") != digest.hexdigest():
        raise bad_copy("its rows are truncated or were modified")


def load_rows(connection: Connection, lines: Iterator[tuple[int, Any]], form: str) -> int:
    """Create the schema of a copy in an empty database and insert its rows; return their number.

    A copy with the last schema before 0.1.0 is converted to the schema of 0.1.0.
    """
    _, head = next(lines, (0, None))
    if not isinstance(head, dict) or head.get("format") != form:
        raise bad_copy(f"its format is not `{form}`")
    if head["revision"] > newest_revision():
        raise bad_copy("a newer release made it")
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
        _advance_sequences(connection)
    return rows


def _adapt_unreleased(lines: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Convert rows of the last schema before 0.1.0 to 0.1.0, which has fewer tables and columns."""
    current, names, kept, owners = "", list[str](), list[int](), dict[int, str]()
    for length, value in lines:
        if isinstance(value, dict):
            current, columns = value["table"], value["columns"]
            known = Base.metadata.tables.get(current)
            kept = [] if known is None else [i for i, name in enumerate(columns) if name in known.columns]
            names = [columns[index] for index in kept]
            if kept:
                yield length, {**value, "columns": names}
        elif kept:
            row = dict(zip(names, (value[index] for index in kept), strict=True))
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
        hint = "use an empty data folder or an empty database"
        raise HubProblem(409, "hub_not_empty", "this hub already has users", hint=hint)


def writable(name: str, columns: Iterable[str]) -> TableClause:
    """Return a table with the columns of a copy, whose schema may be an earlier revision."""
    known = Base.metadata.tables.get(name)
    types = {current.name: current.type for current in known.columns} if known is not None else {}
    # SQL NULL must stay NULL instead of becoming the JSON value `null`.
    plain = {key: JSON(none_as_null=True) if isinstance(kind, JSON) else kind for key, kind in types.items()}
    return table(name, *(column(key, plain.get(key)) for key in columns))


def _read(target: ColumnClause[Any], value: Any) -> Any:
    """Convert a JSON value to the type of its column."""
    if isinstance(value, str) and isinstance(target.type, UtcDateTime):
        return datetime.fromisoformat(value)
    if isinstance(value, str) and isinstance(target.type, Date):
        return date.fromisoformat(value)
    longest = target.type.length if isinstance(target.type, String) else None
    if longest is not None and isinstance(value, str) and len(value) > longest:
        raise ValueError(f"`{target.name}` is too long")
    return base64.b64decode(value) if isinstance(target.type, LargeBinary) and value is not None else value


def _advance_sequences(connection: Connection) -> None:
    """Advance PostgreSQL's sequences past the inserted ids."""
    for current in Base.metadata.sorted_tables:
        for key in current.primary_key.columns:
            name = {"table": current.name, "key": key.name}
            sequence = connection.scalar(text("SELECT pg_get_serial_sequence(:table, :key)"), name)
            if sequence is not None:
                last = connection.scalar(select(func.max(key)))
                connection.execute(select(func.setval(sequence, last or 1, last is not None)))


def bad_copy(fault: str) -> HubProblem:
    """Return the problem of an unusable backup or archive."""
    hint = "pass a file that `wander-hub export` wrote, or a folder that `wander-hub backup` wrote"
    return HubProblem(422, "bad_copy", f"cannot read the backup or archive: {fault}", hint=hint)


def _plain(value: Any) -> Any:
    """Return times, dates and bytes as text, because JSON lacks types for them."""
    return value.isoformat() if isinstance(value, date) else base64.b64encode(value).decode()
