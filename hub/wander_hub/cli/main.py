"""The `wander-hub` command: its commands by name, and the one place that prints errors and exits.

Data goes to standard output, everything else to standard error. Exit status: 0 done, 1 refused or failed,
2 wrong usage, a taken port or an unusable data folder.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
from pathlib import Path

import click

_LEAVE_SECONDS = 10.0

OVERVIEW = """Run and administer a Wander hub.

\b
  wander-hub serve                         start a hub, data in ./wander-hub-data
  wander-hub user add ada                  let somebody publish
  wander-hub token create ada              make a token for `wander login`
  wander-hub work                          play runs again for a hub, on any machine

\b
Exit status: 0 done, 1 refused or failed, 2 wrong usage, a taken port or an unusable data folder."""

COMMANDS = {
    "serve": ("serving:serve", "start the hub"),
    "work": ("serving:work", "work on jobs: replay posted runs, check published versions"),
    "migrate": ("operation:migrate", "bring the database to the newest schema"),
    "doctor": ("operation:doctor", "examine settings, database, storage, disk, proxy and sandbox"),
    "fsck": ("operation:fsck", "compare database, stored files, index pages, runs and boards"),
    "retry": ("operation:retry", "retry the jobs that wait for the hub, or that it gave up"),
    "audit": ("operation:show_audit", "print the audit log as lines of JSON"),
    "backup": ("operation:backup", "copy the whole hub into a folder, while it runs"),
    "restore": ("operation:restore", "make a backup the content of an empty hub"),
    "export": ("moving:export", "write environments, runs, boards and models into an archive"),
    "import": ("moving:bring", "bring an archive into this hub"),
    "user": ("people:user", "add and list users, and let them sign in"),
    "org": ("organisations:organisation", "make organizations and look after their members"),
    "token": ("tokens:token", "create, list and revoke API tokens"),
    "quota": ("quotas:quota", "set how much owners may have"),
    "webhook": ("webhooks:webhook", "notify other programs of what happens on the hub"),
    "version": ("operation:version", "print the version"),
}
"""What is typed -> where the command lives below this package, and its summary."""


class LazyGroup(click.Group):
    """The commands of `COMMANDS`; a module is imported when one of its commands is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"wander_hub.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that a line names; click offers similar ones if there is none."""
        if not ctx.resilient_parsing and args[0] not in COMMANDS:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = LazyGroup("wander-hub", help=OVERVIEW, context_settings={"help_option_names": ["-h", "--help"]})


def main() -> None:
    """Run the command and end the process."""
    try:
        status = app(standalone_mode=False, prog_name="wander-hub")
        _leave_soon(status or 0)
        sys.exit(status)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:  # the reader went away (`wander-hub token list | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "wander-hub"
        _fail(error.format_message(), f"run `{path} --help`", 2)
    except OSError as error:
        _fail(*_explain(error), 2)
    except Exception as error:
        if (explained := _explain_failure(error)) is None:
            raise
        _fail(*explained)


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


def _explain_failure(error: Exception) -> tuple[str, str | None, int] | None:
    """Return message, hint and exit status of an error that commands are known to raise; None for a bug."""
    from pydantic import ValidationError
    from sqlalchemy.exc import DatabaseError

    from wander_hub.database import UnreleasedDatabase
    from wander_hub.http.problems import HubProblem
    from wander_hub.server.data_folder import DataFolderInUse, NoHub

    if isinstance(error, HubProblem):
        return error.detail, error.hint, 1
    if isinstance(error, DataFolderInUse | NoHub | UnreleasedDatabase):
        return str(error), error.hint, 2
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        return f"setting `{name}`: {message}" if name else f"the settings do not fit: {message}", None, 2
    if isinstance(error, DatabaseError):
        hint = "check `--data` and `WANDER_HUB_DATABASE_URL`"
        return f"the database does not work: {error.orig}", hint, 2
    return None


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


def _fail(message: str, hint: str | None, status: int) -> None:
    click.echo(f"error: {message}\n" + (f"\nhint: {hint}\n" if hint else ""), nl=False, err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
