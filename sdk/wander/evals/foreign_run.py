"""Results of other libraries as runs of ours; who reads which file is found through entry points.

What was recorded is kept; what was not is not made up: an imported rollout has no token ids, an unknown
platform and seeds that only name it, so the hub takes such a run as `claimed`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from wander.errors import RunError, install_command
from wander.evals.stats.summary import summarize_run
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id
from wander.seeding import derived_seed
from wander.types import EnvironmentInfo, Example, Message, Rollout, SamplingArgs, task_set_digest
from wander.version import __version__
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest, VersionDetail

UNKNOWN = "unknown"
"""What stands where the other library recorded nothing."""


@dataclass
class ForeignRun:
    """What a folder of another library says."""

    environment: str
    model: str
    source: str
    """Which library and schema it comes from, for the run's notes."""
    arguments: dict[str, Any] = field(default_factory=dict)
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
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


GROUP = "wander.importers"


def import_results(folder: Path, out: Path, published: VersionDetail | None = None) -> RunFolder:
    """Write the results in a folder as a run folder; raises `RunError` for what cannot be read.

    `out` must not hold a run yet. The run is finished: manifest, rollouts, summary. `published` is the
    environment version to which somebody says that they belong, in place of what they call it; which wheel
    was used stays unknown.
    """
    foreign = read_results(folder)
    if published is not None:
        foreign.owner, foreign.environment = published.owner, published.name
        foreign.version = published.version
    examples = list(foreign.examples.values())
    info = EnvironmentInfo(name=foreign.environment, kind=UNKNOWN, eval_examples=len(examples))
    manifest = RunManifest(
        run_id=new_run_id(),
        environment=EnvironmentPin(
            owner=foreign.owner,
            name=foreign.environment,
            version=foreign.version,
            arguments=foreign.arguments,
            info=info,
        ),
        model=ModelPin(name=foreign.model, kind="imported", base_url=foreign.base_url),
        sampling=foreign.sampling,
        example_ids=[example.example_id for example in examples],
        rollouts_per_example=max(*foreign.counts.values(), foreign.rollouts_per_example or 1),
        task_set_sha256=task_set_digest(examples),
        started_at=foreign.started_at or datetime.now(UTC),
        platform=Platform(wander=__version__, python=UNKNOWN, system=UNKNOWN, machine=UNKNOWN),
        notes=f"imported from {foreign.source}",
    )
    run = RunFolder.create(out, manifest)
    try:
        for rollout in foreign.rollouts:
            run.append(rollout)
        run.finish(summarize_run(run.manifest, run.rollouts()), ended_at=manifest.started_at)
    finally:
        run.close()
    return run


def read_results(folder: Path) -> ForeignRun:
    """Read the results in a folder, whichever library wrote them; raises `RunError`.

    An entry point in the group `wander.importers` is named for a file and leads to the function that reads a
    folder with such a file.
    """
    readers = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    if not readers:
        hint = f"run `{install_command('wander-compat')}`"
        raise RunError("nothing here reads foreign results", hint=hint)
    reader = next((entry for entry in readers if (folder / entry.name).is_file()), None)
    if reader is None:
        raise RunError(
            f"`{folder}` holds neither {' nor '.join(f'`{entry.name}`' for entry in readers)}",
            hint="give the folder of one evaluation, the one with its `metadata.json`",
        )
    foreign: ForeignRun = reader.load()(folder)
    if not foreign.rollouts:
        raise RunError(f"`{folder}` holds no rollouts")
    return foreign
