"""Commands on the hub as a whole: its schema, faults, backups, jobs and audit log."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from wander_hub import __version__
from wander_hub.cli.options import data_option, json_option, open_database, print_row, read_settings
from wander_hub.database import Database
from wander_hub.storage import Storage, make_data_folder


@click.command()
@data_option
def migrate(data: Path | None) -> None:
    """Bring the database to the newest schema.

    `serve` does so by itself.
    """
    settings = read_settings(data=data)
    with open_database(settings, make=True) as database:
        database.migrate()
        click.echo(f"migrated {database.engine.url.render_as_string(hide_password=True)}", err=True)


@click.command()
@click.option("--repair", is_flag=True, help="mend what can be derived")
@click.option("--quick", is_flag=True, help="compare sizes, read no objects, no runs")
@data_option
@json_option
def fsck(repair: bool, quick: bool, data: Path | None, as_json: bool) -> None:
    """Compare database, stored files, index pages, runs and boards; running or not.

    \b
    wander-hub fsck                          report, change nothing
    wander-hub fsck --repair                 make pages, totals, sizes, numbers of runs and boards anew,
                                             queue missing jobs, remove what nothing needs

    \b
    Exit status: 0 when all is well or was mended, 1 when something is left.
    """
    from wander_hub.fsck import check as checks
    from wander_hub.index.public_files import FOLDER, PublicFiles
    from wander_hub.verification.worker import confine

    settings = read_settings(data=data)
    found = []
    with open_database(settings) as database:
        storage = Storage.of(settings)
        links = PublicFiles(database, storage, settings.data / FOLDER) if settings.public_files else None
        # Where another machine does the jobs, this one need not be able to.
        verified = confine(settings) if settings.serve_jobs else settings
        for one in checks.find_mismatches(
            database, storage, repair=repair, quick=quick, links=links, settings=verified
        ):
            found.append(one)
            if not as_json:
                outcome = "  (repaired)" if one.repaired else ""
                click.echo(f"{one.code}  {one.subject}  {one.detail}{outcome}")
    left = sum(not one.repaired for one in found)
    text = f"{len(found)} findings, {left} left" if found else "all is well"
    print_row({"findings": [asdict(one) for one in found], "left": left}, as_json, text)
    raise click.exceptions.Exit(1 if left else 0)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@data_option
@json_option
def backup(folder: Path, data: Path | None, as_json: bool) -> None:
    """Copy the whole hub into a folder, while it runs; again into the same one copies what is new.

    \b
    wander-hub backup /backups/hub           from SQLite and a folder, or from PostgreSQL and a bucket
    wander-hub restore /backups/hub --data restored
    """
    from wander_hub.operation.backup import back_up

    settings = read_settings(data=data)
    with open_database(settings) as database:
        found = back_up(database, Storage.of(settings), folder)
    print_row(found, as_json, f"`{folder}` holds {found['rows']} rows and {found['objects']} objects")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@data_option
@json_option
def restore(folder: Path, data: Path | None, as_json: bool) -> None:
    """Make a backup the content of an empty hub, on whatever database and storage the settings name."""
    from wander_hub.operation import backup as backups

    settings = read_settings(data=data)
    make_data_folder(settings)
    database = Database(settings.resolved_database_url)
    try:
        storage = Storage.of(settings)
        found = backups.restore(database, storage, folder)
    finally:
        database.close()
    print_row(found, as_json, f"restored {found['rows']} rows and {found['objects']} objects")


@click.command()
@data_option
@json_option
def doctor(data: Path | None, as_json: bool) -> None:
    """Look at settings, database, clock, storage, disk, proxy and sandbox, and say what is wrong.

    \b
    Exit status: 0 when all that the hub needs works, warnings or not; 1 when something does not.
    """
    from wander_hub.operation.doctor import examine

    found = []
    for one in examine(read_settings(data=data)):
        found.append(one)
        if not as_json:
            click.echo(f"{one.state:<8} {one.check:<9} {one.told}")
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    raise click.exceptions.Exit(1 if any(one.state == "failed" for one in found) else 0)


@click.command()
@click.option("--kind", help="of jobs, such as `webhook`")
@data_option
@json_option
def retry(kind: str | None, data: Path | None, as_json: bool) -> None:
    """Try all replays, examinations and checks again that wait for the hub, or that it gave up.

    \b
    wander-hub retry                         once the sandbox starts, or the disk has room again
    wander-hub retry --kind webhook          all deliveries that failed or wait for another attempt
    """
    from wander_hub.jobs import TableQueue
    from wander_hub.operation import job_queue

    settings = read_settings(data=data)
    with open_database(settings) as database, database.write() as session:
        found = job_queue.retry_all(session, TableQueue.of(settings, database), kind)
    print_row(found.model_dump(), as_json, f"{found.retried} jobs are tried again")


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    print_row({"version": __version__}, as_json, __version__)


@click.command("audit")
@click.option("--owner", help="only what was done to this owner's")
@click.option("--actor", help="only what this user did")
@click.option("--action", help="such as `version.yank`, or `version`")
@click.option("--target", help="such as `alice/reverse-text`")
@click.option("--since", type=click.DateTime(), help="in UTC")
@click.option("--until", type=click.DateTime(), help="in UTC")
@data_option
def show_audit(
    owner: str | None,
    actor: str | None,
    action: str | None,
    target: str | None,
    since: datetime | None,
    until: datetime | None,
    data: Path | None,
) -> None:
    """Print the audit log as lines of JSON, the newest first: who did what to what, and from where."""
    from wander_hub.operation.audit_routes import json_lines

    times = {"since": since and since.replace(tzinfo=UTC), "until": until and until.replace(tzinfo=UTC)}
    with open_database(read_settings(data=data)) as database:
        for line in json_lines(database, owner=owner, actor=actor, action=action, target=target, **times):
            click.echo(line, nl=False)
