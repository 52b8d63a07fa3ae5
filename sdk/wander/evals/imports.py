"""Results of other libraries as runs of ours: `metadata.json` with `results.jsonl`, or `traces.jsonl`.

What was recorded is kept; what was not is not made up: an imported rollout has no token ids, an unknown
platform and seeds that only name it, so the hub takes such a run as `claimed`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wander.errors import RunError
from wander.evals.stats.summary import summarise
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id
from wander.seeding import derived_seed
from wander.types import (
    EnvironmentInfo,
    Example,
    Message,
    Rollout,
    SamplingArgs,
    Turn,
    Usage,
    task_set_digest,
)
from wander.version import __version__
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest

RESULTS, METADATA, TRACES = "results.jsonl", "metadata.json", "traces.jsonl"
UNKNOWN = "unknown"


@dataclass
class ForeignRun:
    """What a folder of another library says."""

    environment: str
    model: str
    source: str
    """Which library and schema it comes from, for the run's notes."""
    arguments: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    base_url: str | None = None
    owner: str | None = None
    """Who published the environment; None where only its name is known."""
    version: str | None = None
    """The environment's."""
    started_at: datetime | None = None
    rollouts_per_example: int | None = None
    reward_names: list[str] = field(default_factory=list)
    examples: dict[str, Example] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Rollouts by example."""

    def add(self, rollout: Rollout) -> None:
        """Add a rollout, whose number is the next of its example."""
        self.rollouts.append(rollout)
        self.counts[rollout.example_id] += 1

    def example(
        self,
        example_id: str,
        prompt: list[Message],
        answer: Any,
        info: dict[str, Any],
        columns: dict[str, Any],
    ) -> Example:
        """Return the example of a row, made when its first rollout comes."""
        if example_id not in self.examples:
            self.examples[example_id] = Example(
                example_id=example_id,
                index=len(self.examples),
                split="eval",
                seed=derived_seed("imported", self.environment, example_id),
                prompt=prompt,
                answer=answer,
                info=info,
                columns=columns,
            )
        return self.examples[example_id]


@dataclass(frozen=True)
class PublishedName:
    """The environment version of a hub to which somebody says that results belong."""

    owner: str
    name: str
    version: str


def import_results(folder: Path, out: Path, published: PublishedName | None = None) -> RunFolder:
    """Write the results in a folder as a run folder; raises `RunError` for what cannot be read.

    `out` must not hold a run yet. The run is finished: manifest, rollouts, summary. `published` names the
    environment in place of what the results call it; which wheel was used stays unknown.
    """
    foreign = read_results(folder)
    if published is not None:
        foreign.owner, foreign.environment, foreign.version = (
            published.owner,
            published.name,
            published.version,
        )
    run = RunFolder.create(out, manifest_of(foreign))
    try:
        for rollout in foreign.rollouts:
            run.append(rollout)
        summary = summarise(run.rollouts(), expected=run.manifest.expected_rollouts)
        ended = foreign.started_at or datetime.now(UTC)
        run.finish(summary, ended_at=ended)
    finally:
        run.close()
    return run


def read_results(folder: Path) -> ForeignRun:
    """Read the results in a folder, whichever library wrote them; raises `RunError`."""
    from wander_compat.results.classic import read_classic
    from wander_compat.results.traces import read_traces

    if (folder / RESULTS).is_file():
        foreign = read_classic(folder)
    elif (folder / TRACES).is_file():
        foreign = read_traces(folder)
    else:
        raise RunError(
            f"`{folder}` holds neither `{RESULTS}` nor `{TRACES}`",
            hint="give the folder of one evaluation, the one with its `metadata.json`",
        )
    if not foreign.rollouts:
        raise RunError(f"`{folder}` holds no rollouts")
    return foreign


def manifest_of(foreign: ForeignRun) -> RunManifest:
    """Return the manifest of an imported run."""
    examples = list(foreign.examples.values())
    info = EnvironmentInfo(name=foreign.environment, kind=UNKNOWN, eval_examples=len(examples))
    return RunManifest(
        run_id=new_run_id(),
        environment=EnvironmentPin(
            owner=foreign.owner,
            name=foreign.environment,
            version=foreign.version,
            arguments=foreign.arguments,
            info=info,
        ),
        model=ModelPin(name=foreign.model, kind="imported", base_url=foreign.base_url),
        sampling=_sampling(foreign.sampling),
        example_ids=[example.example_id for example in examples],
        rollouts_per_example=max(*foreign.counts.values(), foreign.rollouts_per_example or 1),
        task_set_sha256=task_set_digest(examples),
        started_at=foreign.started_at or datetime.now(UTC),
        platform=Platform(wander=__version__, python=UNKNOWN, system=UNKNOWN, machine=UNKNOWN),
        notes=f"imported from {foreign.source}",
    )


def _sampling(given: dict[str, Any]) -> SamplingArgs:
    from wander_compat.adapters.host_client import merged_sampling

    from wander.errors import ModelError

    try:
        return merged_sampling(SamplingArgs(), given)
    except ModelError as error:
        raise RunError(f"the sampling arguments cannot be read: {error}") from error


def turns_of(prompt: Sequence[Message], completion: Sequence[Message]) -> list[Turn]:
    """Return the model's turns of a conversation."""
    return [
        Turn(message=message, context_messages=len(prompt) + position)
        for position, message in enumerate(completion)
        if message.get("role") == "assistant"
    ]


def total_usage(prompt_tokens: Any, completion_tokens: Any) -> Usage:
    """Return token counts, however they were written."""
    return Usage(prompt_tokens=int(prompt_tokens or 0), completion_tokens=int(completion_tokens or 0))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, object) of a file of JSON lines; a last line cut short is left out.

    Raises `RunError` for any other line that is no object.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise RunError(f"line {number} of `{path}` is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise RunError(f"line {number} of `{path}` is no object")
        yield number, value


@contextmanager
def telling_line(path: Path, number: int) -> Iterator[None]:
    """Turn what a row of an unexpected shape raises into a `RunError` that names its line."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise RunError(f"line {number} of `{path}` makes no rollout: {error}") from error


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty where there is no such file. Raises `RunError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"`{path}` cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"`{path}` holds no object")
    return value


def checked(rollout: dict[str, Any], path: Path, number: int) -> Rollout:
    """Return a rollout; raises `RunError` naming the line that makes none."""
    try:
        return Rollout.model_validate(rollout)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise RunError(f"line {number} of `{path}` makes no rollout: {where}: {problem['msg']}") from error
