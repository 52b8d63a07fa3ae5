"""What the administrator's commands share: options, the hub's database, and how results are printed."""

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
from wander_hub.server.data_folder import NoHub
from wander_hub.settings import Settings
from wander_hub.storage import folder_mode, make_data_folder

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="WANDER_HUB_DATA",
    help="folder of database and files  [default: wander-hub-data]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")


def read_settings(**given: Any) -> Settings:
    """Return the hub's settings with the options of a command, and have files made with their rights."""
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    os.umask(0o777 & ~folder_mode(settings))
    return settings


@contextmanager
def open_database(settings: Settings, *, make: bool = False) -> Iterator[Database]:
    """Yield the migrated database of a hub, whether that is running or not.

    Raises `NoHub` where there is none, unless a command is there to `make` one: a folder that was mistyped
    becomes no hub by that.
    """
    if make and settings.database_url is None:
        make_data_folder(settings)
    database = Database(settings.resolved_database_url)
    try:
        # SQLite makes the file that it is asked about.
        begun = settings.database_url is not None or Path(database.engine.url.database or "").is_file()
        if not make and not (begun and database.is_begun()):
            raise NoHub(settings)
        database.migrate()
        yield database
    finally:
        database.close()


@contextmanager
def reading(data: Path | None) -> Iterator[Session]:
    """Give a session that sees all of the hub, and whose work is thrown away."""
    with open_database(read_settings(data=data)) as database, database.read(HUB) as session:
        yield session


def print_row(row: dict[str, Any], as_json: bool, text: str) -> None:
    """Print one result: as JSON, or the text."""
    click.echo(json.dumps(row) if as_json else text)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print a list: as JSON, or as columns between tabs below their names."""
    if as_json:
        click.echo(json.dumps({"data": rows, "next": None}))
        return
    for number, row in enumerate(rows):
        if number == 0:
            click.echo("\t".join(row))
        click.echo("\t".join(_cell(value) for value in row.values()))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def confirm(word: str, what: str, *, yes: bool) -> None:
    """Have somebody at a terminal type a word before what cannot be undone; elsewhere they pass `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.BadParameter(f"to {what}, pass --yes")
    if click.prompt(f"to {what}, type `{word}`", err=True) != word:
        raise click.Abort


def commit(action: str, change: Callable[[Session, Settings], Result], data: Path | None) -> Result:
    """Make a change of the operator's, and tell the audit log of it."""
    settings = read_settings(data=data)
    with open_database(settings) as database:
        work = recorded(lambda session: change(session, settings), by_command(action))
        return database.commit(work, HUB)


def by_command(action: str) -> Origin:
    """Return what the audit log tells of what a command does."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # in a container, a number need not have a name
        name = f"uid {os.getuid()}"
    return Origin(action, "wander-hub", address=f"the command line of {name}")
