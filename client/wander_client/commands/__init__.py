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
   a command of a group (`GROUPS`). A command that is renamed keeps its old name in `OTHER_NAMES`.

Rules: import heavy things (wander.*, rich, httpx, torch) inside functions; raise `wander_client.errors` or
`wander.errors` and never print them; data goes through `output.answer` (which does `--json`), everything
else through `output.note/warn/progress/next`, which write to stderr. `--json --plain --quiet --color
--no-progress --hub --debug` are removed from the line before the command sees it: do not declare them.
Async work: `asyncio.run(...)`; Ctrl-C arrives as `KeyboardInterrupt`: keep what is done, then raise
`Interrupted("...", hint="the command that resumes")`.
'''

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander_client.terminal.command import CommandGroup, CommandLine


@dataclass(frozen=True)
class Command:
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


COMMANDS: dict[str, Command] = {
    # The first screen of `wander --help`, in the order of an environment's life.
    "new": Command("write.new:app", "start an environment package that runs at once"),
    "check": Command("write.check:check", "find faults in an environment before others do"),
    "publish": Command("write.publish:publish", "build an environment and upload it"),
    "search": Command("find.search:search", "find environments on the hub"),
    "install": Command("find.install:install", "install an environment into its own virtual environment"),
    "eval": Command("run.eval:app", "evaluate a model on an environment"),
    "train": Command("train.train:train", "improve a policy by GRPO on an environment"),
    "view": Command("run.view:view", "read the rollouts of a run"),
    "post": Command("run.post:post", "put a run on the hub's leaderboard"),
    "leaderboard": Command("run.leaderboard:leaderboard", "show an environment's leaderboard"),
    "login": Command("account.login:login", "store a hub's token after checking it"),
    # The rest, by group.
    "runs list": Command("run.runs:list_runs", "list the runs here, or with `--posted` those of the hub"),
    "runs show": Command("run.runs:show", "show what a run pinned, how it came out, its files"),
    "runs diff": Command("run.runs:diff", "tell how two runs differ, down to the first message"),
    "runs compare": Command("run.compare:compare", "tell whether one run does better than another"),
    "runs merge": Command("run.merge:merge", "make one run of the shards in which it was played"),
    "runs report": Command("run.runs:report", "report on runs side by side: text, Markdown, a page"),
    "runs plot": Command("run.runs:plot", "draw the curves of training runs"),
    "runs export": Command("run.runs:export_runs", "write rollouts as JSON Lines, Parquet or a dataset"),
    "runs data": Command("train.data:data", "turn rollouts into training rows"),
    "runs replay": Command("run.replay:replay", "play a run again from its record, and compare"),
    "runs rerun": Command("run.rerun:rerun", "repeat a run from its manifest, and test whether both agree"),
    "runs verify": Command("run.replay:verify", "have the hub replay a posted run"),
    "runs evidence": Command("run.runs:evidence", "tell what the hub proved of a posted run"),
    "runs publish": Command("run.runs:publish", "show a private run of yours to everybody"),
    "runs rename": Command("run.runs:rename", "name a run that you posted"),
    "runs withdraw": Command("run.runs:withdraw", "remove the rollouts of a posted run for good"),
    "runs schema": Command("run.runs:schema", "print the JSON Schema of a file of the run folder"),
    "env info": Command("find.search:info", "show one environment or version"),
    "env star": Command("find.use:star", "star an environment, or list those that you starred"),
    "env use": Command("find.use:use", "show downloads of an environment, and who uses it"),
    "env list": Command("find.install:list_installed", "list what is installed here"),
    "env uninstall": Command("find.install:uninstall", "remove what is installed here"),
    "env play": Command("run.play:play", "play an environment yourself"),
    "env lock": Command("write.lock:lock", "resolve the packages a version runs with"),
    "env yank": Command("write.status:yank", "make installers skip a version"),
    "env deprecate": Command("write.status:deprecate", "mark an environment as deprecated or archived"),
    "env delete": Command("write.status:delete", "remove a version or an environment from the hub"),
    "env fork": Command("write.new:fork", "start an environment from a version of another"),
    "env import": Command("write.import_:app", "import environments and results of other libraries"),
    "env export": Command("train.export:export", "package an environment for another trainer"),
    "env owner": Command("account.owner:app", "manage roles, transfer, rename, set visibility"),
    "env publisher": Command("write.publisher:app", "trust a workflow to publish without a token"),
    "env board": Command("run.board:app", "arrange an environment's boards and hide runs"),
    "model new": Command("train.model:new_model", "make an untrained model for an environment"),
    "model pull": Command("train.model:pull", "fetch a model from the hub, or SmolLM2"),
    "model tools": Command("train.model:tools", "give a model's chat template tools"),
    "model push": Command("train.hub_model:push", "put a trained model on the hub"),
    "model list": Command("train.model:list_models", "list the models here, or the revisions of a hub's"),
    "model yank": Command("train.hub_model:yank", "have a revision of a model passed over"),
    "model delete": Command("train.hub_model:delete", "remove a revision or a model from the hub"),
    "model visibility": Command("train.hub_model:visibility", "make a model public, internal or private"),
    "model sft": Command("train.sft:sft", "fine-tune a model on filtered rollouts"),
    "auth whoami": Command("account.login:whoami", "show whose token is in use"),
    "auth logout": Command("account.login:logout", "forget a hub's token"),
    "auth token": Command("account.token:app", "make, list and revoke your tokens"),
    "auth invitation": Command("account.invitation:app", "list, accept and decline roles offered to you"),
    "auth org": Command("account.organisation:app", "make organisations, list the owners you belong to"),
    "auth key": Command("account.key:app", "make, list and revoke keys that sign runs"),
    "cache": Command("find.cache:app", "show and free the disk space of installed environments"),
    "sandbox": Command("run.sandbox:app", "test whether the sandbox holds on this machine"),
    "worker": Command("run.worker:worker", "run an environment here for hosts on other machines"),
    "completion": Command("shell.completion:completion", "print what makes a shell complete `wander`"),
}

GROUPS: dict[str, Group] = {
    "runs": Group("list, show, compare, replay and export runs", default="list"),
    "env": Group("look at environments, look after yours, import and export"),
    "model": Group("make, fine-tune, push and fetch models"),
    "auth": Group("who you are: tokens, invitations and signing keys"),
}

FIRST_SCREEN = tuple(COMMANDS)[: tuple(COMMANDS).index("login") + 1]

OTHER_NAMES: dict[str, str] = {
    "auth login": "login",
    **{name: f"runs {name}" for name in ("compare", "replay", "verify", "rerun", "data")},
    **{
        name: f"env {name}"
        for name in (
            *("info", "list", "uninstall", "play", "lock", "yank", "deprecate", "delete", "fork"),
            *("import", "export", "owner", "publisher", "board"),
        )
    },
    "sft": "model sft",
    **{name: f"auth {name}" for name in ("whoami", "logout", "token", "key")},
}
"""What else may be typed for a command; the help and the docs do not use it."""

_SCHEMAS = {name: other for other, name in OTHER_NAMES.items() if " " not in other}


@dataclass(frozen=True)
class Found:
    """What the first words of a line mean."""

    name: str
    """A key of `COMMANDS` or of `GROUPS`; empty when the first word is none."""
    rest: list[str]
    """The words after it; where the first of them should be a command of the group and is none, that one."""

    @property
    def is_group(self) -> bool:
        """Whether the line names a group and no command of it."""
        return self.name in GROUPS


def resolve(words: Sequence[str]) -> Found:
    """Find the command, or the group, that a line begins with."""
    for length in (2, 1):
        typed = " ".join(words[:length])
        name = OTHER_NAMES.get(typed, typed)
        if len(words) >= length and name in COMMANDS:
            return Found(name, list(words[length:]))
    first, rest = (words[0] if words else ""), list(words[1:])
    if first not in GROUPS:
        return Found("", list(words))
    default, following = GROUPS[first].default, rest[0] if rest else ""
    if default is None or following in ("-h", "--help"):
        return Found(first, rest)
    if following[:1] in ("", "-") or os.path.isdir(following):
        return Found(f"{first} {default}", rest)
    return Found(first, rest)


def members(group: str) -> dict[str, str]:
    """Return the commands of a group with their summaries, those included that have a shorter name."""
    own = {name: entry.summary for name, entry in COMMANDS.items() if name.startswith(f"{group} ")}
    lent = {other: COMMANDS[name].summary for other, name in OTHER_NAMES.items()}
    return {
        name.partition(" ")[2]: said for name, said in {**lent, **own}.items() if name.startswith(f"{group} ")
    }


def schema_of(name: str) -> str:
    """Return the word that names a command's JSON, which a new name does not change."""
    return _SCHEMAS.get(name, name.partition(" ")[0])


def load(name: str) -> CommandLine | CommandGroup:
    """Import a command's module and return what runs its lines."""
    from wander_client.terminal.command import CommandLine

    module, _, thing = COMMANDS[name].place.partition(":")
    found = getattr(importlib.import_module(f"wander_client.commands.{module}"), thing)
    return CommandLine(found) if inspect.isfunction(found) else found
