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
from wander_client.terminal.command import (
    Argument,
    EnvironmentArguments,
    Integer,
    Option,
    WorkerAddresses,
    WorkerTokenFile,
)

NEWEST = "@newest"
"""The value of `--resume` if none is given."""


class NumberOr(Integer):
    """An integer in a range, or a word."""

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
            numbers = f"a whole number ({self._describe_range()})"
            self.fail(f"must be `{self._word}` or {numbers}, got `{value}`", param, ctx)


@dataclass(frozen=True)
class SettingFlags:
    """The settings of an evaluation that have their own flag."""

    environment: Annotated[str | None, Argument(help="owner/name[@version], ./folder, FILE.toml")] = None
    model: Annotated[
        list[str] | None, Option("-m", "--model", help="model, see above; repeat it to run a suite")
    ] = None
    base_url: Annotated[str | None, Option("-b", "--base-url", help="OpenAI-compatible endpoint")] = None
    num_examples: Annotated[
        int | None,
        Option(
            *("-n", "--num-examples"),
            type=NumberOr("all"),
            metavar="N|all",
            help="number of examples  [default: 20]",
        ),
    ] = None
    rollouts: Annotated[
        int | None, Option("-r", "--rollouts", min=1, help="rollouts per example  [default: 1]")
    ] = None
    seed: Annotated[int | None, Option(help="seed of the run  [default: 0]")] = None
    split: Annotated[
        Literal["train", "eval"] | None, Option(help="split of the examples  [default: eval]")
    ] = None
    temperature: Annotated[
        float | None, Option("-t", "--temperature", min=0, help="sampling temperature")
    ] = None
    max_tokens: Annotated[int | None, Option(min=1, help="maximum tokens per turn")] = None
    concurrency: Annotated[
        int | None, Option("-c", "--concurrency", min=1, help="concurrent model calls  [default: 32]")
    ] = None
    arguments: EnvironmentArguments = None
    agent: Annotated[
        str | None,
        Option(metavar="NAME", help="agent that plays: codex, claude-code, opencode or mini-swe-agent"),
    ] = None
    players: Annotated[
        list[str] | None,
        Option(
            "--player", metavar="NAME=MODEL", help="model that plays this other player of the environment"
        ),
    ] = None
    budget_tokens: Annotated[int | None, Option(min=1, help="token budget of the whole run")] = None
    serve: Annotated[Literal["vllm"] | None, Option(help="start a server for the model")] = None
    pass_env: Annotated[list[str] | None, Option(help="environment variable to pass to the environment")] = (
        None
    )
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None
    workers: Annotated[
        int | None,
        Option(type=NumberOr("auto", MOST_WORKERS), metavar="N|auto", help="number of environment processes"),
    ] = None
    worker_addresses: WorkerAddresses = None
    worker_token_file: WorkerTokenFile = None


@dataclass(frozen=True)
class CommandFlags:
    """Options of the command line that are not saved with the run."""

    setting: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="any other setting (see above); repeatable"),
    ] = None
    out: Annotated[Path | None, Option(help="folder of the run or the suite")] = None
    resume: Annotated[
        Path | None,
        Option(
            is_flag=False, flag_value=NEWEST, help="resume this run (folder or ID); needs no other option"
        ),
    ] = None
    only_failed: Annotated[
        bool, Option("--only-failed", help="with --resume: run only the failed rollouts again")
    ] = False
    allow_changed_code: Annotated[
        bool, Option("--allow-changed-code", help="with --resume: accept changed files in ./folder")
    ] = False
    dry_run: Annotated[bool, Option("--dry-run", help="show the plan without running it")] = False
    engine: Annotated[
        str | None, Option(metavar="ray[://HOST:PORT[/SHARDS]]", help="run in shards on a cluster")
    ] = None
    fail_under: Annotated[
        float | None, Option(help="exit with status 1 if the mean reward is below this")
    ] = None


COMMAND_FLAGS = frozenset(CommandFlags.__dataclass_fields__)


def read_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command line by field. Flags override `--set`."""
    from wander_client.environments.location import parse_arguments

    settings = {key: value for key, value in typed.items() if key not in COMMAND_FLAGS}
    overrides = read_overrides(typed.get("setting") or ())
    sampling = {key: settings.pop(key) for key in ("temperature", "max_tokens") if key in settings}
    if sampling:
        overrides["sampling"] = {**overrides.get("sampling", {}), **sampling}
    if "arguments" in settings:
        overrides["arguments"] = {
            **overrides.get("arguments", {}),
            **parse_arguments(settings.pop("arguments"), None),
        }
    if "agent" in settings:
        overrides["arguments"] = {**overrides.get("arguments", {}), "agent": settings.pop("agent")}
    if "players" in settings:
        overrides["players"] = {**overrides.get("players", {}), **_players(settings.pop("players"))}
    limits = settings.pop("sandbox_limit", None)
    if limits and settings.get("sandbox") is False:
        raise UsageError(
            "`--no-sandbox` and `--sandbox-limit` cannot be used together", hint="pass only one of them"
        )
    return {**overrides, **settings, **({"sandbox": limits} if limits else {})}


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return tables of `key=value` and `table.key=value`. Values are TOML, JSON or plain text."""
    if not words:
        return {}  # skips an import that most commands do not need
    from wander.errors import ConfigError
    from wander.train.settings.toml_file import apply_overrides

    tables: dict[str, Any] = {}
    example = "KEY=VALUE, for example `--set sampling.top_p=0.9`"
    try:
        apply_overrides(tables, words, example=example, in_sections=False, read_value=_read_value)
    except ConfigError as error:
        raise UsageError(f"`--set`: {error}", hint=error.hint) from error
    return tables


def _read_value(word: str) -> Any:
    from wander.train.settings.toml_file import read_toml_value

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
            raise UsageError(f"`--player {pair}`: this player is already set", hint="pass each player once")
        players[name] = model
    return players
