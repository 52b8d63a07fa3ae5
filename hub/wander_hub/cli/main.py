"""The `wander-hub` command: serve, work, migrate, users and tokens.

Data goes to standard output, everything else to standard error. Exit status: 0 done, 1 refused or failed,
2 wrong usage, a taken port or an unusable data folder.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from sqlalchemy.exc import DatabaseError
from wander.wire import TOKEN_SCOPES

from wander_hub import __version__, audit
from wander_hub.cli import moving
from wander_hub.cli.options import (
    AsJson,
    Data,
    by_command,
    group,
    open_database,
    print_row,
    print_rows,
    read_settings,
    reading,
)
from wander_hub.cli.organisations import organisation_app
from wander_hub.cli.people import find_user, user_app
from wander_hub.cli.quotas import quota_app
from wander_hub.cli.webhooks import webhook_app
from wander_hub.database import Database, UnreleasedDatabase
from wander_hub.http.problems import HubProblem
from wander_hub.server.data_folder import DataFolderInUse, NoHub
from wander_hub.storage import PRIVATE, Storage, make_data_folder

_LEAVE_SECONDS = 10.0

OVERVIEW = """\b
Run and administer a Wander hub.

\b
  wander-hub serve                         start a hub, data in ./wander-hub-data
  wander-hub user add ada                  let somebody publish
  wander-hub token create ada              make a token for `wander login`
  wander-hub work                          play runs again for a hub, on any machine

\b
Exit status: 0 done, 1 refused or failed, 2 wrong usage, a taken port or an unusable data folder."""


app = group(OVERVIEW)
token_app = group("Create, list and revoke API tokens.")
app.add_typer(user_app, name="user")
app.add_typer(organisation_app, name="org")
app.add_typer(token_app, name="token")
app.add_typer(quota_app, name="quota")
app.add_typer(webhook_app, name="webhook")


def main() -> None:
    """Run the command; the one place that prints errors and chooses the exit status."""
    os.umask(0o777 & ~PRIVATE)  # `read_settings` opens it to a group that sends files
    try:
        status = app(standalone_mode=False, prog_name="wander-hub")
        _leave_soon(status or 0)
        sys.exit(status)
    except typer.Abort:
        sys.exit(130)
    except BrokenPipeError:  # the reader went away (`wander-hub token list | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except HubProblem as problem:
        _fail(problem.detail, problem.hint, 1)
    except (DataFolderInUse, NoHub, UnreleasedDatabase) as error:
        _fail(str(error), error.hint, 2)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(one) for one in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        _fail(f"setting `{name}`: {message}" if name else f"the settings do not fit: {message}", None, 2)
    except DatabaseError as error:
        _fail(f"the database does not work: {error.orig}", "check `--data` and `WANDER_HUB_DATABASE_URL`", 2)
    except OSError as error:
        _fail(*_explain(error), 2)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's and typer's usage errors share only this method
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            sys.exit(0)
        context = getattr(error, "ctx", None)
        said = error.format_message().strip().rstrip(".").replace("'", "`")
        path = context.command_path if context is not None else "wander-hub"
        _fail(said[:1].lower() + said[1:], f"run `{path} --help`", 2)


def _leave_soon(status: int) -> None:
    """End the process some seconds from now, if a thread still holds it up.

    A request may wait for a lock that a database keeps for a server which was cut off from it; all that was
    acknowledged is kept, and what was not is undone with the connection.
    """

    def leave() -> None:
        time.sleep(_LEAVE_SECONDS)
        if not threading.main_thread().is_alive():  # Python waits for other threads by now
            os._exit(status)

    threading.Thread(target=leave, daemon=True).start()


def _explain(error: OSError) -> tuple[str, str]:
    """Return message and hint of what the system refused: a file of the installation, or the data folder."""
    reason = (error.strerror or str(error)).lower()
    named = f": `{error.filename}`" if error.filename else ""
    package = Path(__file__).resolve().parent.parent
    if error.filename and package in Path(str(error.filename)).resolve().parents:
        return f"the installation of wander-hub is damaged{named} ({reason})", "install `wander-hub` again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{named}", "free some space, or choose another data folder with `--data`"
    return f"{reason}{named}", "check that path, or choose another data folder with `--data`"


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one", min=0, max=65535)] = 8600,
    data: Data = None,
    public_url: Annotated[
        str | None,
        typer.Option(help="address under which users reach the hub", envvar="WANDER_HUB_PUBLIC_URL"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="write the administrator's token here (mode 0600) instead of printing it"),
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="make another administrator's token, if there is one already")
    ] = False,
    exit_with_parent: Annotated[bool, typer.Option(help="stop when the starting process ends")] = False,
    access_log: Annotated[bool, typer.Option(help="log every request")] = True,
    workers: Annotated[int, typer.Option(help="processes that answer requests", min=1, max=64)] = 1,
    jobs: Annotated[
        bool | None,
        typer.Option("--jobs/--no-jobs", help="work on jobs too, or leave them to `wander-hub work`"),
    ] = None,
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


@app.command()
def migrate(data: Data = None) -> None:
    """Bring the database to the newest schema.

    `serve` does so by itself.
    """
    settings = read_settings(data=data)
    with open_database(settings, make=True) as database:
        database.migrate()
        typer.echo(f"migrated {database.engine.url.render_as_string(hide_password=True)}", err=True)


@app.command()
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
        for one in checks.check(
            database, storage, repair=repair, quick=quick, links=links, settings=verified
        ):
            found.append(one)
            if not as_json:
                outcome = "  (repaired)" if one.repaired else ""
                typer.echo(f"{one.code}  {one.subject}  {one.detail}{outcome}")
    left = sum(not one.repaired for one in found)
    text = f"{len(found)} findings, {left} left" if found else "all is well"
    print_row({"findings": [asdict(one) for one in found], "left": left}, as_json, text)
    raise typer.Exit(1 if left else 0)


@app.command()
def backup(folder: Path, data: Data = None, as_json: AsJson = False) -> None:
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


@app.command()
def restore(folder: Path, data: Data = None, as_json: AsJson = False) -> None:
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


app.command("export")(moving.export)
app.command("import")(moving.bring)


@app.command()
def doctor(data: Data = None, as_json: AsJson = False) -> None:
    """Look at settings, database, clock, storage, disk, proxy and sandbox, and say what is wrong.

    \b
    Exit status: 0 when all that the hub needs works, warnings or not; 1 when something does not.
    """
    from wander_hub.operation.doctor import examine

    found = []
    for one in examine(read_settings(data=data)):
        found.append(one)
        if not as_json:
            typer.echo(f"{one.state:<8} {one.check:<9} {one.told}")
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    raise typer.Exit(1 if any(one.state == "failed" for one in found) else 0)


@app.command()
def retry(
    kind: Annotated[str | None, typer.Option(help="of jobs, such as `webhook`")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
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


@app.command()
def work(
    hub: Annotated[
        str | None,
        typer.Option(
            help="address at which this machine reaches the hub  [default: its public URL]",
            envvar="WANDER_HUB_PUBLIC_URL",
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


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    print_row({"version": __version__}, as_json, __version__)


def _scope(word: str) -> str:
    if word not in TOKEN_SCOPES:
        raise typer.BadParameter(f"`{word}` is none of {', '.join(TOKEN_SCOPES)}")
    return word


@token_app.command("create")
def create_token(
    user: str,
    name: Annotated[str, typer.Option(help="what the token is for")] = "command line",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            parser=_scope, metavar="SCOPE", help=f"{', '.join(TOKEN_SCOPES)}; may repeat  [default: all]"
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="days until it expires  [default: it does not]", min=1, max=3650)
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a token for a user and print it; it cannot be shown again.

    \b
    wander-hub token create ada --scope publish --days 30
    """
    from wander_hub.rights.tokens import make_token

    with open_database(read_settings(data=data)) as database, database.write() as session:
        found = find_user(session, user)
        lifetime = timedelta(days=days) if days is not None else None
        scopes = scope or TOKEN_SCOPES
        secret, token = make_token(session, found.id, name, scopes=scopes, lifetime=lifetime)
        told = {"user": user, "name": name, "scopes": sorted(scopes), "days": days}
        audit.record(session, by_command("token.create"), target=token.prefix, **told)
    print_row({"user": user, "name": name, "token": secret}, as_json, secret)


