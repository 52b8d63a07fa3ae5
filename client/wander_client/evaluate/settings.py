"""The settings of an evaluation: of the command line, suites and Python, and of a run's folder."""

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
"""Sampling arguments that endpoints know, in addition to those of `SamplingArgs`."""

MAY_CHANGE = frozenset(
    {
        *("concurrency", "max_rollouts", "workers", "worker_addresses", "worker_token_file"),
        *("base_url", "key_variable", "budget_tokens", "budget_usd", "prices"),
        *("call_timeout", "rollout_timeout", "serve_timeout"),
    }
)
"""Settings that may differ when a run is resumed, as they change no rollout."""

NOT_EXHAUSTIVE = frozenset(
    {
        *("num_examples", "rollouts", "strata", "shuffle", "split", "shard", "budget_tokens", "budget_usd"),
        "sampling.temperature",
    }
)
"""Settings that mean nothing if every line is played once, greedily."""

BUDGETS = ("budget_tokens", "budget_usd")
"""Limits of what an evaluation may spend; those of a suite, or of shards, hold for all of them together."""

LISTED = "the guide on evaluating lists the settings: `/docs/evaluating` on a hub, docs/evaluating.md"
"""The hint of a wrong setting for which there is no better one."""

Seconds = Annotated[float, Field(gt=0)]


def read_sampling(value: Any) -> SamplingArgs:
    """Return sampling arguments; raises `UsageError` for a wrong value, or a name that nearly is a known one.

    Any other name goes to the endpoint unchanged: endpoints differ in what they take.
    """
    if isinstance(value, SamplingArgs):
        return value
    if not isinstance(value, Mapping):
        raise UsageError("`sampling` is not a table", hint="write `{temperature = 0.7}`")
    usual = USUAL_SAMPLING | SamplingArgs.model_fields.keys()
    for name in value.keys() - usual:
        if meant := did_you_mean(name.lower().replace("-", "_"), usual, cutoff=0.82):
            raise UsageError(f"there is no sampling argument `{name}`", hint=meant)
    try:
        return SamplingArgs(**value)
    except ValidationError as error:
        name, said = first_fault(error)
        raise UsageError(f"sampling argument `{name}`: {said}", hint="correct the value") from error


