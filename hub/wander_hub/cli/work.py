"""`wander-hub work`: works on the jobs of a hub, beside it or on another machine."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_hub.cli.console import Data, read_settings


def work(
    hub: Annotated[
        str | None,
        typer.Option(
            help="address at which this machine reaches the hub  [default: its public URL]",
            envvar=["WANDER_HUB", "WANDER_HUB_PUBLIC_URL"],
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="jobs at once  [default: 1]", min=1, max=64, show_default=False)
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="answer `GET /health` here"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="do what waits now, then end")] = False,
    data: Data = None,
) -> None:
    """Work on jobs: play posted runs again, check published versions.

    Takes the settings of the hub: the same database and storage. Any number of such processes may run, on
    any machines; one that is stopped gives its jobs back, and those of one that dies go to another.

    \b
    wander-hub work --hub http://127.0.0.1:8600          beside a hub that serves with `--no-jobs`
    wander-hub work --hub https://hub.example.org --concurrency 4

    \b
    Exit status: 0 when it was told to stop or nothing is left, 2 wrong usage or an unusable database.
    """
    from wander_hub.server import work as working

    settings = read_settings(data=data, job_concurrency=concurrency)
    working.work(settings, hub_url=hub or settings.public_url, listen=listen, once=once)
