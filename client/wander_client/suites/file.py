"""Suites: several evaluations in one TOML file. Each evaluation becomes a run.

    concurrency = 32                # concurrent model calls per endpoint
    evaluations_at_once = 4

    [defaults]                      # settings for all entries
    num_examples = 50

    [models.small]                  # name for `model`, with its endpoint
    model = "qwen3-4b"
    base_url = "http://127.0.0.1:8000/v1"

    [[eval]]                        # plays every combination of its lists
    environment = ["admin/tictactoe", "./my-env"]
    model = ["small", "smollm2"]
    sampling = [{ temperature = 0.0 }, { temperature = 1.0 }]

Everything is checked before the first rollout. Errors name the file and the key.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError
from wander.errors import ConfigError, RunError
from wander.types import Record, canonical_json, first_fault
from wander.wire.run_record import Shard
from wander.wire.untrusted_text import SETTINGS, read_toml_file

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.evaluate.settings import (
    LISTED,
    MAY_CHANGE,
    NOT_IN_SUITES,
    EvaluationSettings,
    settings_for,
)
from wander_client.names import looks_like_path
from wander_client.runs.lookup import SUITE_FILE
from wander_client.runs.own_records import KeptCommand, foreign_record, read_command, write_command
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander_client.settings import Settings


KEYS = EvaluationSettings.model_fields.keys() - NOT_IN_SUITES
"""Settings that `[defaults]`, `[models]` and `[[eval]]` accept. An entry also accepts `name`."""

Table = dict[str, Any]

_EXAMPLE = "the hub's page `/docs/evaluating` shows a complete suite"
"""The hint for a file whose fault names no key."""


class SuiteFile(Record):
    """A suite's file. Its tables contain settings, which are checked after they are combined."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
    evaluations_at_once: int = Field(default=4, ge=1)
    concurrency: int = Field(default=EvaluationSettings.model_fields["concurrency"].default, ge=1)
    budget_tokens: int | None = Field(default=None, ge=1)
    budget_usd: float | None = Field(default=None, ge=0)
    defaults: Table = Field(default_factory=dict)
    models: dict[str, Table] = Field(default_factory=dict)
    eval: list[Table] = Field(min_length=1)


class SuiteRun(Record):
    """An evaluation of a suite."""

    name: str
    folder: str = Field(pattern=r"^[A-Za-z0-9_=][A-Za-z0-9._=-]*$", max_length=255)
    """Name of the run's folder in the suite's folder. The same settings always get the same name."""
    settings: EvaluationSettings
    where: str = Field(default="the suite", exclude=True)
    """Location of the entry for error messages, such as `suite.toml: eval[2]`."""