def _read_prices(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        prompt, completion = (float(part) for part in value.split("/"))
        return TokenPrices(prompt=prompt, completion=completion)
    except ValueError:
        raise UsageError(
            f"`prices`: `{value}` is not a price", hint="write it as `0.15/0.60`, USD per million tokens"
        ) from None


def _read_shard(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    number, _, of = value.partition("/") if value.isascii() else ("", "", "")
    if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
        of = of if of.isdecimal() and int(of) > 1 else "8"
        hint = f"the shards of {of} are `0/{of}` to `{int(of) - 1}/{of}`"
        raise UsageError(f"`shard`: `{value}` is not a part of a run", hint=hint)
    return Shard(first=int(number), end=int(number) + 1, of=int(of))


def _read_sandbox(value: Any) -> Any:
    if isinstance(value, bool):
        return SandboxPolicy() if value else None
    return parse_limits(value) if isinstance(value, list) else value


def _read_date(value: Any) -> Any:
    try:
        return value if value is None else date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise UsageError(
            f"`template_date`: `{value}` is not a date", hint="write it as `2026-11-28`"
        ) from None


def _read_players(value: Any) -> Any:
    for name, model in value.items() if isinstance(value, Mapping) else ():
        if not name or not isinstance(model, str) or not model.strip():
            raise UsageError(f"player `{name}` has no model", hint="name one, as `-m` takes it")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _word(word: str, meaning: int | None) -> BeforeValidator:
    return BeforeValidator(lambda value: meaning if value == word else value)


Words = Annotated[list[str], BeforeValidator(_listed)]


class EvaluationSettings(Record):
    """The settings of an evaluation."""

    model_config = ConfigDict(strict=True, frozen=True)

    environment: str
    """`owner/name@version`, exact, or the absolute path of a folder."""
    model: str
    base_url: str | None = None
    """Address of an OpenAI-compatible endpoint."""
    key_variable: str = KEY_VARIABLE
    """Environment variable that holds the endpoint's key."""
    num_examples: Annotated[int | None, Field(ge=1), _word("all", None)] = 20
    """Examples to play; None, or `all`, means all of the split."""
    rollouts: Annotated[int, Field(ge=1)] = 1
    """Rollouts of each example."""
    strata: bool = False
    """Whether the examples are taken evenly from the strata."""
    shuffle: bool = False
    """Whether the examples are drawn by the seed."""
    concurrency: Annotated[int, Field(ge=1)] = 32
    """Model calls in progress at the same time."""
    max_rollouts: Annotated[int | None, Field(ge=1)] = None
    """Rollouts in progress at the same time; None means twice the concurrency."""
    split: Literal["train", "eval"] = "eval"
    seed: int = 0
    strict: bool = False
    """Whether a row that cannot become an example ends the run; otherwise its rollouts fail."""
    sampling: Annotated[SamplingArgs, BeforeValidator(read_sampling)] = Field(default_factory=SamplingArgs)
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    players: Annotated[dict[str, str], BeforeValidator(_read_players)] = Field(default_factory=dict)
    """Models as `model` names them; the environment's other players are the model's own."""
    budget_tokens: Annotated[int | None, Field(ge=1)] = None
    """Tokens that the whole run may take."""
    budget_usd: Annotated[float | None, Field(ge=0)] = None
    """USD that the whole run may cost; needs prices."""
    prices: Annotated[TokenPrices | None, BeforeValidator(_read_prices)] = None
    """USD per million tokens, as `PROMPT/COMPLETION` or a table."""
    cache: bool = False
    """Whether answers of endpoints are kept and reused."""
    call_timeout: Seconds | None = None
    """Seconds that one model call may take; None means 600."""
    rollout_timeout: Seconds | None = None
    """Seconds that a rollout may take."""
    serve: Literal["vllm"] | None = None
    """Server that serves the model during the run."""
    serve_args: Words = Field(default_factory=list)
    """Arguments of the server: `["--dtype=half"]`."""
    serve_python: str | None = None
    """The Python that has vLLM."""
    serve_timeout: Annotated[float, Field(ge=1)] = START_SECONDS
    """Seconds that the server may take to start."""
    exhaustive: bool = False
    """Whether every line of play is played, greedily, from every opening."""
    max_lines: Annotated[int, Field(ge=1)] = 100_000
    """Lines after which an exhaustive evaluation stops."""
    no_lock: bool = False
    """Whether the newest packages are used instead of the locked ones (recorded in the run)."""
    in_process: bool = False
    """Whether a folder runs in this process."""
    pass_env: Words = Field(default_factory=list)
    """Variables that the environment may see."""
    sandbox: Annotated[SandboxPolicy | None, BeforeValidator(_read_sandbox)] = None
    """Limits of the sandbox that the environment runs in; None means no sandbox."""
    workers: Annotated[int, Field(ge=0, le=MOST_WORKERS), _word("auto", AUTOMATIC)] = AUTOMATIC
    """Processes of the environment."""
    worker_addresses: Words = Field(default_factory=list)
    """Addresses of `wander worker` on other machines."""
    worker_token_file: Annotated[
        str | None, BeforeValidator(lambda value: value if value is None else absolute_path(value))
    ] = None
    """File with the token of these workers."""
    reasoning: Literal["auto", "keep", "drop"] = "auto"
    """Whether a model gets the reasoning of its earlier turns back; `auto`: if its endpoint sent it."""
    system: Literal["merge", "keep"] = "merge"
    """`merge` moves the system prompt into the question if the model has no such role."""
    template_date: Annotated[str | None, BeforeValidator(_read_date)] = None
    """Date that the chat template of a local model shows; None means today."""
    device: str | None = None
    """Device of a model in this process: cpu, cuda, mps."""
    shard: Annotated[Shard | None, BeforeValidator(_read_shard)] = None
    """Part of the run; `wander runs merge` makes one run of all parts."""
    rerun_of: str | None = None
    """The run that is repeated."""
    environment_files: dict[str, str] | None = None
    """Digests of the files of a folder's environment; None in runs of a published one."""

    def as_options(self) -> list[str]:
        """Return the options that ask for the same on a command line, one text each, quoted for a shell.

        What has its default is left out, and so is a run without the sandbox.
        """
        wanted = self.model_dump(mode="json", exclude_defaults=True, exclude=_ADDED)
        words = [shlex.quote(wanted.pop("environment")), shlex.join(["-m", wanted.pop("model")])]
        if self.num_examples is None:
            wanted["num_examples"] = "all"
        if self.sandbox is not None:
            wanted["sandbox"] = wanted["sandbox"] or True
        if self.shard is not None:
            wanted["shard"] = str(self.shard)
        return words + [shlex.join(["--set", pair]) for pair in _pairs("", wanted)]

    def choose_workers(self) -> WorkerChoice:
        """Return the processes that play the environment; raises `ConfigError` for a wrong address."""
        from wander.worker.host.environment import automatic_workers

        count, found = self.workers, read_addresses(self.worker_addresses, self.worker_token_file)
        if count == AUTOMATIC:
            count = len(found) or automatic_workers(self.max_rollouts or 2 * self.concurrency)
        if count < len(found):
            raise UsageError(f"`--workers {count}` is fewer than the {len(found)} of `--worker`")
        return WorkerChoice(count, found, self.rollout_timeout)

    def choose_model(self) -> ModelChoice:
        """Return the model, and what it is served with."""
        serve = None
        if self.serve is not None:
            serve = ServeChoice(self.serve, tuple(self.serve_args), self.serve_python, self.serve_timeout)
        endpoint = (self.base_url, self.key_variable, self.call_timeout)
        players = tuple(sorted(self.players.items()))
        day = date.fromisoformat(self.template_date) if self.template_date else datetime.now().date()
        return ModelChoice(
            *(self.model, *endpoint, self.device, self.cache, serve, players),
            send_reasoning={"auto": None, "keep": True, "drop": False}[self.reasoning],
            merge_system=self.system == "merge",
            template_date=day,
        )

    def plan(self, *, only_failed: bool = False, share: Share | None = None) -> EvaluationPlan:
        """Return the plan for the evaluator; raises `ConfigError` for one that cannot be."""
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
"""Fields that nobody asks for."""


def _pairs(prefix: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield `table.key=value` for all values of nested tables, as TOML."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _pairs(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}={json.dumps(value, ensure_ascii=False)}"


def settings_for(wanted: Mapping[str, Any], user: Settings) -> EvaluationSettings:
    """Return the settings that a command line, a suite or a program asks for, by field.

    The user's file says what they do not. Raises `UsageError` for an unknown field or a wrong value.
    """
    wanted, model = dict(wanted), wanted["model"]
    if "reasoning" not in wanted and user.reasoning is not None:
        wanted["reasoning"] = user.reasoning
    if "prices" not in wanted and model in user.prices:
        try:
            wanted["prices"] = TokenPrices.model_validate(user.prices[model])
        except ValidationError:
            raise UsageError(
                f"`prices.{model}` of the settings file is no price",
                hint=f'write `"{model}" = {{ prompt = 0.15, completion = 0.60 }}`, in USD per million tokens',
            ) from None
    settings = check_settings(wanted)
    _require_meaning(settings, wanted)
    if "sandbox" not in wanted:
        elsewhere, named = bool(settings.worker_addresses), (settings.environment, settings.model)
        if confines(user, *named, in_process=settings.in_process, elsewhere=elsewhere):
            settings = settings.model_copy(update={"sandbox": SandboxPolicy()})
    require_here(settings.sandbox, settings.worker_addresses)
    return settings


def check_settings(wanted: Mapping[str, Any]) -> EvaluationSettings:
    """Return settings; raises `UsageError` with the first field that is wrong."""
    known = EvaluationSettings.model_fields.keys() - _ADDED
    for name in wanted.keys() - known:
        hint = did_you_mean(name, known) or LISTED
        raise UsageError(f"there is no setting `{name}`", hint=hint)
    try:
        return EvaluationSettings(**wanted)
    except ValidationError as error:
        name, said = first_fault(error)
        raise UsageError(_named(name) + f": {said}", hint=LISTED) from error


def _named(name: str) -> Wording:
    """Return the name of a setting, which is `n` in Python for `num_examples`."""
    return Wording(f"`{name}`", "`n`" if name == "num_examples" else f"`{name}`")


def _require_meaning(settings: EvaluationSettings, wanted: Mapping[str, Any]) -> None:
    """Refuse settings that have no effect in combination with the others."""
    needs = dict.fromkeys(("serve_args", "serve_python", "serve_timeout"), "serve") | {
        "max_lines": "exhaustive"
    }
    for name in needs.keys() & wanted.keys():
        if not getattr(settings, needs[name]):
            raise UsageError(f"`{name}` needs `{needs[name]}`", hint=f"add `{needs[name]}`, or leave it out")
    if settings.exhaustive:
        names = wanted.keys() | {f"sampling.{name}" for name in settings.sampling.given()}
        for name in sorted(names & NOT_EXHAUSTIVE):
            raise UsageError(
                f"`{name}` means nothing with `exhaustive`: every line is played once, greedily",
                hint=f"leave `{name}` out",
            )


def resume_settings(
    stored: EvaluationSettings, wanted: Mapping[str, Any], run_dir: Path, command: str
) -> EvaluationSettings:
    """Return the settings of a resumed run; `wanted` holds the settings that were asked for now.

    Raises `UsageError` that names every setting that differs from the run and changes its rollouts.
    """
    wanted = dict(wanted)
    if isinstance(wanted.get("model"), list):
        (wanted["model"],) = wanted["model"]
    tables = {"sampling": stored.sampling.given(), "arguments": stored.arguments, "players": stored.players}
    for name, held in tables.items():
        if name in wanted and isinstance(wanted[name], Mapping):
            wanted[name] = {**held, **wanted[name]}
    asked = check_settings({"environment": stored.environment, "model": stored.model, **wanted})
    same = {"environment": _same_environment, "model": _same_model}
    changed = [
        _named(name) + f": asked for {_shown(value)}, the run has {_shown(held)}"
        for name in wanted
        if name not in MAY_CHANGE
        and (value := getattr(asked, name)) != (held := getattr(stored, name))
        and not (name in same and same[name](value, held))
    ]
    if changed:
        raise UsageError(
            f"cannot resume `{run_dir}`: these settings changed since it started",
            detail=functools.reduce(lambda whole, line: whole + "\n" + line, changed),
            hint=f"continue with only `{command}`, or start a new run without " + name_option("resume"),
            code="other_settings",
        )
    return stored.model_copy(update={name: getattr(asked, name) for name in wanted if name in MAY_CHANGE})


def _shown(value: Any) -> str:
    given = value.given() if isinstance(value, SamplingArgs) else value
    if isinstance(value, SandboxPolicy):
        given = value.model_dump(mode="json", exclude_defaults=True)
    return f"`{given if isinstance(given, str) else json.dumps(given, default=str, ensure_ascii=False)}`"


def _same_environment(word: str, held: str) -> bool:
    """Tell whether a word means the environment of a run; without a version it means any."""
    wanted = parse_environment(word)
    had = Path(held) if Path(held).is_absolute() else parse_environment(held)
    if isinstance(wanted, Path) or isinstance(had, Path):
        return wanted == had
    return (wanted.owner, wanted.name) == (had.owner, had.name) and wanted.fits(had.version)


def _same_model(word: str, held: str) -> bool:
    if word.removeprefix("hf:") == held.removeprefix("hf:"):
        return True
    folder = Path(word.removeprefix("hf:")).expanduser()
    return folder.is_dir() and str(folder.resolve()) == held
