"""The options of `wander eval`. Each sets a field of `EvaluationSettings`, and `--set` reaches all fields.

Nothing here imports pydantic, so that `wander eval --help` is fast.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.environments.workers import MOST_WORKERS
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument, Option

NEWEST = "@newest"
"""The value of `--resume` if none is given."""


class NumberOr(click.IntRange):
    """A number in a range, or a word."""

    def __init__(self, word: str, most: int | None = None) -> None:
        super().__init__(1, most)
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word unchanged, or a number."""
        if value == self._word:
            return value
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bound = "" if self.max is None else f" to {self.max}"
            self.fail(f"`{value}` is not `{self._word}`, and not a number from 1{bound}", param, ctx)


@dataclass(frozen=True)
class EvaluationFlags:
    """The settings of an evaluation that have a flag of their own."""

    environment: Annotated[str | None, Argument(help="owner/name[@version], ./folder, FILE.toml")] = None
    model: Annotated[list[str] | None, Option("-m", "--model", help="see above; several make a suite")] = None
    base_url: Annotated[str | None, Option("-b", "--base-url", help="OpenAI-compatible endpoint")] = None
    num_examples: Annotated[
        int | None,
        Option(
            *("-n", "--num-examples"), type=NumberOr("all"), metavar="N|all", help="examples  [default: 20]"
        ),
    ] = None
    rollouts: Annotated[
        int | None, Option("-r", "--rollouts", min=1, help="rollouts of each example  [default: 1]")
    ] = None
    seed: Annotated[int | None, Option(help="the run's seed  [default: 0]")] = None
    split: Annotated[Literal["train", "eval"] | None, Option(help="[default: eval]")] = None
    temperature: Annotated[
        float | None, Option("-t", "--temperature", min=0, help="sampling temperature")
    ] = None
    max_tokens: Annotated[int | None, Option(min=1, help="most tokens of one turn")] = None
    concurrency: Annotated[
        int | None, Option("-c", "--concurrency", min=1, help="concurrent model calls  [default: 32]")
    ] = None
    arguments: Annotated[list[str] | None, Option("-a", "--arg", metavar="KEY=VALUE", help="environment")] = (
        None
    )
    players: Annotated[
        list[str] | None,
        Option("--player", metavar="NAME=MODEL", help="model of one of the environment's players"),
    ] = None
    budget_tokens: Annotated[int | None, Option(min=1, help="tokens that the whole run may take")] = None
    budget_usd: Annotated[
        float | None, Option(min=0, help="USD that the whole run may cost; needs `--set prices=IN/OUT`")
    ] = None
    serve: Annotated[Literal["vllm"] | None, Option(help="serve the model meanwhile")] = None
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="play greedily against every reply, from every opening")
    ] = False
    pass_env: Annotated[list[str] | None, Option(help="variable that the environment may see")] = None
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None
    workers: Annotated[
        int | None,
        Option(type=NumberOr("auto", MOST_WORKERS), metavar="N|auto", help="processes of the environment"),
    ] = None
    worker_addresses: Annotated[
        list[str] | None, Option("--worker", metavar="tcp://HOST:PORT", help="a `wander worker` elsewhere")
    ] = None
    shard: Annotated[str | None, Option(metavar="I/N", help="play only this part of the run, from 0/N")] = (
        None
    )


@dataclass(frozen=True)
class CommandFlags:
    """Options of one command line, which are not kept with the run."""

    setting: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="any setting; see docs/evaluating.md")
    ] = None
    out: Annotated[Path | None, Option(help="the run's folder, or the suite's")] = None
    resume: Annotated[
        Path | None,
        Option(is_flag=False, flag_value=NEWEST, help="continue this run (folder or id); needs nothing else"),
    ] = None
    only_failed: Annotated[bool, Option("--only-failed", help="with --resume: replay only what failed")] = (
        False
    )
    allow_changed_code: Annotated[
        bool, Option("--allow-changed-code", help="with --resume: accept changed files of ./folder")
    ] = False
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be played")] = False
    engine: Annotated[
        str | None, Option(metavar="ray[://HOST:PORT[/SHARDS]]", help="play in shards on a cluster")
    ] = None
    fail_under: Annotated[float | None, Option(help="exit 1 if the reward is lower")] = None


COMMAND_FLAGS = frozenset(CommandFlags.__dataclass_fields__)


def read_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command line asks for, by field; flags go before `--set`."""
    from wander_client.environments.location import parse_arguments

    given = {key: value for key, value in typed.items() if key not in COMMAND_FLAGS}
    wanted = read_overrides(typed.get("setting") or ())
    sampling = {key: given.pop(key) for key in ("temperature", "max_tokens") if key in given}
    if sampling:
        wanted["sampling"] = {**wanted.get("sampling", {}), **sampling}
    if "arguments" in given:
        wanted["arguments"] = {**wanted.get("arguments", {}), **parse_arguments(given.pop("arguments"), None)}
    if "players" in given:
        wanted["players"] = {**wanted.get("players", {}), **_players(given.pop("players"))}
    limits = given.pop("sandbox_limit", None)
    if limits and given.get("sandbox") is False:
        raise UsageError(
            "`--no-sandbox` and `--sandbox-limit` contradict each other", hint="pass one of them"
        )
    return {**wanted, **given, **({"sandbox": limits} if limits else {})}


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return tables of `key=value` and `table.key=value`. Values are TOML or JSON; a bare word is text."""
    if not words:
        return {}  # most commands load no settings of training
    from wander.errors import ConfigError
    from wander.train.settings_file import apply_overrides

    tables: dict[str, Any] = {}
    example = "KEY=VALUE, for example `--set sampling.top_p=0.9`"
    try:
        apply_overrides(tables, words, example=example, in_sections=False, read_value=_read_value)
    except ConfigError as error:
        raise UsageError(f"`--set`: {error}", hint=error.hint) from error
    return tables


def _read_value(word: str) -> Any:
    from wander.train.settings_file import read_toml_value

    value = read_toml_value(word)
    if value == word:  # not TOML
        with contextlib.suppress(ValueError):
            return json.loads(word)
    return value


def _players(pairs: Sequence[str]) -> dict[str, str]:
    players: dict[str, str] = {}
    for pair in pairs:
        name, _, model = pair.partition("=")
        if name in players:
            raise UsageError(f"`--player {pair}` names one player twice", hint="leave one of the two out")
        players[name] = model
    return players
