"""A run as an object: its reward, rollouts, tables and charts, and methods to repeat it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from wander.types import Rollout

from wander_client.environments.sandbox import choose_policy, confines, sandbox_options
from wander_client.errors import UsageError
from wander_client.failures import validate
from wander_client.python.background import called_from_python, wait_for
from wander_client.python.output import open_invocation
from wander_client.runs.found import LocalRun, PostedRun
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.evals.regrade import Regrading
    from wander.evals.stats.comparison import Comparison
    from wander.wire import MetricSummary, RunDetail, RunManifest, RunSummary
    from wander.wire.verification import Agreement, LevelSought, ReplayReport, RunEvidence

    from wander_client.context import Invocation
    from wander_client.runs.found import FoundRun


class Run(os.PathLike[str]):
    """A run, with its settings, rollouts and results.

    `path` is its folder, which `env.evaluate` or `wander eval` created. Raises `RunError` for another folder.
    `hub.run(ID)` returns a posted run.
    """

    @called_from_python
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._context: Invocation | None = None
        self._posted: PostedRun | None = None
        self._open(Path(path))

    @classmethod
    def of_posted(cls, context: Invocation, detail: RunDetail) -> Run:
        """Return a posted run. Its rollouts are downloaded when they are first needed."""
        run = cls.__new__(cls)
        run._context = context
        run._found = run._posted = PostedRun(context, detail)
        return run

    def _open(self, folder: Path) -> LocalRun:
        from wander.evals.store.folder import RunFolder

        self._path = folder
        local = LocalRun(RunFolder.open(folder))
        self._found: FoundRun = local
        return local

    @property
    def path(self) -> Path:
        """Folder of the run. A posted run is downloaded into the cache first."""
        self._local()
        return self._path

    def _local(self) -> LocalRun:
        """Return the run on this machine. A posted run is downloaded first."""
        if isinstance(self._found, LocalRun):
            return self._found
        return self._open(self._found.download())

    @property
    def _here(self) -> Invocation:
        """Hub, settings and output for the run."""
        if self._context is None:
            self._context = open_invocation()
        return self._context

    @classmethod
    @called_from_python
    def merge(cls, shards: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Run:
        """Merge the shards of a run (`env.evaluate(..., shard="0/8")`) into a new folder.

        Raises `RunError` if a shard is missing, passed twice, unfinished, or from another run.
        """
        from wander_client.suites.merge import merge

        (merged,) = merge([Path(shard) for shard in shards], Path(out))
        return cls(merged.run_dir)

    @property
    def id(self) -> str:
        """ID of the run, here and on a hub."""
        return self.manifest.run_id

    @property
    def manifest(self) -> RunManifest:
        """Pinned inputs of the run: environment, model, sampling, seed, examples."""
        return self._found.manifest

    @property
    def summary(self) -> RunSummary:
        """Aggregates that are computed from the rollouts."""
        return self._found.summary

    @property
    def environment(self) -> str:
        """`owner/name@version`, or the name of a folder's environment."""
        pin = self.manifest.environment
        return f"{pin.full_name}@{pin.version}" if pin.version else pin.full_name

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.manifest.model.name

    @property
    def reward(self) -> float | None:
        """Mean reward over the examples, or None if no rollout was scored."""
        return self.summary.reward_mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the reward, clustered by example, or None if there are too few scored rollouts."""
        low, high = self.summary.reward_low, self.summary.reward_high
        return None if low is None or high is None else (low, high)

    @property
    def metrics(self) -> Metrics:
        """Mean, deviation and interval of every reward function, by name."""
        return Metrics(self.summary.metrics)

    @property
    def failed(self) -> int:
        """Number of failed rollouts, which have no reward and are not in any mean."""
        return self.summary.failed

    @property
    def rollouts(self) -> Rollouts:
        """The rollouts, read from disk when they are needed. A posted run is downloaded first."""
        return Rollouts(self._local())

    @called_from_python
    def to_arrow(self, *, tokens: bool = False) -> Any:
        """Return a `pyarrow.Table` with one row per rollout. `tokens` adds token IDs and log-probabilities
        per turn. Requires `wander-sdk[data]`. Values without a fixed shape (`answer`, `info`) are JSON text.
        """
        from wander.evals.export import arrow_table

        return arrow_table([self._local()], tokens=tokens)

    @called_from_python
    def to_pandas(self, *, tokens: bool = False) -> Any:
        """Return a `pandas.DataFrame` with one row per rollout and a column `metrics.NAME` per reward
        function. Requires `wander-sdk[pandas]`.
        """
        from wander.evals.export import data_frame

        return data_frame([self._local()], tokens=tokens)

    @called_from_python
    def export(
        self, path: str | os.PathLike[str], format: str | None = None, *, tokens: bool = False
    ) -> Path:
        """Write the run for another tool, and return the path.

        The formats are those of `wander runs export`. Without a format, the file name chooses one. `tokens`
        adds token IDs and log-probabilities.
        """
        from wander_client.runs.exporting import start_export

        place = Path(path)
        _, export = start_export([self._local()], place, format, tokens=tokens)
        for _ in export:
            pass
        return place

    @called_from_python
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy the folder of the run to a new folder."""
        from wander.evals.store.jsonl import refuse_unsafe
        from wander.system.plain_files import copy_plain_folder

        place = Path(path)
        if place.exists():
            raise UsageError(f"`{place}` already exists", hint="choose a new folder")
        with refuse_unsafe():
            copy_plain_folder(self.path, place)
        return place

    @called_from_python
    def evidence(self) -> RunEvidence:
        """Return what the hub verified about the posted run, level by level.

        Raises `NotFound` if the hub does not have the run.
        """
        with self._here.hub() as hub:
            return hub.evidence(self.id)

    @called_from_python
    def replay(
        self,
        *,
        level: LevelSought = "replayed",
        sample: int | None = None,
        seed: int = 0,
        arguments: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        no_lock: bool = False,
        concurrency: int = 64,
        sandbox: bool | Mapping[str, Any] | None = None,
    ) -> ReplayReport:
        """Replay the run from its recorded completions, without a model, and compare every rollout.

        - `level`: `"replayed"`, `"rescored"` (only the rubric, on the stored transcripts) or `"highest"`.
        - `sample`: replay only this many rollouts, drawn with `seed`.
        - `arguments`: environment arguments to use instead of the run's.
        - `folder`: folder of the environment to use instead of the pinned version.
        - `no_lock`: use the newest packages instead of the run's lock.
        - `sandbox`: as in `wander.load`.
        The report's `level` is the level that the run would reach, and `divergences` are the rollouts that
        differ. For a run from somebody else, the same restrictions apply as for `wander runs replay`.
        """
        from wander.wire.verification import VerificationRequest

        from wander_client.environments.replay import replay_in
        from wander_client.evaluate.repeating import prepare_replay

        here = self._here
        hint = "levels are `highest`, `rescored` and `replayed`; a sample has at least 1 rollout"
        validate(VerificationRequest, {"level": level, "sample": sample}, hint)
        ready = prepare_replay(
            here,
            self._origin,
            arguments=arguments,
            folder=None if folder is None else Path(folder),
            sandbox=sandbox_options(sandbox),
            no_lock=no_lock,
        )
        with here.output.progress("replaying", ready.manifest.expected_rollouts, unit="rollouts") as bar:
            report, _ = wait_for(
                replay_in(
                    here,
                    ready.location,
                    ready.manifest,
                    self.rollouts,
                    level=level,
                    sample=sample,
                    seed=seed,
                    concurrency=concurrency,
                    in_process=False,
                    sandbox=ready.sandbox,
                    on_replayed=lambda done, differing: bar.update(done),
                )
            )
        return report

    @called_from_python
    def rerun(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        base_url: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        key_variable: str | None = None,
        margin: float = 0.1,
        concurrency: int | None = None,
        out: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        sandbox: bool | Mapping[str, Any] | None = None,
    ) -> Rerun:
        """Evaluate again with everything that the manifest pins, and test whether the two runs agree.

        - `model`, `base_url`: as in `env.evaluate`. None means those of the run. If somebody else made the
          run, its endpoint is called only if you pass it.
        - `key_variable`, `concurrency`: None means those of your run.
        - `margin`: largest difference that counts as agreement, as a fraction of the reward range.
        - `out`: folder of the new run.
        - `arguments`, `folder`, `sandbox`: as in `replay`.
        """
        from wander_client.evaluate.rerun import repeat_run

        repeated = wait_for(
            repeat_run(
                self._here,
                self._origin,
                model=None if model is None else os.fspath(model),
                base_url=base_url,
                arguments=arguments,
                key_variable=key_variable,
                margin=margin,
                concurrency=concurrency,
                out=None if out is None else Path(out),
                folder=None if folder is None else Path(folder),
                sandbox=sandbox_options(sandbox),
            )
        )
        return Rerun(Run(repeated.run_dir), repeated.agreement, repeated.agrees)

    @called_from_python
    def regrade(
        self,
        environment: str | os.PathLike[str],
        *,
        dry_run: bool = False,
        out: str | os.PathLike[str] | None = None,
        concurrency: int = 64,
        sandbox: bool | Mapping[str, Any] | None = None,
    ) -> Regraded:
        """Grade the rollouts again in another version of their environment, without a model.

        - `environment`: the version that grades, as `owner/name@version` or as a folder.
        - `dry_run`: only count what would be graded and played.
        - `out`: folder of the new run. If it exists, the work continues there.
        - `sandbox`: as in `wander.load`.
        Rollouts that the new version plays differently are missing from the new run.
        """
        from wander_client.environments.location import locate
        from wander_client.evaluate.regrade import name_folder, regrade_run, require_other_version

        here, grader = self._here, os.fspath(environment)
        policy = choose_policy(*sandbox_options(sandbox), default=confines(here.settings, grader))
        location = locate(here, grader)
        require_other_version(self._origin, location)
        folder = here.settings.runs_dir / name_folder(self._origin, location) if out is None else Path(out)
        done = wait_for(
            regrade_run(
                here,
                self._origin,
                location,
                None if dry_run else folder,
                sandbox=policy,
                concurrency=concurrency,
            )
        )
        return Regraded(None if done.after is None else Run(done.after.path), done.regrading)

    @property
    def _origin(self) -> FoundRun:
        """The run as it was opened. A posted run still counts as foreign after its download."""
        return self._posted or self._found

    @called_from_python
    def compare(self, other: Run | str | os.PathLike[str]) -> Comparison:
        """Compare another run with this run, example by example. Above 0, the other run does better.

        Raises `RunError` if the runs have different environments or no examples in common.
        """
        from wander.evals.stats.comparison import compare_runs

        other = other if isinstance(other, Run) else Run(other)
        return compare_runs(self.manifest, self.rollouts, other.manifest, other.rollouts)

    @called_from_python
    def plot(self) -> Any:
        """Return a chart of the rewards and of the mean of each reward function.

        Requires `wander-sdk[plots]`.
        """
        from wander.evals.report.charts import (
            chart_histogram,
            chart_intervals,
            drawn_in_notebooks,
            require_charts,
        )

        altair = require_charts("drawing a run")
        panels = []
        if self.summary.histogram is not None:
            panels.append(chart_histogram(self.summary.histogram, axis="reward", mean=self.reward))
        rows = [
            {"run": self.model, "name": name, "mean": metric.mean, "low": metric.low, "high": metric.high}
            for name, metric in self.metrics.items()
        ]
        if rows:
            panels.append(chart_intervals(rows, "reward function"))
        title = f"{self.model} on {self.environment}"
        whole = altair.vconcat(*(panel.properties(width=420) for panel in panels)).properties(title=title)
        return drawn_in_notebooks(whole)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        run = self._found
        place = f"in {self._path}" if isinstance(run, LocalRun) else f"posted as {run.detail.url}"
        return f"<run of {self.model} on {self.environment}: {self._reward_text()}, {place}>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._facts()
        )
        return f"<table>{cells}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        """Return the rows that a notebook shows."""
        summary = self.summary
        count = f"{summary.rollouts:,} of {summary.expected:,}, over {summary.examples:,} examples"
        return [
            ("environment", self.environment),
            ("model", self.model),
            ("reward", self._reward_text().removeprefix("reward ")),
            *(
                (name, _mean_text(metric.mean, metric.low, metric.high))
                for name, metric in self.metrics.items()
            ),
            ("rollouts", count + (f", {summary.failed:,} failed" if summary.failed else "")),
            ("folder", str(self._path))
            if isinstance(self._found, LocalRun)
            else ("page", self._found.detail.url),
        ]

    def _reward_text(self) -> str:
        if self.reward is None:
            return "no rollout was scored"
        return f"reward {_mean_text(self.reward, self.summary.reward_low, self.summary.reward_high)}"


@dataclass(frozen=True)
class Rerun:
    """A run that repeats another run, with the comparison of both."""

    run: Run
    """The new run."""
    agreement: Agreement
    """Result of the test: verdict, difference with its interval, and other differences between the runs."""
    agrees: bool
    """Whether the runs agree; also False if there are too few examples to tell (`agreement.verdict`)."""


@dataclass(frozen=True)
class Regraded:
    """A run that another version of its environment graded."""

    run: Run | None
    """The new run; None after a dry run."""
    counts: Regrading
    """Number of rollouts by what happened to them. `counts.is_complete` if none must be played again."""


class Metrics(dict[str, "MetricSummary"]):
    """The metrics of a run's reward functions, by name."""

    def __missing__(self, name: str) -> MetricSummary:
        missing = KeyError(name)
        hint = did_you_mean(name, self) or f"the run has {', '.join(self) or 'no metrics'}"
        missing.add_note(f"unknown metric `{name}`: {hint}")
        raise missing


def _mean_text(mean: float, low: float | None, high: float | None) -> str:
    return f"{mean:.3f}" if low is None or high is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


class Rollouts(Sequence[Rollout]):
    """The rollouts of a run, in the order of the record, read from disk when they are needed."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.summary.rollouts

    def __iter__(self) -> Iterator[Rollout]:
        return self._run.rollouts()

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...
    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        if isinstance(index, slice):
            places = range(*index.indices(len(self)))
            wanted = set(places)
            found = {place: one for place, one in enumerate(self) if place in wanted}
            return [found[place] for place in places]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"the run has {len(self)} rollouts, so there is no index {index}")
        return next(islice(self, place, None))

    def __repr__(self) -> str:
        return f"<{len(self):,} rollouts of {self._run.location}>"
