"""Find runs: a folder, an id or a folder's name under the runs folder, or an id on the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from wander_client.context import current
from wander_client.errors import NotFound, UsageError

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder
    from wander.types import Rollout
    from wander.wire import RolloutRow, RunDetail, RunManifest, RunSummary


class FoundRun(Protocol):
    """A run to be read, wherever it lies."""

    place: str
    """The folder, or the run's id on the hub."""
    manifest: RunManifest
    summary: RunSummary

    def rows(self) -> list[RolloutRow]:
        """Return the thin rows of all rollouts, in the manifest's order of examples."""
        ...

    def sample_rows(self) -> list[RolloutRow]:
        """Return the thin rows of what a training run played again and again, numbered after the others."""
        ...

    def rollout(self, number: int) -> Rollout:
        """Return one whole rollout by the number of its row; raises `NotFound`."""
        ...

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every whole rollout, in the order of the record."""
        ...


class LocalRun:
    """A run folder of this machine."""

    def __init__(self, folder: RunFolder) -> None:
        from wander.evals.stats.summary import summarise

        self._folder = folder
        self.place = str(folder.path)
        self.manifest = folder.manifest
        # Derived afresh: a summary file may be older than the rollouts, or changed.
        self.summary = summarise(folder.rollouts(), expected=folder.manifest.expected_rollouts)

    def rows(self) -> list[RolloutRow]:
        """Return the thin rows of all rollouts, in the manifest's order of examples."""
        return self._rows

    @cached_property
    def _rows(self) -> list[RolloutRow]:
        position = {name: number for number, name in enumerate(self.manifest.example_ids)}
        rows = sorted(
            (_row(rollout) for rollout in self._folder.rollouts()),
            key=lambda row: (position.get(row.example_id, len(position)), row.index),
        )
        return [row.model_copy(update={"number": number}) for number, row in enumerate(rows)]

    @cached_property
    def _samples(self) -> list[Rollout]:
        from wander.train.records.samples import read_samples

        return read_samples(self._folder.path)

    def sample_rows(self) -> list[RolloutRow]:
        """Return the thin rows of what a training run played again and again, numbered after the others."""
        first = len(self.rows())
        return [
            _row(rollout).model_copy(update={"number": number})
            for number, rollout in enumerate(self._samples, start=first)
        ]

    def rollout(self, number: int) -> Rollout:
        """Return one whole rollout by the number of its row; raises `NotFound`."""
        rows = self.rows()
        if 0 <= number - len(rows) < len(self._samples):
            return self._samples[number - len(rows)]
        if number < len(rows):
            wanted = (rows[number].example_id, rows[number].index)
            for rollout in self._folder.rollouts():
                if rollout.key == wanted:
                    return rollout
        raise NotFound(
            f"the run has no rollout {number}",
            hint=f"`wander view {self.place}` lists its {len(rows)} rollouts",
            code="rollout_not_found",
        )

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every whole rollout, in the order of the record."""
        return self._folder.rollouts()


class PostedRun:
    """A run on the hub."""

    def __init__(self, detail: RunDetail) -> None:
        self.detail = detail
        self.place = detail.run_id
        self.manifest = detail.manifest
        self.summary = detail.summary

    def rows(self) -> list[RolloutRow]:
        """Return the thin rows of all rollouts, in the manifest's order of examples."""
        with current().hub() as hub:
            return list(hub.rollout_rows(self.place))

    def sample_rows(self) -> list[RolloutRow]:
        """Return none: the run's page shows them."""
        return []

    def rollout(self, number: int) -> Rollout:
        """Return one whole rollout by the number of its row; raises `NotFound`."""
        with current().hub() as hub:
            return hub.rollout(self.place, number)

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every whole rollout, in the order of the record."""
        with current().hub() as hub:
            yield from hub.rollouts(self.place)


def _row(rollout: Rollout) -> RolloutRow:
    from wander.wire import RolloutRow

    from wander_client.runs.text import message_text, shortened

    last = next((m for m in reversed(rollout.completion) if m.get("role") == "assistant"), None)
    return RolloutRow(
        number=0,
        example_id=rollout.example_id,
        index=rollout.index,
        reward=rollout.reward,
        stop_reason=rollout.stop_reason,
        failure=rollout.failure.boundary if rollout.failure else None,
        truncated=rollout.truncated,
        turns=len(rollout.turns),
        completion_tokens=rollout.usage.completion_tokens,
        seconds=rollout.seconds,
        preview=shortened(message_text(last), 200) if last else "",
        step=rollout.step,
    )


def local_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """Yield the runs of this machine, the newest first; folders that hold no readable run are told of."""
    from wander.errors import RunError
    from wander.evals.store.folder import RunFolder

    found = []
    # The runs of a suite lie in its folder.
    for path in (*runs_dir.glob("*/run.json"), *runs_dir.glob("*/*/run.json")):
        try:
            found.append(RunFolder.open(path.parent))
        except RunError as error:
            current().output.warn(str(error))
    yield from sorted(found, key=lambda folder: folder.manifest.started_at, reverse=True)


SHORTEST_ID = 6
"""Characters of a run's id that may stand for the whole, when no other id begins so."""
SHOWN_ID = 8


