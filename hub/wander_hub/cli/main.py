"""The `wander-hub` command: its subcommands by name, and the only place that prints errors and exits.

Data goes to standard output, everything else to standard error. Exit status: 0 success, 1 rejected or failed,
2 wrong usage, port in use, or unusable data folder.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from wander_hub import __version__
from wander_hub.cli.command_line import Group, explain_usage

_LEAVE_SECONDS = 10.0

OVERVIEW = """Run and administer a Wander hub.

\b
    wander-hub serve                         start a hub with its data in ./wander-hub-data
    wander-hub user add ada                  add a user who can publish
    wander-hub token create ada              create a token for `wander login`
    wander-hub work                          replay posted runs for a hub, on any machine

\b
Exit status: 0 success, 1 rejected or failed, 2 wrong usage, port in use, or unusable data folder."""

COMMANDS = {
    "serve": ("serving:serve", "start the hub"),
    "work": ("serving:work", "run jobs: replay posted runs, check published versions"),
    "migrate": ("operation:migrate", "upgrade the database to the newest schema"),
    "doctor": ("operation:doctor", "check settings, database, storage, disk, proxy and sandbox"),
    "fsck": ("operation:fsck", "check that database, files, index pages, runs and boards agree"),
    "retry": ("operation:retry", "retry jobs that failed or are waiting"),
    "audit": ("operation:show_audit", "print the audit log as JSON lines"),
    "backup": ("operation:backup", "copy the whole hub into a folder, while it runs"),
    "restore": ("operation:restore", "load a backup into an empty hub"),
    "export": ("moving:export", "write environments, runs, boards and models to an archive"),
    "import": ("moving:bring", "import an archive into this hub"),
    "user": ("people:user", "add and manage users, and how they sign in"),
    "token": ("tokens:token", "create, list and revoke API tokens"),
    "version": ("operation:version", "print the version"),
}
"""Definition (`module:attribute` below this package) and summary of each command."""


class LazyGroup(Group):
    """The commands of `COMMANDS`. A module is imported only if one of its commands is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"wander_hub.cli.{module}"), attribute)
        return command

    def summaries(self) -> dict[str, str]:
        """Return the summaries without importing the commands."""
        return {name: summary for name, (_, summary) in COMMANDS.items()}


app = LazyGroup("wander-hub", help=OVERVIEW, context_settings={"help_option_names": ["-h", "--help"]})
click.version_option(
    __version__, "-V", "--version", message="wander-hub %(version)s", help="show the version"
)(app)


def main() -> None:
    """Run the command and exit the process."""
    try:
        status = app(standalone_mode=False, prog_name="wander-hub")
        _leave_soon(status or 0)
        sys.exit(status)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:  # the reader exited (`wander-hub token list | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        _fail(*explain_usage(error), 2)
    except OSError as error:
        _fail(*_explain(error), 2)
    except Exception as error:
        if (explained := _explain_failure(error)) is None:
            raise
        _fail(*explained)


def _leave_soon(status: int) -> None:
    """Exit the process after some seconds if a thread still keeps it alive.

    A request may wait for a lock that the database still holds for a server it lost contact with.
    Acknowledged changes are already stored, and the unfinished change is rolled back with the connection.
    """

    def leave() -> None:
        time.sleep(_LEAVE_SECONDS)
        if not threading.main_thread().is_alive():  # Python now waits for the other threads
            os._exit(status)

    threading.Thread(target=leave, daemon=True).start()


def _explain_failure(error: Exception) -> tuple[str, str | None, int] | None:
    """Return the message, hint and exit status of an error that commands are expected to raise; None for a
    bug."""
    from pydantic import ValidationError
    from sqlalchemy.exc import DatabaseError

    from wander_hub.database import UnreleasedDatabase
    from wander_hub.http.problems import HubProblem
    from wander_hub.server.data_folder import DataFolderInUse
    from wander_hub.settings import NoHub
    from wander_hub.storage import ForeignFolder

    if isinstance(error, HubProblem):
        return error.detail, error.hint, 1
    if isinstance(error, DataFolderInUse | ForeignFolder | NoHub | UnreleasedDatabase):
        return str(error), error.hint, 2
    if isinstance(error, ValidationError):
        return _explain_setting(error.errors()[0])
    if isinstance(error, DatabaseError):
        hint = "check `--data` and `WANDER_HUB_DATABASE_URL`"
        return f"the database does not work: {error.orig}", hint, 2
    return None


def _explain_setting(fault: Mapping[str, Any]) -> tuple[str, str | None, int]:
    from wander.types import describe_fault

    from wander_hub.settings import PREFIX

    requirement = describe_fault(fault)
    hint = "`/docs/self-hosting` on every hub lists the settings"
    if not fault["loc"]:  # two settings contradict each other
        return requirement, hint, 2
    name, *inner = map(str, fault["loc"])
    place = "".join(f" `{part}`" for part in inner)
    got = (
        f", got `{fault['input']}`"
        if isinstance(fault["input"], str) and fault["type"] != "value_error"
        else ""
    )
    return f"`{PREFIX}{name.upper()}`:{place} {requirement}{got}", hint, 2


def _explain(error: OSError) -> tuple[str, str]:
    """Return the message and hint of an operating system error, in the installation or the data folder."""
    from wander.types import start_lower  # imported late, to show help faster

    reason = start_lower(error.strerror or str(error))
    named = f": `{error.filename}`" if error.filename else ""
    package = Path(__file__).resolve().parent.parent
    if error.filename and package in Path(str(error.filename)).resolve().parents:
        return f"the installation of wander-hub is damaged{named} ({reason})", "reinstall `wander-hub`"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{named}", "free some space, or choose another data folder with `--data`"
    if named and error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"not a folder{named}", "choose another path"
    return f"{reason}{named}", "check this path, its permissions and `--data`"


def _fail(message: str, hint: str | None, status: int) -> None:
    click.echo(f"error: {message}\n" + (f"\nhint: {hint}\n" if hint else ""), nl=False, err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
