"""Suites: several evaluations in one TOML file, each of which becomes a run of its own.

    concurrency = 32                # model calls at once, of each endpoint
    evaluations_at_once = 4

    [defaults]                      # what holds where an entry says nothing else
    num_examples = 50

    [models.small]                  # a name for `model`, with its endpoint
    model = "qwen3-4b"
    base_url = "http://127.0.0.1:8000/v1"

    [[eval]]                        # lists of environments, models, sampling and seeds: every combination
    environment = ["wander/tictactoe", "./my-env"]
    model = ["small", "smollm2"]
    sampling = [{ temperature = 0.0 }, { temperature = 1.0 }]

Everything is checked before anything plays; a fault is told with the file and the key.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from wander.errors import ConfigError
from wander.types import Record, SamplingArgs, canonical_json

from wander_client.environments.sandbox import chosen_policy
from wander_client.errors import NotFound, UsageError
from wander_client.evaluate.evaluation import EvaluationSettings
from wander_client.models.reference import priced
from wander_client.names import looks_like_path
from wander_client.terminal.suggestions import did_you_mean


class ModelEntry(Record):
    """A model under a name of the suite's own."""

    model: str
    """As for `-m`."""
    base_url: str | None = None
    key_variable: str | None = None
    price: str | None = Field(default=None, pattern=r"^[0-9.]+/[0-9.]+$")
    """`PROMPT/COMPLETION`, USD per million tokens."""
    device: str | None = None
    serve: Literal["vllm"] | None = None
    serve_args: list[str] | None = None
    serve_python: str | None = None
    serve_timeout: float | None = Field(default=None, gt=0)


class Defaults(Record):
    """What an entry may say; all optional."""

    environment: str | list[str] | None = None
    model: str | list[str] | None = None
    base_url: str | None = None
    key_variable: str | None = None
    arguments: dict[str, Any] | None = None
    judge_model: str | None = None
    judge_base_url: str | None = None
    num_examples: int | Literal["all"] | None = Field(default=None)
    rollouts: int | None = Field(default=None, ge=1)
    strata: bool | None = None
    shuffle: bool | None = None
    split: Literal["eval", "train"] | None = None
    seed: int | list[int] | None = None
    sampling: SamplingArgs | list[SamplingArgs] | None = None
    max_rollouts: int | None = Field(default=None, ge=1)
    budget_tokens: int | None = Field(default=None, ge=1)
    budget_usd: float | None = Field(default=None, gt=0)
    price: str | None = Field(default=None, pattern=r"^[0-9.]+/[0-9.]+$")
    cache: bool | None = None
    call_timeout: float | None = Field(default=None, gt=0)
    rollout_timeout: float | None = Field(default=None, gt=0)
    serve: Literal["vllm"] | None = None
    serve_args: list[str] | None = None
    serve_python: str | None = None
    serve_timeout: float | None = Field(default=None, gt=0)
    device: str | None = None
    in_process: bool | None = None
    no_lock: bool | None = None
    pass_env: list[str] | None = None
    sandbox: bool | None = None
    workers: int | None = Field(default=None, ge=1)


class Entry(Defaults):
    """One `[[eval]]` table: the evaluations of every combination of its lists."""

    name: str | None = None
    """Stands before the names of its runs."""


class SuiteFile(Record):
    """A whole suite."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
    concurrency: int = Field(default=32, ge=1)
    """Model calls at once, of each endpoint."""
    evaluations_at_once: int = Field(default=4, ge=1)
    budget_tokens: int | None = Field(default=None, ge=1)
    """Of all evaluations together."""
    budget_usd: float | None = Field(default=None, gt=0)
    defaults: Defaults = Field(default_factory=Defaults)
    models: dict[str, ModelEntry] = Field(default_factory=dict)
    eval: list[Entry] = Field(min_length=1)


@dataclass(frozen=True)
class Planned:
    """One evaluation of a suite."""

    name: str
    folder: str
    """Of its run, in the suite's folder: the same for the same evaluation."""
    settings: EvaluationSettings
    where: str
    """Where the file says so: `suite.toml: eval[2]`."""


@dataclass(frozen=True)
class Suite:
    """Evaluations to play."""

    name: str
    concurrency: int
    at_once: int
    planned: list[Planned]
    file: Path | None = None
    budget_tokens: int | None = None
    """That all of them may spend together."""
    budget_usd: float | None = None


