"""What the commands share: their common options, a hub's database, and how results are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wander_hub.database import Database
from wander_hub.settings import Settings

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="folder of database and files  [default: wander-hub-data]", envvar="WANDER_HUB_DATA"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def read_settings(**given: Any) -> Settings:
    """Return the hub's settings, with the options that were given."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Yield the migrated database of a hub, whether that is running or not."""
    if settings.database_url is None:
        settings.data.mkdir(parents=True, exist_ok=True)
    database = Database(settings.resolved_database_url)
    try:
        database.migrate()
        yield database
    finally:
        database.close()


def print_row(row: dict[str, Any], as_json: bool, text: str) -> None:
    """Print one result: as JSON, or the text."""
    typer.echo(json.dumps(row) if as_json else text)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print a list: as JSON, or as columns between tabs below their names."""
    if as_json:
        typer.echo(json.dumps({"data": rows, "next": None}))
        return
    for number, row in enumerate(rows):
        if number == 0:
            typer.echo("\t".join(row))
        typer.echo("\t".join(_cell(value) for value in row.values()))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
