"""Shared parts of the administrator's commands: options, database access and output."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from sqlalchemy.orm import Session

from wander_hub.audit import Origin, recorded
from wander_hub.database import Database, Result
from wander_hub.identity import HUB
from wander_hub.settings import NoHub, Settings
from wander_hub.storage import folder_mode, make_data_folder

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="WANDER_HUB_DATA",
    help="folder of the database and files  [default: wander-hub-data]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")


def read_settings(**given: Any) -> Settings:
    """Return the hub's settings with a command's options, and set the process's file mode to match."""
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    os.umask(0o777 & ~folder_mode(settings))
    return settings


@contextmanager
def open_database(settings: Settings, *, make: bool = False) -> Iterator[Database]:
    """Yield the migrated database of a hub, which may be running.

    Raises `NoHub` if the data folder does not contain a hub, unless `make` is true. A mistyped folder
    therefore does not become a new hub.
    """
    if make and settings.database_url is None:
        make_data_folder(settings)
    database = Database(settings.resolved_database_url)
    try:
        # SQLite creates a missing file when it connects, so check for the file first.
        exists = settings.database_url is not None or Path(database.engine.url.database or "").is_file()
        if not make and not (exists and database.is_begun()):
            raise NoHub(settings)
        database.migrate()
        yield database
    finally:
        database.close()


@contextmanager
def reading(data: Path | None) -> Iterator[Session]:
    """Open a read-only session that sees the whole hub."""
    with open_database(read_settings(data=data)) as database, database.read(HUB) as session:
        yield session


def print_row(row: dict[str, Any], as_json: bool, text: str) -> None:
    """Print one result as JSON or as text."""
    click.echo(json.dumps(row) if as_json else text)


def print_rows(rows: list[dict[str, Any]], as_json: bool, empty: str) -> None:
    """Print rows as JSON, or as tab-separated columns with a header line.

    `empty` is printed on standard error instead of an empty table.
    """
    if as_json:
        click.echo(json.dumps({"data": rows, "next": None}))
        return
    if not rows:
        click.echo(empty, err=True)
    for number, row in enumerate(rows):
        if number == 0:
            click.echo("\t".join(row))
        click.echo("\t".join(_cell(value) for value in row.values()))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def confirm(word: str, what: str, *, yes: bool) -> None:
    """Ask for a word at a terminal before a change that cannot be undone. Without a terminal, `--yes` is
    required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"pass `--yes` to {what} without a terminal")
    if click.prompt(f"to {what}, type `{word}`", err=True) != word:
        raise click.Abort


def commit(action: str, change: Callable[[Session, Settings], Result], data: Path | None) -> Result:
    """Run a change as the operator, with an entry in the audit log."""
    settings = read_settings(data=data)
    with open_database(settings) as database:
        work = recorded(lambda session: change(session, settings), by_command(action))
        return database.commit(work, HUB)


def by_command(action: str) -> Origin:
    """Return the origin of a change that a command makes, for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # inside a container, the user id may lack a name
        name = f"uid {os.getuid()}"
    return Origin(action, "wander-hub", address=f"the command line of {name}")