def read_suite(path: Path) -> Suite:
    """Return the evaluations of a file; raises `UsageError` with the key that is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(f"there is no suite `{path}`", hint="check the path", code="no_suite") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` is no valid TOML: {error}", hint="correct the file") from error
    try:
        suite = SuiteFile.model_validate(data)
    except ValidationError as error:
        raise _fault(path, error) from error
    planned = [each for number, entry in enumerate(suite.eval, 1) for each in _of(path, suite, entry, number)]
    return Suite(
        suite.name or path.stem,
        suite.concurrency,
        suite.evaluations_at_once,
        distinct(planned),
        path.resolve(),
        suite.budget_tokens,
        suite.budget_usd,
    )


def distinct(planned: list[Planned]) -> list[Planned]:
    """Return the evaluations; raises `UsageError` for one that stands twice."""
    first: dict[str, Planned] = {}
    for each in planned:
        if (same := first.setdefault(each.folder, each)) is not each:
            raise UsageError(
                f"{each.where}: `{each.name}` is the same evaluation as that of {same.where}",
                hint="take one out, give it another seed, or name its model's endpoint under `[models]`",
            )
    return planned


def planned_run(
    settings: EvaluationSettings, where: str, label: str | None = None, alias: str | None = None
) -> Planned:
    """Return an evaluation of a suite with its name and folder; `alias` is its name for the model."""
    environment, model = _short(settings.environment), alias or _short(settings.model)
    sampling = "".join(f" {name}={value}" for name, value in settings.sampling.given().items())
    seed = f" seed={settings.seed}" if settings.seed else ""
    name = f"{label + ': ' if label else ''}{environment} {model}{sampling}{seed}"
    stem = re.sub(r"[^A-Za-z0-9._=-]+", "-", f"{environment}--{model}").strip("-.")
    return Planned(name, f"{stem}--{_identity(settings, alias)}", settings, where)


_FREE = {
    *(
        "base_url",
        "concurrency",
        "max_rollouts",
        "workers",
        "worker_addresses",
        "worker_token_file",
        "rollout_timeout",
    ),
    *("call_timeout", "budget_tokens", "budget_usd", "prices", "cache", "device", "pass_environ"),
    *("serve_args", "serve_python", "serve_timeout", "environment_files", "in_process", "key_variable"),
}
"""Settings that change no rollout: with others of these it is the same evaluation."""


def _identity(settings: EvaluationSettings, alias: str | None) -> str:
    said = [alias, settings.model_dump(mode="json", exclude=_FREE)]
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:8]


def _of(path: Path, suite: SuiteFile, entry: Entry, number: int) -> Iterator[Planned]:
    """Yield every combination of an entry's lists."""
    where = f"{path.name}: eval[{number}]"
    said = {**_given(suite.defaults), **_given(entry)}
    for name in ("environment", "model"):
        if not said.get(name):
            raise UsageError(f"{where}: `{name}` is missing", hint=f'write `{name} = "..."` there')
    for environment, model, sampling, seed in itertools.product(
        _listed(said["environment"]),
        _listed(said["model"]),
        _listed(said.get("sampling", SamplingArgs())),
        _listed(said.get("seed", 0)),
    ):
        alias = model if model in suite.models else None
        named = {"model": model} if alias is None else _given(suite.models[alias])
        whole = {
            **_given(suite.defaults),
            **named,
            **{k: v for k, v in _given(entry).items() if k != "model"},
        }
        whole |= {"environment": environment, "model": named["model"], "sampling": sampling, "seed": seed}
        try:
            settings = _settings(whole, path.parent, suite.concurrency)
        except (UsageError, ConfigError) as error:
            raise UsageError(f"{where}: {error}", hint=error.hint) from error
        yield planned_run(settings, where, entry.name, alias)


_SAME = (
    *(
        "base_url",
        "key_variable",
        "strata",
        "shuffle",
        "split",
        "max_rollouts",
        "budget_tokens",
        "budget_usd",
    ),
    *("cache", "call_timeout", "rollout_timeout", "serve", "serve_args", "serve_python", "serve_timeout"),
    *("device", "in_process", "no_lock", "workers", "seed", "sampling"),
)
"""Keys of a suite that are called as the settings they stand for."""


def _settings(said: dict[str, Any], folder: Path, concurrency: int) -> EvaluationSettings:
    """Return the settings that a flat table stands for; paths in it begin at the file's folder."""
    judge: dict[str, Any] = {name: said[name] for name in ("judge_model", "judge_base_url") if name in said}
    number = said.get("num_examples", 20)
    model = _beside(said["model"], folder)
    settings = EvaluationSettings(
        environment=_beside(said["environment"], folder),
        model=model,
        arguments={**said.get("arguments", {}), **judge},
        num_examples=None if number == "all" else number,
        rollouts_per_example=said.get("rollouts", 1),
        concurrency=concurrency,
        prices=priced(said.get("price"), said["model"]),
        pass_environ=said.get("pass_env", []),
        sandbox=chosen_policy(said.get("sandbox"), None),
        **{name: said[name] for name in _SAME if name in said},
    )
    settings.plan()
    return settings


def _beside(word: str, folder: Path) -> str:
    """Return a path of the file as one that holds anywhere; any other word as it is."""
    prefix, bare = ("hf:", word[3:]) if word.startswith("hf:") else ("", word)
    if not looks_like_path(bare):
        return word
    return f"{prefix}{(folder / Path(bare).expanduser()).resolve()}"


def _given(table: Record) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.model_fields_set if name != "name"}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _short(word: str) -> str:
    if looks_like_path(word):
        return Path(word).name
    return word.removeprefix("hf:").removeprefix("scripted:")


_TABLES: Mapping[str, type[Record]] = {"defaults": Defaults, "models": ModelEntry, "eval": Entry}


def _fault(path: Path, error: ValidationError) -> UsageError:
    """Return the first fault of a file, by its key, with what may have been meant."""
    first = next(iter(error.errors(include_url=False, include_input=False)))
    # Of a value that may be one thing or a list, pydantic names the branches too.
    place = [part for part in first["loc"] if not (isinstance(part, str) and _BRANCH.fullmatch(part))]
    key = ""
    for part in place:
        key += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if key else ''}{part}"
    if first["type"] == "extra_forbidden":
        known = _TABLES.get(str(place[0]), SuiteFile) if len(place) > 1 else SuiteFile
        meant = did_you_mean(str(place[-1]), known.model_fields)
        names = ", ".join(f"`{name}`" for name in known.model_fields)
        return UsageError(f"`{path}`: `{key}` is no setting of a suite", hint=meant or f"there are {names}")
    if first["type"] == "missing":
        return UsageError(f"`{path}`: `{key}` is missing", hint="`docs/evaluating.md` shows a whole suite")
    said = first["msg"][:1].lower() + first["msg"][1:]
    return UsageError(f"`{path}`: `{key}`: {said}", hint="correct the file; nothing was played")


_BRANCH = re.compile(r"str|int|bool|float|list\[.*\]|literal\[.*\]|SamplingArgs|dict\[.*\]")