@token_app.command("list")
def list_tokens(
    user: Annotated[str | None, typer.Option(help="only this user's")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List tokens by their prefix; secrets are not kept."""
    from wander_hub.rights import repository

    with reading(data) as session:
        rows = [
            {
                "prefix": token.prefix,
                "user": token.user.name,
                "name": token.name,
                "scopes": token.scope,
                "expires_at": token.expires_at.isoformat() if token.expires_at else None,
                "created_at": token.created_at.isoformat(),
                "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
                "revoked": token.revoked_at is not None,
            }
            for token in repository.tokens_of(session, user)
        ]
    print_rows(rows, as_json)


@token_app.command("revoke")
def revoke_token(prefix: str, data: Data = None, as_json: AsJson = False) -> None:
    """Revoke the token with this prefix, as `token list` shows it."""
    from wander_hub.rights import tokens

    with open_database(read_settings(data=data)) as database, database.write() as session:
        token = tokens.revoke_token(session, prefix)
        row = {"prefix": token.prefix, "revoked": True}
        audit.record(session, by_command("token.revoke"), target=token.prefix, user=token.user.name)
    print_row(row, as_json, f"revoked `{row['prefix']}`")


@app.command("audit")
def show_audit(
    owner: Annotated[str | None, typer.Option(help="only what was done to this owner's")] = None,
    actor: Annotated[str | None, typer.Option(help="only what this user did")] = None,
    action: Annotated[str | None, typer.Option(help="such as `version.yank`, or `version`")] = None,
    target: Annotated[str | None, typer.Option(help="such as `alice/reverse-text`")] = None,
    since: Annotated[datetime | None, typer.Option(help="in UTC")] = None,
    until: Annotated[datetime | None, typer.Option(help="in UTC")] = None,
    data: Data = None,
) -> None:
    """Print the audit log as lines of JSON, the newest first: who did what to what, and from where."""
    from wander_hub.operation.audit_routes import json_lines

    times = {"since": since and since.replace(tzinfo=UTC), "until": until and until.replace(tzinfo=UTC)}
    with open_database(read_settings(data=data)) as database:
        for line in json_lines(database, owner=owner, actor=actor, action=action, target=target, **times):
            typer.echo(line, nl=False)


def _fail(message: str, hint: str | None, status: int) -> None:
    typer.echo(f"error: {message}\n" + (f"\nhint: {hint}\n" if hint else ""), nl=False, err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