class Suite(Record):
    """The evaluations of a suite.

    Saved as `suite.json` in its folder, so `--resume` is enough to continue.
    """

    schema_: Literal["wander.suite/1"] = Field(default="wander.suite/1", alias="schema")
    name: str
    file: str | None = None
    """Path of the suite's file."""
    started_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    concurrency: int
    """Number of concurrent model calls per endpoint."""
    evaluations_at_once: int
    budget_tokens: int | None = None
    """Token budget of all runs together."""
    budget_usd: float | None = None
    runs: list[SuiteRun]
    shard: Shard | None = Field(default=None, exclude_if=lambda shard: shard is None)
    """Shard of the suite that the folder contains, or None for the whole suite."""

    def parts(self) -> list[SuiteRun]:
        """Return the runs to play here: all runs, or the runs and parts of runs that belong to the shard.

        The runs are sorted by model and environment, and each shard gets an equal section of this sequence.
        So a shard loads few models and environments.
        """
        shard = self.shard
        if shard is None:
            return self.runs
        by_model = sorted(self.runs, key=lambda run: (run.settings.model, run.settings.environment))
        begin, end, parts = shard.first * len(by_model), shard.end * len(by_model), []
        for index, run in enumerate(by_model):
            first, last = (min(max(edge - index * shard.of, 0), shard.of) for edge in (begin, end))
            if first < last:
                part = None if last - first == shard.of else Shard(first=first, end=last, of=shard.of)
                parts.append(
                    run.model_copy(update={"settings": run.settings.model_copy(update={"shard": part})})
                )
        return [part for run in self.runs for part in parts if part.folder == run.folder]

    @classmethod
    def load(cls, folder: Path) -> KeptCommand[Suite]:
        """Read the suite of a folder, and whether this user started it."""
        try:
            return read_command(folder / SUITE_FILE, cls)
        except FileNotFoundError:
            raise NotFound(
                f"`{folder}` is not the folder of a suite",
                hint="pass the folder that was printed",
                code="no_suite",
            ) from None

    @classmethod
    def load_own(cls, folder: Path, hint: str) -> Suite:
        """Return the suite of a folder that this user started.

        Raises `ClientError` if somebody else started the suite. The error shows its settings.
        """
        kept = cls.load(folder)
        if kept.is_own:
            return kept.command
        requested = (" ".join(run.settings.as_options()) for run in kept.command.runs)
        raise foreign_record(folder, requested, hint)

    def write(self, folder: Path) -> None:
        """Write `suite.json` to the suite's folder atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        write_command(folder / SUITE_FILE, self)


def read_suite(path: Path, user: Settings) -> Suite:
    """Read the suite in a file. Raises `UsageError` for an invalid file or key.

    `user` contains the user's settings, which are the defaults.
    """
    try:
        data = read_toml_file(path, SETTINGS)
    except FileNotFoundError:
        raise NotFound(f"there is no suite `{path}`", hint="check the path", code="no_suite") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    try:
        suite = SuiteFile.model_validate(data)
    except ValidationError as error:
        raise _fault(path, error) from error
    _require_keys(path, suite)
    runs = [
        run
        for number, entry in enumerate(suite.eval, 1)
        for run in _combine(path, suite, entry, number, user)
    ]
    require_distinct(runs)
    return Suite(
        name=suite.name or path.stem,
        file=str(path.resolve()),
        concurrency=suite.concurrency,
        evaluations_at_once=suite.evaluations_at_once,
        budget_tokens=suite.budget_tokens,
        budget_usd=suite.budget_usd,
        runs=runs,
    )


def find_newest(runs_dir: Path, file: Path) -> Path:
    """Return the newest folder of a suite's file. Raises `NotFound` if it was never run."""
    folders = []
    for path in runs_dir.glob(f"*/{SUITE_FILE}"):
        with contextlib.suppress(ClientError, RunError):  # folders from somebody else may contain anything
            kept = Suite.load(path.parent)
            if kept.is_own and kept.command.file == str(file):
                folders.append((kept.command.started_at, path.parent))
    if not folders:
        raise NotFound(
            f"no suite of `{file}` was started in `{runs_dir}`",
            hint=f"start one with `wander eval {file.name}`",
            code="no_suite",
        )
    return max(folders)[1]


def require_distinct(runs: list[SuiteRun]) -> None:
    """Raise `UsageError` if the suite contains an evaluation twice."""
    first: dict[str, SuiteRun] = {}
    for run in runs:
        if (same := first.setdefault(run.folder, run)) is not run:
            raise UsageError(
                f"{run.where}: `{run.name}` is the same evaluation as {same.where}",
                hint="remove one of the two, change its seed, or name its model's endpoint under `[models]`",
            )


def name_run(
    settings: EvaluationSettings, where: str, label: str | None = None, alias: str | None = None
) -> SuiteRun:
    """Return an evaluation with its name and folder. `alias` is the suite's name for the model."""
    environment, model = _short(settings.environment), alias or _short(settings.model)
    sampling = "".join(f" {name}={value}" for name, value in settings.sampling.given().items())
    seed = f" seed={settings.seed}" if settings.seed else ""
    name = f"{label + ': ' if label else ''}{environment} {model}{sampling}{seed}"
    # File names have at most 255 bytes. The digest distinguishes names that were cut off.
    stem = re.sub(r"[^A-Za-z0-9._=-]+", "-", f"{environment}--{model}")[:200].strip("-.")
    return SuiteRun(name=name, folder=f"{stem}--{_identity(settings, alias)}", settings=settings, where=where)


