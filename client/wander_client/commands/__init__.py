'''The commands of `wander`, registered by name and imported only when they run.

To add a command:

1. Write a function in `wander_client/commands/<group>/`:

       from wander_client.context import current

       def search(query: Annotated[str, Argument(help="words to look for")] = "") -> int | None:
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

   `Argument` and `Option` come from `wander_client.terminal.command`. For a command with subcommands, define
   `app = CommandGroup("...")` in the module instead, and put `@app.command()` before each function.
2. Add a line to `COMMANDS` below: name -> (folder.module:object, one-line help). A name with two words is a
   command of a group (`GROUPS`).

Rules: import heavy modules (wander.*, rich, httpx, torch) inside functions. Raise `wander_client.errors` or
`wander.errors`, and never print them. Results go through `output.answer` (which implements `--json`).
Everything else goes through `output.note/warn/progress/next`, which write to stderr. All commands have the
options `--json --plain --quiet --color --no-progress --hub --debug`, so do not declare them.
For async work, use `asyncio.run(...)`. Ctrl-C arrives as `KeyboardInterrupt`: save the finished work, then
raise `Interrupted("...", hint="the command that resumes")`.
'''

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click

from wander_client.terminal.command import Command, CommandGroup


@dataclass(frozen=True)
class Entry:
    """A command's location and its summary in the help."""

    location: str
    """`folder.module:object`, relative to this package."""
    summary: str


@dataclass(frozen=True)
class GroupEntry:
    """A group of commands, such as `wander runs`."""

    summary: str
    default: str | None = None
    """Command to run if the command line names no command of the group."""


COMMANDS: dict[str, Entry] = {
    # The first screen of `wander --help`, ordered by when you use the commands.
    "new": Entry("write.new:app", "create an environment package"),
    "check": Entry("write.check:check", "test an environment for common faults"),
    "publish": Entry("write.publish:publish", "build and upload an environment"),
    "search": Entry("find.search:search", "find environments on the hub"),
    "install": Entry("find.install:install", "install an environment into its own virtual environment"),
    "eval": Entry("run.eval:evaluate", "evaluate a model on an environment"),
    "train": Entry("train.train:train", "train a policy on an environment with GRPO"),
    "view": Entry("run.view:view", "read the rollouts of a run"),
    "post": Entry("run.post:post", "post a run to the hub's leaderboard"),
    "leaderboard": Entry("run.leaderboard:leaderboard", "show an environment's leaderboard"),
    "login": Entry("account.login:login", "check and store a hub's token"),
    # Commands of groups, and commands that are used less often.
    "runs list": Entry("run.runs:list_runs", "list runs on this machine, or posted runs (`--posted`)"),
    "runs search": Entry("run.search_rollouts:search_rollouts", "search the rollouts of all runs on the hub"),
    "runs show": Entry("run.runs:show", "show a run: its pinned inputs, results and files"),
    "runs compare": Entry("run.compare:compare", "test whether one run does better than another"),
    "runs merge": Entry("run.merge:merge", "merge the shards of a run"),
    "runs report": Entry("run.runs:report", "report on runs as text or Markdown"),
    "runs plot": Entry("run.runs:plot", "plot the curves of training runs"),
    "runs export": Entry("run.runs:export_runs", "export runs as rows, datasets, or for other tools"),
    "runs data": Entry("train.data:data", "turn rollouts into training rows"),
    "runs replay": Entry("run.replay:replay", "replay a run from its record, and compare"),
    "runs rerun": Entry("run.rerun:rerun", "repeat a run from its manifest, and test agreement"),
    "runs regrade": Entry("run.regrade:regrade", "grade runs again in another version, without a model"),
    "runs verify": Entry("run.replay:verify", "ask the hub to replay a posted run"),
    "runs evidence": Entry("run.runs:evidence", "show what the hub verified about a posted run"),
    "runs publish": Entry("run.runs:publish", "make a private run public"),
    "runs rename": Entry("run.runs:rename", "rename a posted run"),
    "runs withdraw": Entry("run.runs:withdraw", "delete the rollouts of a posted run permanently"),
    "runs schema": Entry("run.runs:schema", "print the JSON Schema of a run's file"),
    "env info": Entry("find.search:info", "show an environment or a version"),
    "env list": Entry("find.install:list_installed", "list installed environments"),
    "env uninstall": Entry("find.install:uninstall", "remove an installed environment"),
    "env yank": Entry("write.status:yank", "exclude a version from new installations"),
    "env deprecate": Entry("write.status:deprecate", "mark an environment as deprecated or archived"),
    "env delete": Entry("write.status:delete", "delete a version or an environment from the hub"),
    "env fork": Entry("write.new:fork", "copy the source of an environment"),
    "env import": Entry("write.import_:app", "import environments and results from other libraries"),
    "env export": Entry("train.export:export", "package an environment for another trainer"),
    "env owner": Entry("account.owner:app", "manage roles, transfers, names and visibility"),
    "env board": Entry("run.board:edit_board", "change how an environment's board is shown"),
    "model new": Entry("train.model:new_model", "create an untrained model for an environment"),
    "model pull": Entry("train.model:pull", "download a model from the hub, or SmolLM2"),
    "model tools": Entry("train.model:tools", "add tool support to a model's chat template"),
    "model push": Entry("train.hub_model:push", "push a trained model to the hub"),
    "model list": Entry("train.model:list_models", "list local models, or a model's revisions on the hub"),
    "model yank": Entry("train.hub_model:yank", "withdraw a model's revision"),
    "model delete": Entry("train.hub_model:delete", "delete a revision or a model from the hub"),
    "model visibility": Entry("train.hub_model:visibility", "make a model public, internal or private"),
    "model sft": Entry("train.sft:sft", "fine-tune a model on selected rollouts"),
    "auth whoami": Entry("account.login:whoami", "show whose token is in use"),
    "auth logout": Entry("account.login:logout", "delete the stored token of a hub"),
    "auth token": Entry("account.token:app", "create, list and revoke your tokens"),
    "auth workflow-token": Entry(
        "account.workflow_token:print_token", "print a token for a trusted workflow"
    ),
    "auth org": Entry("account.organization:app", "create organizations, and list the owners you belong to"),
    "auth key": Entry("account.key:app", "create, list and revoke keys that sign runs"),
    "cache": Entry("find.cache:app", "show or free the disk space of installed environments"),
    "seal": Entry("run.seal:app", "keep examples hidden on the hub, and let the hub play them"),
    "sandbox": Entry("run.sandbox:app", "test the sandbox on this machine"),
    "worker": Entry("run.worker:worker", "serve an environment to runs on other machines"),
    "help": Entry("shell.help:show_help", "show the help of a command, a group or a topic"),
}

