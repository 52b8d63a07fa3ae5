"""Commands that run until they are stopped: `wander-hub serve` and `work`."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from wander_hub.cli.options import data_option, read_settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=8600,
    show_default=True,
    help="port to listen on; 0 takes a free one",
)
@data_option
@click.option("--public-url", envvar="WANDER_HUB_PUBLIC_URL", help="address under which users reach the hub")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="write the administrator's token here (mode 0600) instead of printing it",
)
@click.option("--new-token", is_flag=True, help="make another administrator's token, if there is one already")
@click.option(
    "--exit-with-parent/--no-exit-with-parent", default=False, help="stop when the starting process ends"
)
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="log every request")
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=64),
    default=1,
    show_default=True,
    help="processes that answer requests",
)
@click.option("--jobs/--no-jobs", default=None, help="work on jobs too, or leave them to `wander-hub work`")
def serve(
    host: str,
    port: int,
    data: Path | None,
    public_url: str | None,
    token_file: Path | None,
    new_token: bool,
    exit_with_parent: bool,
    access_log: bool,
    workers: int,
    jobs: bool | None,
) -> None:
    """Start the hub. The first start makes the database and prints an administrator's token, once."""
    gc.disable()  # while all is imported, nothing of it can go
    from wander_hub.server import serve as serving

    gc.freeze()  # nor can it ever
    gc.enable()
    settings = read_settings(data=data, public_url=public_url, serve_jobs=jobs)
    serving.serve(
        settings,
        host=host,
        port=port,
        token_file=token_file,
        new_token=new_token,
        exit_with_parent=exit_with_parent,
        access_log=access_log,
        workers=workers,
    )


@click.command()
@click.option(
    "--hub",
    envvar="WANDER_HUB_PUBLIC_URL",
    help="address at which this machine reaches the hub  [default: its public URL]",
)
@click.option("--concurrency", type=click.IntRange(min=1, max=64), help="jobs at once  [default: 1]")
@click.option("--listen", metavar="HOST:PORT", help="answer `GET /health` here")
@click.option("--once", is_flag=True, help="do what waits now, then end")
@data_option
def work(hub: str | None, concurrency: int | None, listen: str | None, once: bool, data: Path | None) -> None:
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
