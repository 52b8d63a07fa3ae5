"""Convert results of other libraries into runs. Entry points name the reader of each kind of file.

An import invents nothing. An imported rollout lacks token ids, its platform is unknown, and its seed is only
a label, so the hub gives such a run the level `claimed`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
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

_READERS = {"results.jsonl": ("verifiers", "wander-compat"), "*.eval": ("Inspect", "wander-integrations")}
"""Other library and distribution of a reader, by the name of its entry point."""
UNKNOWN = "unknown"
"""Value of a required field that the other library did not record."""


@dataclass
class ForeignRun:
    """Results of another library."""

    environment: str
    model: str
    source: str
    """Name of the library and its schema, for the run's notes."""
    arguments: dict[str, Any] = field(default_factory=dict)
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    base_url: str | None = None
    owner: str | None = None
    """Owner of the environment, or None if the results name only the environment."""
    version: str | None = None
    """Version of the environment."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rollouts_per_example: int | None = None
    reward_names: list[str] = field(default_factory=list)
    examples: dict[str, Example] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of rollouts of each example."""
    lacks: list[str] = field(default_factory=list)
    """Values that the other library did not record, for the run's notes."""

    def add(self, rollout: Rollout) -> None:
        """Add a rollout as the next one of its example."""
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
        """Return the example of a row. Create it at its first rollout."""
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


def import_results(source: Path, out: Path, published: VersionDetail | None = None) -> RunFolder:
    """Write the results in a file or folder as a finished run folder, with manifest, rollouts and summary.

    `out` must not contain a run. `published` is the version of the environment that the user names; it
    replaces the name in the results. The wheel that produced the results stays unknown.

    Raises: `RunError` if the results cannot be read.
    """
    foreign = read_results(source)
    if published is not None:
        foreign.owner, foreign.environment = published.owner, published.name
        foreign.version = published.version
    examples = list(foreign.examples.values())
    lacks = ", ".join(foreign.lacks)
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
        notes=f"imported from {foreign.source}" + (f", without {lacks}" if lacks else ""),
    )
    run = RunFolder.create(out, manifest)
    try:
        for rollout in foreign.rollouts:
            run.append(rollout)
        run.finish(
            summarize_run(run.manifest, run.rollouts()), ended_at=foreign.ended_at or manifest.started_at
        )
    finally:
        run.close()
    return run


def read_results(path: Path) -> ForeignRun:
    """Read results of any supported library from a file, or from a folder with such a file.

    An entry point of the group `wander.importers` has the name of a file, or a pattern such as `*.eval`. It
    refers to the function that reads a file with this name.

    Raises: `RunError` if no reader fits, or if the results cannot be read.
    """
    readers = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    for reader in readers:
        if path.is_dir():
            pattern = f"**/{reader.name}" if "*" in reader.name else reader.name
            files = sorted(file for file in path.glob(pattern) if file.is_file())
        else:
            files = [path] if fnmatch(path.name, reader.name) and path.is_file() else []
        if len(files) > 1:
            raise RunError(
                f"`{path}` contains {len(files)} files that match `{reader.name}`", hint="name one of them"
            )
        if files:
            foreign: ForeignRun = reader.load()(files[0])
            if not foreign.rollouts:
                raise RunError(f"`{files[0]}` contains no rollouts")
            _require_distinct(files[0], foreign.rollouts)
            return foreign
    known = [reader.name for reader in readers]
    hint = "name the file or the folder of one evaluation"
    for name, (library, distribution) in _READERS.items():
        if name not in known:
            hint += f"; for results of {library}, run `{install_command(distribution)}`"
    raise RunError(f"`{path}` contains none of {', '.join(f'`{name}`' for name in known)}", hint=hint)


def _require_distinct(path: Path, rollouts: list[Rollout]) -> None:
    """Raise `RunError` if results contain a rollout twice, unless the first one failed."""
    done = set[tuple[str, int]]()
    for rollout in rollouts:
        if rollout.key in done:
            raise RunError(
                f"`{path}` contains rollout {rollout.index} of example `{rollout.example_id[:80]}` twice",
                hint="give each result its own pair of example and repetition",
            )
        if rollout.failure is None:
            done.add(rollout.key)
