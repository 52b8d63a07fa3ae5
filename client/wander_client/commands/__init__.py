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
2. Add one line to `COMMANDS` below: name -> (group.module, one-line help).

Rules: import heavy things (wander.*, rich, httpx, torch) inside functions; raise `wander_client.errors` or
`wander.errors` and never print them; data goes through `output.answer` (which does `--json`), everything
else through `output.note/warn/progress/next`, which write to stderr. `--json --plain --quiet --color
--no-progress --hub --debug` are removed from the line before the command sees it: do not declare them.
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
    """Below this package: the folder names the section of `wander --help`."""
    summary: str

    @property
    def section(self) -> str:
        """The key of its section in `SECTIONS`."""
        return self.module.partition(".")[0]


COMMANDS: dict[str, CommandEntry] = {
    "new": CommandEntry("write.new", "start an environment package that runs at once"),
    "check": CommandEntry("write.check", "find faults in an environment before others do"),
    "publish": CommandEntry("write.publish", "build an environment and upload it"),
    "lock": CommandEntry("write.lock", "resolve the packages a version runs with"),
    "publisher": CommandEntry("write.publisher", "trust a workflow to publish without a token"),
    "yank": CommandEntry("write.yank", "make installers skip a version"),
    "deprecate": CommandEntry("write.deprecate", "mark an environment as deprecated or archived"),
    "delete": CommandEntry("write.delete", "remove a version or an environment from the hub"),
    "fork": CommandEntry("write.fork", "start an environment from a version of another"),
    "import": CommandEntry("write.import_", "import environments and results of other libraries"),
    "search": CommandEntry("find.search", "find environments on the hub"),
    "info": CommandEntry("find.info", "show one environment or version"),
    "install": CommandEntry("find.install", "install an environment into its own virtual environment"),
    "list": CommandEntry("find.list", "list installed environments"),
    "uninstall": CommandEntry("find.uninstall", "remove an installed environment"),
    "cache": CommandEntry("find.cache", "show and free the disk space of installed environments"),
    "eval": CommandEntry("run.eval", "evaluate a model on an environment"),
    "view": CommandEntry("run.view", "read the rollouts of a run"),
    "runs": CommandEntry("run.runs", "list, show, diff and export runs"),
    "compare": CommandEntry("run.compare", "tell whether one run does better than another"),
    "verify": CommandEntry("run.verify", "have the hub replay a posted run"),
    "replay": CommandEntry("run.replay", "replay a run from its record and compare"),
    "rerun": CommandEntry("run.rerun", "repeat a run from its manifest and test whether both agree"),
    "post": CommandEntry("run.post", "put a run on the hub's leaderboard"),
    "leaderboard": CommandEntry("run.leaderboard", "show an environment's leaderboard"),
    "board": CommandEntry("run.board", "arrange an environment's boards and hide runs"),
    "play": CommandEntry("run.play", "play an environment yourself"),
    "worker": CommandEntry("run.worker", "run an environment here for hosts on other machines"),
    "sandbox": CommandEntry("run.sandbox", "test whether the sandbox holds on this machine"),
    "model": CommandEntry("train.model", "make or fetch a model"),
    "data": CommandEntry("train.data", "turn rollouts into training rows"),
    "sft": CommandEntry("train.sft", "fine-tune a model on filtered rollouts"),
    "export": CommandEntry("train.export", "package an environment for another trainer"),
    "train": CommandEntry("train.train", "improve a policy by GRPO on an environment"),
    "login": CommandEntry("account.login", "store a hub's token after checking it"),
    "whoami": CommandEntry("account.whoami", "show whose token is in use"),
    "logout": CommandEntry("account.logout", "forget a hub's token"),
    "token": CommandEntry("account.token", "make, list and revoke your tokens"),
    "key": CommandEntry("account.key", "make, list and revoke keys that sign runs"),
    "owner": CommandEntry("account.owner", "manage roles, transfer, rename, set visibility"),
}

SECTIONS = {
    "write": "write and publish",
    "find": "find and install",
    "run": "evaluate and compare",
    "train": "train",
    "account": "accounts and rights",
}


def load(name: str) -> typer.Typer:
    """Import a command's module and return its application."""
    module = importlib.import_module(f"wander_client.commands.{COMMANDS[name].module}")
    app: typer.Typer = module.app
    return app
