"""The settings of an evaluation, as the command line, suites, Python and a run's folder use them.

To add a setting, add a field to `EvaluationSettings`: `--set`, suites, `settings=` in Python and stored runs
then know it. `plan` passes it to the evaluator if `EvaluationPlan` has a field of the same name,
`choose_model` to the model and `choose_workers` to the environment's processes. The sets below say where a
setting may be used. Add a row to the list in docs/evaluating.md and a value to
tests/client/stored/every_setting.json.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from wander.errors import Wording
from wander.sandbox import SandboxPolicy, parse_limits
from wander.types import Record, SamplingArgs, first_fault
from wander.wire import TokenPrices
from wander.wire.run_record import Shard

from wander_client.environments.sandbox import confines, require_here
from wander_client.environments.workers import (
    AUTOMATIC,
    MOST_WORKERS,
    WorkerChoice,
    absolute_path,
    read_addresses,
)
from wander_client.errors import UsageError, name_option
from wander_client.evaluate.prices import prices_of
from wander_client.models.pool import ModelChoice
from wander_client.models.reference import KEY_VARIABLE, START_SECONDS
from wander_client.models.server import ServeChoice
from wander_client.names import parse_environment
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.evals.run.budget import Share
    from wander.evals.run.plan import EvaluationPlan

    from wander_client.settings import Settings

USUAL_SAMPLING = {
    *("top_k", "top_a", "min_p", "typical_p", "n", "best_of", "logprobs", "top_logprobs", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "min_tokens"),
    *("max_completion_tokens", "stop_token_ids", "ignore_eos", "reasoning_effort", "response_format"),
}
"""Known sampling arguments of endpoints, in addition to those of `SamplingArgs`."""

MAY_CHANGE = frozenset(
    {
        *("concurrency", "max_rollouts", "workers", "worker_addresses", "worker_token_file"),
        *("base_url", "key_variable", "budget_tokens", "budget_usd", "prices"),
        *("call_timeout", "rollout_timeout", "serve_timeout"),
    }
)
"""Settings that may differ when a run is resumed, because they do not affect rollouts."""

NOT_EXHAUSTIVE = frozenset(
    {
        *("num_examples", "rollouts", "strata", "shuffle", "split", "set_file", "shard"),
        *("budget_tokens", "budget_usd", "sampling.temperature"),
    }
)
"""Settings that have no effect in an exhaustive evaluation, which plays every line once and greedily."""

NOT_IN_SUITES = frozenset(
    {"concurrency", "exhaustive", "max_lines", "shard", "rerun_of", "environment_files"}
)
"""Settings that no evaluation of a suite may set."""

OF_THE_MODEL = ("key_variable", "device", "serve", "serve_args", "serve_python", "serve_timeout")
"""Settings of a user's own run that a repetition keeps only if it uses the run's model and endpoint."""
DECIDED_AGAIN = (
    *("environment", "arguments", "no_lock", "environment_files", "in_process", "sandbox"),
    *("worker_addresses", "worker_token_file", "model", "base_url", "template_date"),
    *("num_examples", "concurrency", "cache", "rerun_of", *OF_THE_MODEL),
)
"""Settings that a repetition decides again. It keeps every other setting of a user's own run.

