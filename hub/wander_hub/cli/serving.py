"""Commands that run until they are stopped: `wander-hub serve` and `wander-hub work`."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from wander_hub.cli.command_line import Command, Integer
from wander_hub.cli.options import data_option, read_settings


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--port",
    type=Integer(min=0, max=65535),
    default=8600,
    show_default=True,
    help="port to listen on; 0 chooses a free port",
)
@data_option
@click.option("--public-url", envvar="WANDER_HUB_PUBLIC_URL", help="address under which users reach the hub")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="write the administrator's token here (mode 0600) instead of printing it",
)
@click.option(
    "--new-token",
    is_flag=True,
    help="create another administrator's token, for example if the first one is lost",
)
@click.option(
    "--exit-with-parent/--no-exit-with-parent", default=False, help="stop when the parent process exits"
)
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="log every request")
@click.option(
    "--workers",
    type=Integer(min=1, max=64),
    default=1,
    show_default=True,
    help="number of processes that serve requests",
)
@click.option(
    "--jobs/--no-jobs", default=None, help="run jobs in this process too, or only with `wander-hub work`"
)
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
    """Start the hub. The first start creates the database and prints an administrator's token once."""
    gc.disable()  # collecting during the imports would find nothing
    from wander_hub.server import serve as serving

    gc.freeze()  # modules stay until the process exits
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


@click.command(cls=Command)
@click.option(
    "--hub",
    envvar="WANDER_HUB_PUBLIC_URL",
    help="address at which this machine reaches the hub  [default: its public URL]",
)
@click.option(
    "--concurrency",
    type=Integer(min=1, max=64),
    help="jobs at the same time  [default: 1]",
)
@click.option("--listen", metavar="HOST:PORT", help="serve `GET /health` here")
@click.option("--once", is_flag=True, help="run the queued jobs, then exit")
@data_option
def work(hub: str | None, concurrency: int | None, listen: str | None, once: bool, data: Path | None) -> None:
    """Run jobs: replay posted runs and check published versions.

    Use the same settings as the hub, with the same database and storage. Any number of these processes may
    run, on any machines. A process that is stopped returns its jobs to the queue. Another process takes over
    the jobs of a crashed process.

    \b
    wander-hub work --hub http://127.0.0.1:8600          next to a hub that serves with `--no-jobs`
    wander-hub work --hub https://hub.example.org --concurrency 4

    \b
    Exit status: 0 if it was stopped or the queue is empty, 2 for wrong usage or an unusable database.
    """
    from wander_hub.server import work as working

    settings = read_settings(data=data, job_concurrency=concurrency)
    working.work(settings, hub_url=hub or settings.public_url, listen=listen, once=once)
