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

   `Argument` and `Option` are of `wander_client.terminal.command`. A command with sub-commands is a
   `app = CommandGroup("...")` of the same module instead, with `@app.command()` before each function.
2. Add one line to `COMMANDS` below: what is typed -> (folder.module:object, one-line help). Two words make it
   a command of a group (`GROUPS`).

Rules: import heavy things (wander.*, rich, httpx, torch) inside functions; raise `wander_client.errors` or
`wander.errors` and never print them; data goes through `output.answer` (which does `--json`), everything
else through `output.note/warn/progress/next`, which write to stderr. `--json --plain --quiet --color
--no-progress --hub --debug` are options of every command: do not declare them.
Async work: `asyncio.run(...)`; Ctrl-C arrives as `KeyboardInterrupt`: keep what is done, then raise
`Interrupted("...", hint="the command that resumes")`.
'''

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click

from wander_client.terminal.command import Command, CommandGroup


@dataclass(frozen=True)
class Entry:
    """Where a command lives and what the help says about it."""

    place: str
    """`folder.module:object`, below this package."""
    summary: str


@dataclass(frozen=True)
class Group:
    """Commands that are typed with a word before them."""

    summary: str
    default: str | None = None
    """The command that is meant when the line has none."""


COMMANDS: dict[str, Entry] = {
    # The first screen of `wander --help`, in the order of an environment's life.
    "new": Entry("write.new:app", "start an environment package that runs at once"),
    "check": Entry("write.check:check", "find faults in an environment before others do"),
    "publish": Entry("write.publish:publish", "build an environment and upload it"),
    "search": Entry("find.search:search", "find environments on the hub"),
    "install": Entry("find.install:install", "install an environment into its own virtual environment"),
    "eval": Entry("run.eval:evaluate", "evaluate a model on an environment"),
    "train": Entry("train.train:train", "improve a policy by GRPO on an environment"),
    "view": Entry("run.view:view", "read the rollouts of a run"),
    "post": Entry("run.post:post", "put a run on the hub's leaderboard"),
    "leaderboard": Entry("run.leaderboard:leaderboard", "show an environment's leaderboard"),
    "login": Entry("account.login:login", "store a hub's token after checking it"),
    # The rest, by group.
    "runs list": Entry("run.runs:list_runs", "list the runs here, or with `--posted` those of the hub"),
    "runs show": Entry("run.runs:show", "show what a run pinned, how it came out, its files"),
    "runs diff": Entry("run.runs:diff", "tell how two runs differ, down to the first message"),
    "runs compare": Entry("run.compare:compare", "tell whether one run does better than another"),
    "runs merge": Entry("run.merge:merge", "make one run of the shards in which it was played"),
    "runs report": Entry("run.runs:report", "report on runs side by side: text, Markdown, a page"),
    "runs plot": Entry("run.runs:plot", "draw the curves of training runs"),
    "runs export": Entry("run.runs:export_runs", "write rollouts as JSON Lines, Parquet or a dataset"),
    "runs data": Entry("train.data:data", "turn rollouts into training rows"),
    "runs replay": Entry("run.replay:replay", "play a run again from its record, and compare"),
    "runs rerun": Entry("run.rerun:rerun", "repeat a run from its manifest, and test whether both agree"),
    "runs verify": Entry("run.replay:verify", "have the hub replay a posted run"),
    "runs evidence": Entry("run.runs:evidence", "tell what the hub proved of a posted run"),
    "runs publish": Entry("run.runs:publish", "show a private run of yours to everybody"),
    "runs rename": Entry("run.runs:rename", "name a run that you posted"),
    "runs withdraw": Entry("run.runs:withdraw", "remove the rollouts of a posted run for good"),
    "runs schema": Entry("run.runs:schema", "print the JSON Schema of a file of the run folder"),
    "env info": Entry("find.search:info", "show one environment or version"),
    "env star": Entry("find.use:star", "star an environment, or list those that you starred"),
    "env use": Entry("find.use:use", "show downloads of an environment, and who uses it"),
    "env list": Entry("find.install:list_installed", "list what is installed here"),
    "env uninstall": Entry("find.install:uninstall", "remove what is installed here"),
    "env play": Entry("run.play:play", "play an environment yourself"),
    "env lock": Entry("write.lock:lock", "resolve the packages a version runs with"),
    "env yank": Entry("write.status:yank", "make installers skip a version"),
    "env deprecate": Entry("write.status:deprecate", "mark an environment as deprecated or archived"),
    "env delete": Entry("write.status:delete", "remove a version or an environment from the hub"),
    "env fork": Entry("write.new:fork", "start an environment from a version of another"),
    "env import": Entry("write.import_:app", "import environments and results of other libraries"),
    "env export": Entry("train.export:export", "package an environment for another trainer"),
    "env owner": Entry("account.owner:app", "manage roles, transfer, rename, set visibility"),
    "env publisher": Entry("write.publisher:app", "trust a workflow to publish without a token"),
    "env board": Entry("run.board:app", "arrange an environment's boards and hide runs"),
    "model new": Entry("train.model:new_model", "make an untrained model for an environment"),
    "model pull": Entry("train.model:pull", "fetch a model from the hub, or SmolLM2"),
    "model tools": Entry("train.model:tools", "give a model's chat template tools"),
    "model push": Entry("train.hub_model:push", "put a trained model on the hub"),
    "model list": Entry("train.model:list_models", "list the models here, or the revisions of a hub's"),
    "model yank": Entry("train.hub_model:yank", "have a revision of a model passed over"),
    "model delete": Entry("train.hub_model:delete", "remove a revision or a model from the hub"),
    "model visibility": Entry("train.hub_model:visibility", "make a model public, internal or private"),
    "model sft": Entry("train.sft:sft", "fine-tune a model on filtered rollouts"),
    "auth whoami": Entry("account.login:whoami", "show whose token is in use"),
    "auth logout": Entry("account.login:logout", "forget a hub's token"),
    "auth token": Entry("account.token:app", "make, list and revoke your tokens"),
    "auth invitation": Entry("account.invitation:app", "list, accept and decline roles offered to you"),
    "auth org": Entry("account.organisation:app", "make organisations, list the owners you belong to"),
    "auth key": Entry("account.key:app", "make, list and revoke keys that sign runs"),
    "cache": Entry("find.cache:app", "show and free the disk space of installed environments"),
    "sandbox": Entry("run.sandbox:app", "test whether the sandbox holds on this machine"),
    "worker": Entry("run.worker:worker", "run an environment here for hosts on other machines"),
    "help": Entry("shell.help:show_help", "show the help of a command, a group or a topic"),
}

GROUPS: dict[str, Group] = {
    "runs": Group("list, show, compare, replay and export runs", default="list"),
    "env": Group("look at environments, look after yours, import and export"),
    "model": Group("make, fine-tune, push and fetch models"),
    "auth": Group("who you are: tokens, invitations and signing keys"),
}

OVERVIEW = """Publish, install, evaluate and train on environments for language models.

\b
wander new my-env                        start an environment
wander install admin/tictactoe           get one by name
wander eval admin/tictactoe -m smollm2   evaluate a model on it
wander post runs/RUN                     put the result on the leaderboard"""

TOPICS = ("help exit-codes", "help reference")
FIRST_SCREEN = tuple(COMMANDS)[: tuple(COMMANDS).index("login") + 1]


class LazyGroup(CommandGroup):
    """The commands of `COMMANDS` that begin with a word; a command's module is imported when it is named."""

    def __init__(self, name: str = "", default: str | None = None) -> None:
        """Without a name, the group is `wander` itself."""
        about = f"{GROUPS[name].summary[:1].upper()}{GROUPS[name].summary[1:]}." if name else OVERVIEW
        super().__init__(about, name or "wander")
        self._prefix = f"{name} " if name else ""
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return [name for section in self.sections(ctx).values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return a group."""
        name = f"{self._prefix}{cmd_name}"
        if name in GROUPS:
            return LazyGroup(name, GROUPS[name].default)
        return load(name) if name in COMMANDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a line without the name of a command as one of the default command."""
        named = {*self.list_commands(ctx), *ctx.help_option_names}
        starts = not args or args[0].startswith("-")
        if self._default is not None and starts and named.isdisjoint(args) and not ctx.resilient_parsing:
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def meanings(self, ctx: click.Context) -> Mapping[str, str]:
        """Add the commands of all groups and the topics of the help, by their last word."""
        if self._prefix:
            return super().meanings(ctx)
        return {name.rpartition(" ")[2]: name for name in (*COMMANDS, *GROUPS, *TOPICS)}

    def sections(self, ctx: click.Context) -> Mapping[str, Mapping[str, str]]:
        """Return one list of a group's commands; of `wander`, that of the first screen and of the rest."""
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
    """Import the module of a command and return what runs its lines."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    target = getattr(importlib.import_module(f"wander_client.commands.{module}"), attribute)
    return target if isinstance(target, click.Command) else Command(target)