`cache` is off, because cached responses would always agree. Workers run on this machine, because those of the
run may be gone.
"""

BUDGETS = ("budget_tokens", "budget_usd")
"""Budgets of an evaluation. The budget of a suite or of shards applies to all of them together."""

LISTED = "see the list of settings on the hub's page `/docs/evaluating`"
"""The hint for an invalid setting without a suggestion."""

Seconds = Annotated[float, Field(gt=0)]


def read_sampling(value: Any) -> SamplingArgs:
    """Parse sampling arguments. Raises `UsageError` for an invalid value or a probably mistyped name.

    Other unknown names are passed to the endpoint, because endpoints accept different arguments.
    """
    if isinstance(value, SamplingArgs):
        return value
    if not isinstance(value, Mapping):
        raise UsageError("`sampling` is not a table", hint="for example: `{temperature = 0.7}`")
    usual = USUAL_SAMPLING | SamplingArgs.model_fields.keys()
    for name in value.keys() - usual:
        if meant := did_you_mean(name.lower().replace("-", "_"), usual, cutoff=0.82):
            raise UsageError(f"unknown sampling argument `{name}`", hint=meant)
    try:
        return SamplingArgs(**value)
    except ValidationError as error:
        name, problem = first_fault(error)
        raise UsageError(
            f"sampling argument `{name}`: {problem}" if name else f"sampling argument {problem}",
            hint="see the sampling arguments on the hub's page `/docs/evaluating`",
        ) from error


def _read_prices(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        prompt, completion = (float(part) for part in value.split("/"))
        return TokenPrices(prompt=prompt, completion=completion)
    except ValueError:
        raise UsageError(
            f"`prices`: invalid value `{value}`", hint="for example: `0.15/0.60`, in USD per million tokens"
        ) from None


def _read_shard(value: Any) -> Any:
    if isinstance(value, int):  # `--set shard=1` is a number
        value = str(value)
    if not isinstance(value, str):
        return value
    number, _, total = value.partition("/") if value.isascii() else ("", "", "")
    if not (number.isdecimal() and total.isdecimal() and int(number) < int(total)):
        total = total if total.isdecimal() and int(total) > 1 else "8"
        hint = f"the {total} shards are `0/{total}` to `{int(total) - 1}/{total}`"
        raise UsageError(f"`shard`: `{value}` is not a shard", hint=hint)
    return Shard(first=int(number), end=int(number) + 1, of=int(total))


def _read_sandbox(value: Any) -> Any:
    if isinstance(value, bool):
        return SandboxPolicy() if value else None
    return parse_limits(value) if isinstance(value, list) else value


def _read_date(value: Any) -> Any:
    try:
        return value if value is None else date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise UsageError(
            f"`template_date`: `{value}` is not a date", hint="for example: `2026-11-28`"
        ) from None


def _read_players(value: Any) -> Any:
    for name, model in value.items() if isinstance(value, Mapping) else ():
        if not name or not isinstance(model, str) or not model.strip():
            raise UsageError(f"player `{name}` has no model", hint="set a model in the form of `-m`")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _word(word: str, meaning: int | None) -> BeforeValidator:
    return BeforeValidator(lambda value: meaning if value == word else value)


Words = Annotated[list[str], BeforeValidator(_listed)]


class EvaluationSettings(Record):
    """The settings of an evaluation."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    environment: str
    """`owner/name@version`, or the absolute path of a folder."""
    model: str
    base_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint."""
    key_variable: str = KEY_VARIABLE
    """Environment variable with the endpoint's key."""
    num_examples: Annotated[int | None, Field(ge=1), _word("all", None)] = 20
    """Number of examples to play; None, or `all`, means the whole split."""
    rollouts: Annotated[int, Field(ge=1)] = 1
    """Number of rollouts per example."""
    strata: bool = False
    """Whether examples are taken evenly from the strata."""
    shuffle: bool = False
    """Whether examples are drawn at random, by the seed."""
    concurrency: Annotated[int, Field(ge=1)] = 32
    """Maximum number of concurrent model calls."""
    max_rollouts: Annotated[int | None, Field(ge=1)] = None
    """Maximum number of concurrent rollouts; None means twice the concurrency."""
    split: Literal["train", "eval"] = "eval"
    set_file: Annotated[
        str | None, BeforeValidator(lambda value: value if value is None else absolute_path(value))
    ] = None
    """File of a sealed task set, whose examples replace those of the eval split."""
    seed: int = 0
    strict: bool = False
    """Whether an invalid row stops the run; otherwise, its rollouts fail."""
    sampling: Annotated[SamplingArgs, BeforeValidator(read_sampling)] = Field(default_factory=SamplingArgs)
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    players: Annotated[dict[str, str], BeforeValidator(_read_players)] = Field(default_factory=dict)
    """Models of the environment's other players by name; players without a model use `model`."""
    budget_tokens: Annotated[int | None, Field(ge=1)] = None
    """Token budget of the whole run."""
    budget_usd: Annotated[float | None, Field(ge=0)] = None
    """Budget of the whole run in USD; requires `prices`."""
    prices: Annotated[TokenPrices | None, BeforeValidator(_read_prices)] = None
    """Prices in USD per million tokens, as `PROMPT/COMPLETION` or a table."""
    cache: bool = False
    """Whether responses of endpoints are cached and reused."""
    call_timeout: Seconds | None = None
    """Time limit of a model call in seconds; None means 600."""
    rollout_timeout: Seconds | None = None
    """Time limit of a rollout in seconds."""
    serve: Literal["vllm"] | None = None
    """Server to start for the model, for the time of the run."""
    serve_args: Words = Field(default_factory=list)
    """Arguments of the server, such as `["--dtype=half"]`."""
    serve_python: str | None = None
    """Path of the Python with vLLM."""
    serve_timeout: Annotated[float, Field(ge=1)] = START_SECONDS
    """Seconds to wait until the server has started."""
    exhaustive: bool = False
    """Whether every line of play from every opening is played, with greedy decoding."""
    max_lines: Annotated[int, Field(ge=1)] = 100_000
    """Maximum number of lines in an exhaustive evaluation."""
    no_lock: bool = False
    """Whether the newest packages are installed instead of the locked ones; the run records this."""
    in_process: bool = False
    """Whether a folder's environment runs in this process."""
    pass_env: Words = Field(default_factory=list)
    """Environment variables that are passed to the environment."""
    sandbox: Annotated[SandboxPolicy | None, BeforeValidator(_read_sandbox)] = None
    """Limits of the environment's sandbox; None means no sandbox."""
    workers: Annotated[int, Field(ge=0, le=MOST_WORKERS), _word("auto", AUTOMATIC)] = AUTOMATIC
    """Number of environment processes."""
    worker_addresses: Words = Field(default_factory=list)
    """Addresses of `wander worker` on other machines."""
    worker_token_file: Annotated[
        str | None, BeforeValidator(lambda value: value if value is None else absolute_path(value))
    ] = None
    """File with the token for these workers."""
    reasoning: Literal["auto", "keep", "drop"] = "auto"
    """Whether models get the reasoning of their earlier turns; `auto`: only if the endpoint sent it."""
    system: Literal["merge", "keep"] = "merge"
    """Handling of system prompts; `merge` moves them into the question if the model has no such role."""
    template_date: Annotated[str | None, BeforeValidator(_read_date)] = None
    """Date that the chat template of a local model shows; None means today."""
    device: str | None = None
    """Device of a local model: cpu, cuda or mps."""
    shard: Annotated[Shard | None, BeforeValidator(_read_shard)] = None
    """Shard of the run to play; `wander runs merge` merges all shards."""
    rerun_of: str | None = None
    """ID of the run that this run repeats."""
    environment_files: dict[str, str] | None = None
    """Digests of the files in the environment's folder; None for published environments."""

    def as_options(self) -> list[str]:
        """Return the settings as options of a command line, each quoted for a shell.

        Leaves out defaults, and the sandbox of a run without one.
        """
        values = self.model_dump(mode="json", exclude_defaults=True, exclude=_ADDED)
        words = [shlex.quote(values.pop("environment")), shlex.join(["-m", values.pop("model")])]
        if self.num_examples is None:
            values["num_examples"] = "all"
        if self.sandbox is not None:
            values["sandbox"] = values["sandbox"] or True
        if self.shard is not None:
            values["shard"] = str(self.shard)
        return words + [shlex.join(["--set", pair]) for pair in _pairs("", values)]

    def choose_workers(self) -> WorkerChoice:
        """Return the processes that play the environment. Raises `ConfigError` for an invalid address."""
        from wander.worker.host.environment import automatic_workers

        count, addresses = self.workers, read_addresses(self.worker_addresses, self.worker_token_file)
        if count == AUTOMATIC:
            count = len(addresses) or automatic_workers(self.max_rollouts or 2 * self.concurrency)
        if count < len(addresses):
            raise UsageError(
                f"`--workers {count}` is fewer than the {len(addresses)} addresses of `--worker`"
            )
        return WorkerChoice(count, addresses, self.rollout_timeout)

    def choose_model(self) -> ModelChoice:
        """Return the model with its endpoint or server."""
        serve = None
        if self.serve is not None:
            serve = ServeChoice(self.serve, tuple(self.serve_args), self.serve_python, self.serve_timeout)
        day = date.fromisoformat(self.template_date) if self.template_date else datetime.now().date()
        return ModelChoice(
            self.model,
            base_url=self.base_url,
            key_variable=self.key_variable,
            call_timeout=self.call_timeout,
            device=self.device,
            cache=self.cache,
            serve=serve,
            players=tuple(sorted(self.players.items())),
            send_reasoning={"auto": None, "keep": True, "drop": False}[self.reasoning],
            merge_system=self.system == "merge",
            template_date=day,
        )

    def plan(self, *, only_failed: bool = False, share: Share | None = None) -> EvaluationPlan:
        """Return the plan for the evaluator. Raises `ConfigError` for invalid settings."""
        from wander.evals.run.budget import Budget
        from wander.evals.run.plan import EvaluationPlan

        fields = {field.name for field in dataclasses.fields(EvaluationPlan)}
        return EvaluationPlan(
            **{name: getattr(self, name) for name in fields & type(self).model_fields.keys()},
            rollouts_per_example=self.rollouts,
            budget=Budget(self.budget_tokens, self.budget_usd, self.prices),
            share=share,
            only_failed=only_failed,
        )