def short_ids(run_ids: Sequence[str]) -> list[str]:
    """Return the beginnings of ids that tell them apart, all of the same length; tables show these."""
    length = SHOWN_ID
    while length < 26 and len({one[:length] for one in run_ids}) < len(set(run_ids)):
        length += 1
    return [one[:length] for one in run_ids]


def run_folder(word: str | None) -> RunFolder:
    """Return the run of a word: a path, the start of a run's id or of its folder's name, or the newest.

    Raises `NotFound`.
    """
    from wander.evals.store.folder import RunFolder

    if word is not None and Path(word).is_dir():
        return RunFolder.open(Path(word))
    runs_dir = current().settings.runs_dir
    folders = list(local_runs(runs_dir))
    if word is None:
        if not folders:
            raise NotFound(
                f"there is no run in `{runs_dir}`", hint="`wander eval` makes one", code="run_not_found"
            )
        return folders[0]
    exact = [one for one in folders if word.rstrip("/") in (one.manifest.run_id, one.path.name)]
    matching = exact or [
        one
        for one in folders
        if one.path.name.startswith(word.rstrip("/"))
        or (len(word) >= SHORTEST_ID and one.manifest.run_id.startswith(word.lower()))
    ]
    if not matching:
        raise NotFound(
            f"no run is called `{word}`", hint="`wander runs` lists the runs here", code="run_not_found"
        )
    if len(matching) > 1:
        names = "\n".join(f"{one.manifest.run_id}  {one.path}" for one in matching[:10])
        raise UsageError(f"`{word}` means {len(matching)} runs", hint="name one of them", detail=names)
    return matching[0]


def resumable_folder(word: Path) -> Path:
    """Return the folder of the run that `--resume` names: a folder, or as `run_folder` takes it."""
    return word if word.is_dir() else run_folder(str(word)).path


_RESUMED_BY = {"evaluation": "eval", "exhaustive": "eval", "training": "train"}


def require_kind(folder: Path, kind: Literal["evaluation", "training"]) -> None:
    """Raise `NotFound` when the folder holds a run of another kind, with the command that resumes it."""
    from wander.evals.store.folder import RunFolder

    found = RunFolder.open(folder).manifest.kind
    if found != kind:
        article = "an" if found[0] in "aeiou" else "a"
        command = _RESUMED_BY.get(found)
        raise NotFound(
            f"`{folder}` is {article} {found} run",
            hint=command and f"go on with `wander {command} --resume {folder}`",
            code="no_run",
        )


def find_run(word: str | None) -> FoundRun:
    """Return the run of a word, from this machine or else from the hub."""
    try:
        folder = run_folder(word)
    except NotFound as missing:
        if word is None or "/" in word:
            raise
        return _run_of_the_hub(word, missing)
    if folder.torn:
        current().output.warn(folder.torn)
    return LocalRun(folder)


def _run_of_the_hub(run_id: str, missing: NotFound) -> FoundRun:
    with current().hub() as hub:
        try:
            return PostedRun(hub.run(run_id))
        except NotFound:
            raise missing from None