def _identity(settings: EvaluationSettings, alias: str | None) -> str:
    """Return a digest of the settings that affect rollouts."""
    # Excludes defaults, so that new options do not rename existing runs.
    fields = [alias, settings.model_dump(mode="json", exclude=set(MAY_CHANGE), exclude_defaults=True)]
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()[:8]


def _combine(path: Path, suite: SuiteFile, entry: Table, number: int, user: Settings) -> Iterator[SuiteRun]:
    """Yield every combination of an entry's lists."""
    where = f"{path.name}: eval[{number}]"
    own = {key: value for key, value in entry.items() if key != "name"}
    combined = {**suite.defaults, **own}
    for name in ("environment", "model"):
        if not combined.get(name):
            raise UsageError(f"{where}: `{name}` is missing", hint=f'add `{name} = "..."`')
    lists = (
        combined["environment"],
        combined["model"],
        combined.get("sampling", {}),
        combined.get("seed", 0),
    )
    for environment, model, sampling, seed in itertools.product(
        *(values if isinstance(values, list) else [values] for values in lists)
    ):
        alias = model if model in suite.models else None
        named = {"model": model} if alias is None else suite.models[alias]
        whole = {
            **suite.defaults,
            **named,
            **own,
            "model": named["model"],
            "sampling": sampling,
            "seed": seed,
        }
        try:
            settings = settings_for(
                {**whole, "environment": environment, "concurrency": suite.concurrency}, user
            )
            settings = settings.model_copy(
                update={
                    "environment": _absolute(environment, path.parent),
                    "model": _absolute(settings.model, path.parent),
                }
            )
            settings.plan()
        except (UsageError, ConfigError) as error:
            raise UsageError(f"{where}: {error}", hint=error.hint) from error
        yield name_run(settings, where, entry.get("name"), alias)


def _absolute(word: str, folder: Path) -> str:
    """Return a path relative to the suite's file as an absolute path. Other words are unchanged."""
    prefix, bare = ("hf:", word[3:]) if word.startswith("hf:") else ("", word)
    if not looks_like_path(bare):
        return word
    return f"{prefix}{(folder / Path(bare).expanduser()).resolve()}"


def _short(word: str) -> str:
    if looks_like_path(word):
        return Path(word).name
    return word.removeprefix("hf:").removeprefix("scripted:")


def _require_keys(path: Path, suite: SuiteFile) -> None:
    """Raise `UsageError` for unknown or misplaced keys."""
    tables = {"defaults": suite.defaults}
    tables |= {f"models.{name}": table for name, table in suite.models.items()}
    tables |= {f"eval[{number}]": table for number, table in enumerate(suite.eval, 1)}
    for name, table in tables.items():
        known = KEYS | {"name"} if name.startswith("eval") else KEYS
        for key in table.keys() - known:
            belongs = "`concurrency` belongs at the top of the file" if key == "concurrency" else None
            hint = belongs or did_you_mean(key, known) or LISTED
            raise UsageError(f"`{path}`: `{name}.{key}` is not a setting of a suite", hint=hint)
        if name.startswith("models") and not isinstance(table.get("model"), str):
            raise UsageError(f"`{path}`: `{name}.model` is missing", hint='add `model = "..."`')


def _fault(path: Path, error: ValidationError) -> UsageError:
    """Return an error for the first invalid key at the top level of a file, with a suggestion."""
    first = next(iter(error.errors(include_url=False, include_input=False)))
    key = ""
    for part in first["loc"]:
        key += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if key else ''}{part}"
    if first["type"] == "extra_forbidden":
        below = f"`{key}` belongs under `[defaults]` or in `[[eval]]`" if key in KEYS else None
        hint = below or did_you_mean(key, SuiteFile.model_fields) or _EXAMPLE
        return UsageError(f"`{path}`: `{key}` is not a setting of a suite", hint=hint)
    if first["type"] == "missing":
        return UsageError(f"`{path}`: `{key}` is missing", hint=_EXAMPLE)
    return UsageError(f"`{path}`: `{key}`: {first_fault(error)[1]}", hint=_EXAMPLE)
