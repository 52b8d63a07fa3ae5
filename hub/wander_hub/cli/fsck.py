"""`wander-hub fsck`: does everything that a hub keeps fit together?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from wander_hub.cli.data_option import Data
from wander_hub.database import Database
from wander_hub.settings import Settings
from wander_hub.storage import Storage


def fsck(
    repair: Annotated[bool, typer.Option("--repair", help="mend what can be derived")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="compare sizes, read no objects, no runs")] = False,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
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

    settings = Settings() if data is None else Settings(data=data)
    if settings.database_url is None and not settings.data.is_dir():
        raise FileNotFoundError(2, "there is no hub", str(settings.data))
    database = Database(settings.resolved_database_url)
    try:
        database.migrate()
        storage = Storage.open(settings.storage_url, settings.data / "objects")
        found = []
        links = PublicFiles(database, storage, settings.data / FOLDER) if settings.public_files else None
        for one in checks.check(database, storage, repair=repair, quick=quick, links=links):
            found.append(one)
            if not as_json:
                outcome = "  (repaired)" if one.repaired else ""
                print(f"{one.code}  {one.subject}  {one.detail}{outcome}")  # noqa: T201
    finally:
        database.close()
    left = sum(not one.repaired for one in found)
    if as_json:
        print(json.dumps({"findings": [asdict(one) for one in found], "left": left}))  # noqa: T201
    else:
        summary = f"{len(found)} findings, {left} left" if found else "all is well"
        print(summary)  # noqa: T201
    raise typer.Exit(1 if left else 0)
