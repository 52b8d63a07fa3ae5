"""Commands on what the hub follows on other hubs: `wander-hub mirror`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wander_hub.cli.options import (
    AsJson,
    Data,
    by_command,
    commit,
    group,
    open_database,
    print_row,
    print_rows,
    read_settings,
    reading,
)
from wander_hub.identity import HUB

mirror_app = group("Follow owners and environments of other hubs.")


@mirror_app.command("add")
def add_mirror(
    url: str,
    what: Annotated[str, typer.Argument(metavar="OWNER[/NAME]")],
    token_file: Annotated[
        Path | None, typer.Option(help="file on the hub's machine with a token of the other hub")
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Follow an owner of another hub, or one environment, under the same name; the running hub brings it.

    \b
    wander-hub mirror add https://hub.example.org games
    wander-hub mirror add https://hub.example.org games/chess --token-file /etc/wander/upstream-token
    """
    from wander_hub.mirrors import service

    owner, _, name = what.partition("/")
    settings = read_settings(data=data)
    with open_database(settings) as database:
        mirror = service.add(database, settings, by_command("mirror.add"), url, owner, name, token_file)
    print_row(_row(mirror), as_json, f"mirror {mirror.id} follows `{mirror.target}` of {mirror.url}")


@mirror_app.command("list")
def list_mirrors(data: Data = None, as_json: AsJson = False) -> None:
    """List what is followed, and what could not be brought."""
    from wander_hub.mirrors import service

    with reading(data) as session:
        rows = [_row(one) for one in service.list_all(session)]
    print_rows(rows, as_json)


@mirror_app.command("remove")
def remove_mirror(
    number: int,
    release: Annotated[
        bool, typer.Option("--release", help="what came becomes this hub's own, and takes versions here")
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Follow something no more; what came stays."""
    from wander_hub.mirrors import service

    mirror = commit(
        "mirror.remove", lambda session, _: service.remove(session, number, release=release), data
    )
    print_row(_row(mirror), as_json, f"removed mirror {number}")


@mirror_app.command("sync")
def sync_mirrors(
    numbers: Annotated[list[int] | None, typer.Argument(help="[default: all]")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Look now, compare everything, and say what came; exit status 1 when something could not be brought."""
    from wander_hub.jobs import TableQueue
    from wander_hub.mirrors import service
    from wander_hub.storage import Storage

    settings = read_settings(data=data)
    rows, failed = list[dict[str, Any]](), False
    with open_database(settings) as database:
        queue, storage = TableQueue.of(settings, database), Storage.of(settings)
        with database.read(HUB) as session:
            known = [one.id for one in service.list_all(session)]
        if missing := sorted(set(numbers or ()).difference(known)):
            raise service.not_there(missing[0])
        for number in numbers or known:
            found = service.look(settings, database, storage, queue, number, thorough=True)
            database.commit(lambda session, n=number, o=found: service.keep(session, settings, n, o), HUB)  # type: ignore[misc]
            row = {
                "mirror": number,
                "versions": found.versions,
                "runs": found.runs,
                "problems": found.problems,
            }
            rows.append(row)
            failed |= bool(found.problems)
    print_rows(rows, as_json)
    if failed:
        raise typer.Exit(1)


def _row(mirror: Any) -> dict[str, Any]:
    looked = mirror.looked_at.isoformat() if mirror.looked_at is not None else None
    row = {"mirror": mirror.id, "url": mirror.url, "follows": mirror.target, "looked_at": looked}
    return row | {"problems": mirror.problems}
