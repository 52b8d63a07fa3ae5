"""Runs for reading, in a folder on this machine or on the hub."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import NotFound, Unavailable
from wander_client.runs.text import message_text, shorten

if TYPE_CHECKING:
    from wander.evals.store.folder import LinesInOrder, RunFolder
    from wander.types import Rollout
    from wander.wire import RolloutRow, RunDetail, RunSummary

    from wander_client.context import Invocation

RUNS = "posted-runs"
"""Folder in the cache for downloaded runs. They stay valid, because a posted run never changes."""


class LocalRun:
    """A run folder of this machine."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.location = str(folder.path)
        """Path of the folder. For a `PostedRun`, the ID on the hub."""
        self.manifest = folder.manifest

    @cached_property
    def summary(self) -> RunSummary:
        """The summary, recomputed because the summary file may be outdated or edited."""
        from wander.evals.stats.summary import summarize_run

        return summarize_run(self.manifest, self._lines)

    @cached_property
    def _lines(self) -> LinesInOrder:
        opened = ExitStack()
        weakref.finalize(self, opened.close)
        return opened.enter_context(self._folder.in_order())

    def rows(self) -> Iterator[RolloutRow]:
        """Yield the thin rows of all rollouts, in the manifest's order of examples.

        Reading to the end also computes `summary`.
        """
        from wander.evals.stats.summary import RunningSummary

        running = RunningSummary(self.manifest.environment.info, example_ids=self.manifest.example_ids)
        for number, rollout in enumerate(self._lines):
            running.add(rollout)
            yield _row(number, rollout)
        self.__dict__["summary"] = running.summary(expected=self.manifest.expected_rollouts)

    @cached_property
    def _samples(self) -> list[Rollout]:
        from wander.train.records.files import read_samples

        return read_samples(self._folder.path)

    def sample_rows(self) -> list[RolloutRow]:
        """Return the thin rows of the rollouts that training repeats, numbered after the others."""
        return [_row(number, rollout) for number, rollout in enumerate(self._samples, start=len(self._lines))]

    def rollout(self, number: int) -> Rollout:
        """Return a whole rollout by the number of its row; raises `NotFound`."""
        count = len(self._lines)
        if number < count:
            return self._lines[number]
        if number - count < len(self._samples):
            return self._samples[number - count]
        raise NotFound(
            f"the run has no rollout {number}",
            hint=f"`wander view {self.location}` lists its {count} rollouts",
            code="rollout_not_found",
        )

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every whole rollout, in the order of the record."""
        return self._folder.rollouts()


class PostedRun:
    """A run on the hub."""

    def __init__(self, context: Invocation, detail: RunDetail) -> None:
        self._context = context
        self.detail = detail
        self.location = detail.run_id
        self.manifest = detail.manifest
        self.summary = detail.summary

    def rows(self) -> Iterator[RolloutRow]:
        """Yield the thin rows of all rollouts, in the manifest's order of examples."""
        with self._context.hub() as hub:
            yield from hub.rollout_rows(self.location)

    def sample_rows(self) -> list[RolloutRow]:
        """Return an empty list: the run's page shows the samples."""
        return []

    def rollout(self, number: int) -> Rollout:
        """Return a whole rollout by the number of its row; raises `NotFound`."""
        with self._context.hub() as hub:
            return hub.rollout(self.location, number)

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every whole rollout, in the order of the record."""
        with self._context.hub() as hub:
            yield from hub.rollouts(self.location, self.detail.rollouts_sha256)

    def download(self) -> Path:
        """Return the folder of the run; downloads it if it is not in the cache.

        The folder contains the manifest and the rollouts but not the record of a command, since the run
        belongs to somebody else. Raises `ClientError` if the rollouts do not match the hub's digest.
        """
        from wander.evals.stats.summary import summarize_run
        from wander.evals.store.folder import RunFolder

        context, posted = self._context, self.detail
        # Cached copies are separate for each hub, so that a hub cannot replace another hub's runs.
        stated = "\n".join([context.settings.hub, posted.sha256, str(posted.rollouts_sha256)])
        digest = hashlib.sha256(stated.encode()).hexdigest()[:16]
        folder = context.settings.cache_dir / RUNS / f"{posted.run_id}-{digest}"
        if (folder / "run.json").is_file():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{posted.run_id}-", dir=folder.parent) as work,
            context.output.progress("downloading", posted.summary.rollouts, unit="rollouts") as bar,
        ):
            run = RunFolder.create(Path(work) / "run", posted.manifest)
            try:
                count = 0
                for count, rollout in enumerate(self.rollouts(), start=1):
                    run.append(rollout)
                    bar.update(count)
                if count != posted.summary.rollouts:
                    sent = (
                        f"the hub sent {count:,} of {posted.summary.rollouts:,} rollouts of `{self.location}`"
                    )
                    raise Unavailable(sent, hint="try again in a moment")
                if posted.manifest.ended_at is not None:
                    summary = summarize_run(run.manifest, run.rollouts_in_order())
                    run.finish(summary, ended_at=posted.manifest.ended_at)
            finally:
                run.close()
            shutil.rmtree(folder, ignore_errors=True)  # of a download that was cut short
            (Path(work) / "run").rename(folder)
        return folder


FoundRun = LocalRun | PostedRun
"""A run on this machine or on a hub."""


def _row(number: int, rollout: Rollout) -> RolloutRow:
    from wander.wire import RolloutRow

    last = next((m for m in reversed(rollout.completion) if m.get("role") == "assistant"), None)
    return RolloutRow(
        number=number,
        example_id=rollout.example_id,
        index=rollout.index,
        reward=rollout.reward,
        stop_reason=rollout.stop_reason,
        failure=rollout.failure.boundary if rollout.failure else None,
        truncated=rollout.truncated,
        turns=len(rollout.turns),
        completion_tokens=rollout.usage.completion_tokens,
        seconds=rollout.seconds,
        preview=shorten(message_text(last), 200) if last else "",
        step=rollout.step,
    )