_ADDED = {"rerun_of", "environment_files"}
"""Fields that Wander sets, not the user."""


def _pairs(prefix: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield `table.key=value` for all values of nested tables, in TOML syntax."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _pairs(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}={json.dumps(value, ensure_ascii=False)}"


def settings_for(wanted: Mapping[str, Any], user: Settings) -> EvaluationSettings:
    """Return the settings for a command line, a suite or a Python call.

    The user's file provides defaults. Raises `UsageError` for an unknown field or an invalid value.
    """
    wanted, model = dict(wanted), wanted["model"]
    if "reasoning" not in wanted and user.reasoning is not None:
        wanted["reasoning"] = user.reasoning
    settings = check_settings(wanted)
    if "prices" not in wanted and (prices := prices_of(model, settings.base_url, user.prices)):
        settings = settings.model_copy(update={"prices": prices})
    _require_meaning(settings, wanted)
    if "sandbox" not in wanted:
        has_addresses, names = bool(settings.worker_addresses), (settings.environment, settings.model)
        if confines(user, *names, in_process=settings.in_process, elsewhere=has_addresses):
            settings = settings.model_copy(update={"sandbox": SandboxPolicy()})
    require_here(settings.sandbox, settings.worker_addresses)
    return settings


def check_settings(wanted: Mapping[str, Any]) -> EvaluationSettings:
    """Validate settings. Raises `UsageError` for the first invalid field."""
    known = EvaluationSettings.model_fields.keys() - _ADDED
    for name in wanted.keys() - known:
        hint = did_you_mean(name, known) or LISTED
        raise UsageError(f"unknown setting `{name}`", hint=hint)
    try:
        return EvaluationSettings(**wanted)
    except ValidationError as error:
        name, problem = first_fault(error)
        raise UsageError(_named(name) + f": {problem}", hint=LISTED) from error


def _named(name: str) -> Wording:
    """Return the name of a setting for messages. In Python, `num_examples` is called `n`."""
    return Wording(f"`{name}`", "`n`" if name == "num_examples" else f"`{name}`")


def _require_meaning(settings: EvaluationSettings, wanted: Mapping[str, Any]) -> None:
    """Raise `UsageError` for settings that have no effect together with the others."""
    needs = dict.fromkeys(("serve_args", "serve_python", "serve_timeout"), "serve") | {
        "max_lines": "exhaustive"
    }
    for name in needs.keys() & wanted.keys():
        if not getattr(settings, needs[name]):
            raise UsageError(
                f"`{name}` requires `{needs[name]}`", hint=f"add `{needs[name]}`, or remove `{name}`"
            )
    if settings.exhaustive:
        names = wanted.keys() | {f"sampling.{name}" for name in settings.sampling.given()}
        for name in sorted(names & NOT_EXHAUSTIVE):
            raise UsageError(
                f"`{name}` has no effect with `exhaustive`: every line is played once, with greedy decoding",
                hint=f"remove `{name}`",
            )


def resume_settings(
    stored: EvaluationSettings, wanted: Mapping[str, Any], run_dir: Path, command: str
) -> EvaluationSettings:
    """Return the settings of a resumed run. `wanted` contains the settings that the user passed.

    Raises `UsageError` with every setting that differs from the run and would affect its rollouts.
    """
    wanted = dict(wanted)
    if isinstance(wanted.get("model"), list):
        (wanted["model"],) = wanted["model"]
    tables = {"sampling": stored.sampling.given(), "arguments": stored.arguments, "players": stored.players}
    for name, stored_value in tables.items():
        if name in wanted and isinstance(wanted[name], Mapping):
            wanted[name] = {**stored_value, **wanted[name]}
    requested = check_settings({"environment": stored.environment, "model": stored.model, **wanted})
    same = {"environment": _same_environment, "model": _same_model}
    changed = [
        _named(name) + f": requested {_shown(value)}, but the run has {_shown(stored_value)}"
        for name in wanted
        if name not in MAY_CHANGE
        and (value := getattr(requested, name)) != (stored_value := getattr(stored, name))
        and not (name in same and same[name](value, stored_value))
    ]
    if changed:
        raise UsageError(
            f"cannot resume `{run_dir}`: these settings changed since it started",
            detail=functools.reduce(lambda whole, line: whole + "\n" + line, changed),
            hint=f"continue with only `{command}`, or start a new run without " + name_option("resume"),
            code="other_settings",
        )
    return stored.model_copy(update={name: getattr(requested, name) for name in wanted if name in MAY_CHANGE})


def _shown(value: Any) -> str:
    shown = value.given() if isinstance(value, SamplingArgs) else value
    if isinstance(value, SandboxPolicy):
        shown = value.model_dump(mode="json", exclude_defaults=True)
    return f"`{shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)}`"


def _same_environment(word: str, stored_name: str) -> bool:
    """Return whether a word names the environment of a run. A word without a version matches any version."""
    requested = parse_environment(word)
    actual = Path(stored_name) if Path(stored_name).is_absolute() else parse_environment(stored_name)
    if isinstance(requested, Path) or isinstance(actual, Path):
        return requested == actual
    return (requested.owner, requested.name) == (actual.owner, actual.name) and requested.fits(actual.version)


def _same_model(word: str, stored_name: str) -> bool:
    if word.removeprefix("hf:") == stored_name.removeprefix("hf:"):
        return True
    folder = Path(word.removeprefix("hf:")).expanduser()
    return folder.is_dir() and str(folder.resolve()) == stored_name
