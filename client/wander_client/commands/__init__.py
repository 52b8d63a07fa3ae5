'''The commands of `wander`, registered by name and imported only when they run.

To add a command:

1. Write a function in `wander_client/commands/<group>/`:

       from wander_client.context import current

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

   A command with sub-commands is a typer application instead: `app = command_app(help="...", group=True)` of
   `wander_client.terminal.command`, and `@app.command()` before each of its functions.
2. Add one line to `COMMANDS` below: name -> (group.module:object, one-line help).

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
class Command:
    """Where a command lives and what `wander --help` says about it."""

    place: str
    """`group.module:object`, below this package: the folder names the section of `wander --help`."""
    summary: str

    @property
    def section(self) -> str:
        """The key of its section in `SECTIONS`."""
        return self.place.partition(".")[0]


COMMANDS: dict[str, Command] = {
    "new": Command("write.new:app", "start an environment package that runs at once"),
    "check": Command("write.check:check", "find faults in an environment before others do"),
    "publish": Command("write.publish:publish", "build an environment and upload it"),
    "lock": Command("write.lock:lock", "resolve the packages a version runs with"),
    "publisher": Command("write.publisher:app", "trust a workflow to publish without a token"),
    "yank": Command("write.status:yank", "make installers skip a version"),
    "deprecate": Command("write.status:deprecate", "mark an environment as deprecated or archived"),
    "delete": Command("write.status:delete", "remove a version or an environment from the hub"),
    "fork": Command("write.new:fork", "start an environment from a version of another"),
    "import": Command("write.import_:app", "import environments and results of other libraries"),
    "search": Command("find.search:search", "find environments on the hub"),
    "info": Command("find.search:info", "show one environment or version"),
    "install": Command("find.install:install", "install an environment into its own virtual environment"),
    "list": Command("find.install:list_installed", "list installed environments"),
    "uninstall": Command("find.install:uninstall", "remove an installed environment"),
    "cache": Command("find.cache:app", "show and free the disk space of installed environments"),
    "eval": Command("run.eval:app", "evaluate a model on an environment"),
    "view": Command("run.view:view", "read the rollouts of a run"),
    "runs": Command("run.runs:app", "list, show, diff and export runs"),
    "compare": Command("run.compare:compare", "tell whether one run does better than another"),
    "verify": Command("run.replay:verify", "have the hub replay a posted run"),
    "replay": Command("run.replay:replay", "replay a run from its record and compare"),
    "rerun": Command("run.rerun:rerun", "repeat a run from its manifest and test whether both agree"),
    "post": Command("run.post:post", "put a run on the hub's leaderboard"),
    "leaderboard": Command("run.leaderboard:leaderboard", "show an environment's leaderboard"),
    "board": Command("run.board:app", "arrange an environment's boards and hide runs"),
    "play": Command("run.play:play", "play an environment yourself"),
    "worker": Command("run.worker:worker", "run an environment here for hosts on other machines"),
    "sandbox": Command("run.sandbox:app", "test whether the sandbox holds on this machine"),
    "model": Command("train.model:app", "make or fetch a model"),
    "data": Command("train.data:data", "turn rollouts into training rows"),
    "sft": Command("train.sft:sft", "fine-tune a model on filtered rollouts"),
    "export": Command("train.export:export", "package an environment for another trainer"),
    "train": Command("train.train:train", "improve a policy by GRPO on an environment"),
    "login": Command("account.login:login", "store a hub's token after checking it"),
    "whoami": Command("account.login:whoami", "show whose token is in use"),
    "logout": Command("account.login:logout", "forget a hub's token"),
    "token": Command("account.token:app", "make, list and revoke your tokens"),
    "key": Command("account.key:app", "make, list and revoke keys that sign runs"),
    "owner": Command("account.owner:app", "manage roles, transfer, rename, set visibility"),
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
    import typer

    from wander_client.terminal.command import command_app

    module, _, thing = COMMANDS[name].place.partition(":")
    found = getattr(importlib.import_module(f"wander_client.commands.{module}"), thing)
    if isinstance(found, typer.Typer):
        return found
    app = command_app()
    app.command()(found)
    return app