GROUPS: dict[str, GroupEntry] = {
    "runs": GroupEntry("list, show, compare, replay and export runs", default="list"),
    "env": GroupEntry("show, manage, import and export environments"),
    "model": GroupEntry("create, fine-tune, push and download models"),
    "auth": GroupEntry("manage your tokens, organizations and signing keys"),
}

OVERVIEW = """Publish, install, evaluate and train on environments for language models.

\b
wander new my-env                        create an environment
wander install admin/tictactoe           install an environment by name
wander eval admin/tictactoe -m smollm2   evaluate a model on it
wander post runs/RUN                     post the result to the leaderboard"""

TOPICS = ("help exit-codes", "help reference")
FIRST_SCREEN = tuple(COMMANDS)[: tuple(COMMANDS).index("login") + 1]


class LazyGroup(CommandGroup):
    """A group of commands from `COMMANDS`, whose modules are imported only when they are used."""

    def __init__(self, name: str = "", default: str | None = None) -> None:
        """Create the group with this name, or `wander` itself if the name is empty."""
        about = f"{GROUPS[name].summary[:1].upper()}{GROUPS[name].summary[1:]}." if name else OVERVIEW
        super().__init__(about, name or "wander")
        self._prefix = f"{name} " if name else ""
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return [name for section in self.sections(ctx).values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a group, or import and return a command."""
        name = f"{self._prefix}{cmd_name}"
        if name in GROUPS:
            return LazyGroup(name, GROUPS[name].default)
        return load(name) if name in COMMANDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command if the command line names no command."""
        named = {*self.list_commands(ctx), *ctx.help_option_names}
        begins_with_option = not args or args[0].startswith("-")
        if (
            self._default is not None
            and begins_with_option
            and named.isdisjoint(args)
            and not ctx.resilient_parsing
        ):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def meanings(self, ctx: click.Context) -> Mapping[str, str]:
        """For `wander` itself, also suggest the commands of all groups and the help topics."""
        if self._prefix:
            return super().meanings(ctx)
        names = sorted((*COMMANDS, *GROUPS, *TOPICS), key=lambda name: -name.count(" "))
        return {name.rpartition(" ")[2]: name for name in names}  # `search` rather than `runs search`

    def sections(self, ctx: click.Context) -> Mapping[str, Mapping[str, str]]:
        """Return the help's sections, each with names and summaries of commands."""
        own = {
            name.removeprefix(self._prefix): entry.summary
            for name, entry in COMMANDS.items()
            if name.startswith(self._prefix) and " " not in name.removeprefix(self._prefix)
        }
        if self._prefix:
            return {"Commands": own}
        first = {name: own.pop(name) for name in FIRST_SCREEN}
        return {"Commands": first, "More": {name: group.summary for name, group in GROUPS.items()} | own}


def load(name: str) -> click.Command:
    """Import the module of a command and return the click command."""
    module, _, attribute = COMMANDS[name].location.partition(":")
    target = getattr(importlib.import_module(f"wander_client.commands.{module}"), attribute)
    return target if isinstance(target, click.Command) else Command(target)
