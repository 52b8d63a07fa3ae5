"""Commands on the hub as a whole: schema, checks, backups, jobs and audit log."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from wander_hub import __version__
from wander_hub.cli.command_line import Choice, Command
from wander_hub.cli.options import data_option, json_option, open_database, print_row, read_settings
from wander_hub.database import Database
from wander_hub.operation import job_queue
from wander_hub.storage import Storage, make_data_folder


@click.command(cls=Command)
@data_option
def migrate(data: Path | None) -> None:
    """Upgrade the database to the newest schema, and recompute numbers that an older release derived
    differently.

    `wander-hub serve` does both automatically. You can interrupt the command and run it again.
    """
    from wander_hub.fsck.derivation import recompute_stale_runs

    settings = read_settings(data=data)
    with open_database(settings, make=True) as database:
        database.migrate()
        click.echo(f"migrated {database.engine.url.render_as_string(hide_password=True)}", err=True)
        for done, total in recompute_stale_runs(database, Storage.of(settings)):
            if done % 100 == 0 or done == total:
                click.echo(f"recomputed {done:,} of {total:,} runs", err=True)


@click.command(cls=Command)
@click.option("--repair", is_flag=True, help="repair what can be recomputed")
@click.option("--quick", is_flag=True, help="compare sizes only; do not read objects or runs")
@data_option
@json_option
def fsck(repair: bool, quick: bool, data: Path | None, as_json: bool) -> None:
    """Check that the database, stored files, index pages, runs and boards agree. The hub may be running.

    \b
    wander-hub fsck                          report, change nothing
    wander-hub fsck --repair                 recompute pages, totals, sizes, run numbers and boards,
                                             queue missing jobs, remove unused objects

    \b
    Exit status: 0 if there are no faults or all were repaired, 1 if faults remain.
    """
    from wander_hub.fsck import check as checks
    from wander_hub.verification.worker import confine

    settings = read_settings(data=data)
    findings = []
    with open_database(settings) as database:
        storage = Storage.of(settings)
        # If another machine runs the jobs, this machine does not need a sandbox.
        verified = confine(settings) if settings.serve_jobs else settings
        for finding in checks.find_mismatches(
            database, storage, repair=repair, quick=quick, settings=verified
        ):
            findings.append(finding)
            if not as_json:
                outcome = "  (repaired)" if finding.repaired else ""
                click.echo(f"{finding.code}  {finding.subject}  {finding.detail}{outcome}")
    remaining = sum(not finding.repaired for finding in findings)
    text = f"{len(findings)} findings, {remaining} not repaired" if findings else "no faults found"
    print_row({"findings": [asdict(finding) for finding in findings], "left": remaining}, as_json, text)
    raise click.exceptions.Exit(1 if remaining else 0)


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@data_option
@json_option
def backup(folder: Path, data: Path | None, as_json: bool) -> None:
    """Copy the whole hub into a folder, while it runs.

    A second backup into the same folder copies only new files.

    \b
    wander-hub backup /backups/hub           from SQLite and a folder, or from PostgreSQL and a bucket
    wander-hub restore /backups/hub --data restored
    """
    from wander_hub.operation.backup import back_up

    settings = read_settings(data=data)
    with open_database(settings) as database:
        counts = back_up(database, Storage.of(settings), folder)
        text = f"`{folder}` contains {counts['rows']} rows and {counts['objects']} objects"
        print_row(counts, as_json, text)


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@data_option
@json_option
def restore(folder: Path, data: Path | None, as_json: bool) -> None:
    """Load a backup into an empty hub, with the database and storage of its settings."""
    from wander_hub.operation import backup as backups

    settings = read_settings(data=data)
    make_data_folder(settings)
    database = Database(settings.resolved_database_url)
    try:
        storage = Storage.of(settings)
        counts = backups.restore(database, storage, folder)
    finally:
        database.close()
    print_row(counts, as_json, f"restored {counts['rows']} rows and {counts['objects']} objects")


@click.command(cls=Command)
@data_option
@json_option
def doctor(data: Path | None, as_json: bool) -> None:
    """Check settings, database, clock, storage, disk, proxy and sandbox, and report what is wrong.

    \b
    Exit status: 0 if everything that the hub requires works, even with warnings; 1 otherwise.
    """
    from wander_hub.operation.doctor import examine

    results = []
    for result in examine(read_settings(data=data)):
        results.append(result)
        if not as_json:
            click.echo(f"{result.state:<8} {result.check:<11} {result.told}")
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
    raise click.exceptions.Exit(1 if any(result.state == "failed" for result in results) else 0)


@click.command(cls=Command)
@click.option("--kind", type=Choice(job_queue.KINDS), help="retry only jobs of this kind")
@data_option
@json_option
def retry(kind: str | None, data: Path | None, as_json: bool) -> None:
    """Retry jobs that failed, and start jobs that wait for a problem of the hub to be solved.

    \b
    wander-hub retry                         retry replays and checks, for example after a full disk
    wander-hub retry --kind webhook          retry all failed and waiting deliveries of webhooks
    """
    from wander_hub.jobs import TableQueue

    settings = read_settings(data=data)
    with open_database(settings) as database, database.write() as session:
        outcome = job_queue.retry_all(session, TableQueue.of(settings, database), kind)
    counted = f"{outcome.retried} {'job' if outcome.retried == 1 else 'jobs'}"
    print_row(outcome.model_dump(), as_json, f"retrying {counted}")


@click.command(cls=Command)
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    print_row({"version": __version__}, as_json, __version__)


@click.command("audit", cls=Command)
@click.option("--owner", help="only changes to objects of this owner")
@click.option("--actor", help="only changes by this user")
@click.option("--action", help="only this action, such as `version.yank`, or this group, such as `version`")
@click.option("--target", help="only this target, such as `alice/reverse-text`")
@click.option(
    "--since",
    type=click.DateTime(),
    metavar="TIME",
    help="only entries from this UTC time on",
)
@click.option("--until", type=click.DateTime(), metavar="TIME", help="only entries before this UTC time")
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
    """Print the audit log as JSON lines, newest first: who did what, to which object, and from where."""
    from wander_hub.operation.audit_routes import json_lines

    times = {"since": since and since.replace(tzinfo=UTC), "until": until and until.replace(tzinfo=UTC)}
    with open_database(read_settings(data=data)) as database:
        line = None
        for line in json_lines(database, owner=owner, actor=actor, action=action, target=target, **times):
            click.echo(line, nl=False)
    if line is None:
        click.echo("no entries match", err=True)
