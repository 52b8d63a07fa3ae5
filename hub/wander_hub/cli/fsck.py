"""`wander-hub fsck`: does everything that a hub keeps fit together?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from wander_hub.cli.console import AsJson, Data, open_database, print_row, read_settings
from wander_hub.storage import Storage


def fsck(
    repair: Annotated[bool, typer.Option("--repair", help="mend what can be derived")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="compare sizes, read no objects, no runs")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compare database, stored files, index pages, runs and boards; running or not.

    \b
    wander-hub fsck                          report, change nothing
    wander-hub fsck --repair                 make pages, totals, sizes, numbers of runs and boards anew,
                                             remove what nothing needs

    \b
    Exit status: 0 when all is well or was mended, 1 when something is left.
    """
    from wander_hub.fsck import check as checks
    from wander_hub.index.public_files import FOLDER, PublicFiles

    settings = read_settings(data=data)
    if settings.database_url is None and not settings.data.is_dir():
        raise FileNotFoundError(2, "there is no hub", str(settings.data))
    found = []
    with open_database(settings) as database:
        storage = Storage.open(settings.storage_url, settings.data / "objects")
        links = PublicFiles(database, storage, settings.data / FOLDER) if settings.public_files else None
        for one in checks.check(database, storage, repair=repair, quick=quick, links=links):
            found.append(one)
            if not as_json:
                outcome = "  (repaired)" if one.repaired else ""
                typer.echo(f"{one.code}  {one.subject}  {one.detail}{outcome}")
    left = sum(not one.repaired for one in found)
    text = f"{len(found)} findings, {left} left" if found else "all is well"
    print_row({"findings": [asdict(one) for one in found], "left": left}, as_json, text)
    raise typer.Exit(1 if left else 0)
