'''The commands of `wander`, registered by name and imported only when they run.

To add a command:

1. Write `wander_client/commands/<group>/<name>.py` with a module-level `app`:

       from wander_client.terminal.command import command_app
       from wander_client.context import current

       app = command_app()

       @app.command()
       def search(query: Annotated[str, typer.Argument(help="words to look for")] = "") -> int | None:
           """Find environments on the hub.

           \b
           wander search tic
           wander search --owner acme --json
           """
           here = current()                          # here.output, here.settings, here.credentials
           with here.hub() as hub:
               page = hub.environments(query=query)
           here.output.answer(page.data, lambda: here.output.table([...], [...]))
           return None                               # or an exit status of wander_client.errors

   One `@app.command()` makes `wander <name>`; several make `wander <name> <sub>` (then say
   `command_app(help="...", group=True)`).
2. Add one line to `COMMANDS` below: name -> (group.module, one-line help, section of `wander --help`).

Rules: import heavy things (wander.*, rich, httpx, torch) inside functions; raise `wander_client.errors` or
`wander.errors` and never print them; data goes through `output.answer` (which does `--json`), everything
else through `output.note/warn/progress/next`, which write to stderr. `--json --plain --quiet --color
--no-progress --hub --debug` are taken off the line before the command sees it: don't declare them.
Async work: `asyncio.run(...)`; Ctrl-C arrives as `KeyboardInterrupt`: keep what is done, then raise
`Interrupted("...", hint="the command that resumes")`.
'''

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


@dataclass(frozen=True)
class CommandEntry:
    """Where a command lives and what `wander --help` says about it."""

    module: str
    summary: str
    section: str


WRITE, FIND, RUN, TRAIN = "write", "find", "run", "train"

COMMANDS: dict[str, CommandEntry] = {
    "new": CommandEntry("write.new", "start an environment package that runs at once", WRITE),
    "check": CommandEntry("write.check", "find faults in an environment before others do", WRITE),
    "login": CommandEntry("account.login", "store a hub's token, checked at once", WRITE),
    "whoami": CommandEntry("account.whoami", "say whose token is in use", WRITE),
    "logout": CommandEntry("account.logout", "forget a hub's token", WRITE),
    "publish": CommandEntry("write.publish", "build an environment and upload it", WRITE),
    "lock": CommandEntry("write.lock", "resolve the packages that a version runs with", WRITE),
    "publisher": CommandEntry("write.publisher", "trust a workflow to publish without a token", WRITE),
    "yank": CommandEntry("write.yank", "have installers pass a version over", WRITE),
    "deprecate": CommandEntry("write.deprecate", "mark an environment as deprecated or archived", WRITE),
    "delete": CommandEntry("write.delete", "remove a version or an environment from the hub", WRITE),
    "fork": CommandEntry("write.fork", "begin an environment with a version of another's", WRITE),
    "owner": CommandEntry("account.owner", "roles, transfer, renaming, visibility", WRITE),
    "token": CommandEntry("account.token", "make, list and revoke your tokens", WRITE),
    "key": CommandEntry("account.key", "make, list and revoke keys that sign runs", WRITE),
    "import": CommandEntry("write.import_", "bring in results and environments of other libraries", WRITE),
    "search": CommandEntry("find.search", "find environments on the hub", FIND),
    "info": CommandEntry("find.info", "show one environment or version", FIND),
    "install": CommandEntry("find.install", "install an environment into its own virtual environment", FIND),
    "list": CommandEntry("find.list", "list installed environments", FIND),
    "uninstall": CommandEntry("find.uninstall", "remove an installed environment", FIND),
    "cache": CommandEntry("find.cache", "see and prune what installed environments take of the disk", FIND),
    "eval": CommandEntry("run.eval", "evaluate a model on an environment", RUN),
    "view": CommandEntry("run.view", "read the rollouts of a run", RUN),
    "runs": CommandEntry("run.runs", "list, show, diff and export runs", RUN),
    "compare": CommandEntry("run.compare", "tell whether one run does better than another", RUN),
    "verify": CommandEntry("run.verify", "have the hub play a posted run again", RUN),
    "replay": CommandEntry("run.replay", "play a run again from its record and compare", RUN),
    "rerun": CommandEntry("run.rerun", "repeat a run from its manifest and test agreement", RUN),
    "post": CommandEntry("run.post", "put a run on the hub's leaderboard", RUN),
    "leaderboard": CommandEntry("run.leaderboard", "show an environment's leaderboard", RUN),
    "board": CommandEntry("run.board", "arrange an environment's boards, hide runs", RUN),
    "play": CommandEntry("run.play", "play an environment yourself", RUN),
    "worker": CommandEntry("run.worker", "play an environment here for hosts on other machines", RUN),
    "sandbox": CommandEntry("run.sandbox", "see whether the sandbox holds on this machine", RUN),
    "model": CommandEntry("train.model", "make or fetch a model", TRAIN),
    "data": CommandEntry("train.data", "turn rollouts into training rows", TRAIN),
    "sft": CommandEntry("train.sft", "fine-tune a model on filtered rollouts", TRAIN),
    "export": CommandEntry("train.export", "have another trainer play an environment", TRAIN),
    "train": CommandEntry("train.train", "improve a policy by GRPO on an environment", TRAIN),
}

SECTIONS = {
    WRITE: "write and publish",
    FIND: "find and install",
    RUN: "evaluate and compare",
    TRAIN: "train",
}


def load(name: str) -> typer.Typer:
    """Import a command's module and return its application."""
    module = importlib.import_module(f"wander_client.commands.{COMMANDS[name].module}")
    app: typer.Typer = module.app
    return app
