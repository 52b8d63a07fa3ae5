"""Plays the evaluations of a suite, several at a time, each into a run folder of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError
from wander.types import Record

from wander_client.environments.replay import locate_begun
from wander_client.environments.sandbox import require_confined
from wander_client.errors import ClientError, NotFound
from wander_client.evaluate.evaluation import (
    COMMAND_FILE,
    Evaluation,
    Listeners,
    all_failed,
    require_settings,
    run_evaluation,
    settle,
    stopping_on_signals,
    stored_settings,
)
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.failures import explain
from wander_client.models.pool import ModelPool
from wander_client.suites.file import Planned, Suite
from wander_client.suites.table import SuiteTable

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget
    from wander.evals.run.runner import EvaluationResult
    from wander.evals.run.stopping import StopRequest
    from wander.wire import RunManifest, RunSummary

    from wander_client.context import Invocation
    from wander_client.environments.location import Location

SUITE_FILE = "suite.json"


class SuiteRun(Record):
    """One evaluation in `suite.json`."""

    name: str
    folder: str
    settings: EvaluationSettings


class SuiteManifest(Record):
    """`suite.json`: what a suite's folder holds, so that `--resume` needs nothing else."""

    schema_: Literal["wander.suite/1"] = Field(default="wander.suite/1", alias="schema")
    name: str
    file: str | None = None
    """Where the suite was read from."""
    started_at: datetime
    concurrency: int
    evaluations_at_once: int
    budget_tokens: int | None = None
    """That all runs may spend together."""
    budget_usd: float | None = None
    runs: list[SuiteRun]


@dataclass
class Outcome:
    """What became of an evaluation of a suite."""

    planned: Planned
    run_dir: Path
    state: Literal["done", "kept", "partial", "failed", "stopped"]
    manifest: RunManifest | None = None
    summary: RunSummary | None = None
    error: ClientError | None = None


@dataclass
class Ready:
    """An evaluation whose environment is at hand."""

    planned: Planned
    evaluation: Evaluation
    finished: tuple[RunManifest, RunSummary] | None
    """Of a run that is complete and without failures: it is not played again."""


@dataclass(frozen=True)
class Common:
    """What the evaluations of a suite share while they play."""

    pool: ModelPool
    slots: asyncio.Semaphore
    stop: StopRequest
    budget: SharedBudget | None


def write_suite(folder: Path, suite: Suite, started_at: datetime | None = None) -> None:
    """Put `suite.json` into a suite's folder, whole or not at all."""
    manifest = SuiteManifest(
        name=suite.name,
        file=None if suite.file is None else str(suite.file),
        started_at=started_at or datetime.now(UTC),
        concurrency=suite.concurrency,
        evaluations_at_once=suite.at_once,
        budget_tokens=suite.budget_tokens,
        budget_usd=suite.budget_usd,
        runs=[SuiteRun(name=each.name, folder=each.folder, settings=each.settings) for each in suite.planned],
    )
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / f".{SUITE_FILE}"
    work.write_text(manifest.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    work.replace(folder / SUITE_FILE)


def stored_suite(folder: Path) -> SuiteManifest:
    """Return what a suite's folder says of itself."""
    try:
        return SuiteManifest.model_validate_json((folder / SUITE_FILE).read_bytes())
    except FileNotFoundError:
        raise NotFound(
            f"`{folder}` is no folder of a suite", hint="pass the one that was printed", code="no_suite"
        ) from None
    except ValidationError as error:
        raise ClientError(
            f"`{folder / SUITE_FILE}` was changed and cannot be read", detail=str(error)
        ) from error


def suite_of(manifest: SuiteManifest, folder: Path) -> Suite:
    """Return the suite of a folder, as it was begun."""
    return Suite(
        manifest.name,
        manifest.concurrency,
        manifest.evaluations_at_once,
        [Planned(each.name, each.folder, each.settings, str(folder)) for each in manifest.runs],
        None if manifest.file is None else Path(manifest.file),
        manifest.budget_tokens,
        manifest.budget_usd,
    )


def newest_suite(runs_dir: Path, file: Path) -> Path:
    """Return the newest folder of a suite's file; raises `NotFound`."""
    found = []
    for path in runs_dir.glob(f"*/{SUITE_FILE}"):
        manifest = stored_suite(path.parent)
        if manifest.file == str(file):
            found.append((manifest.started_at, path.parent))
    if not found:
        raise NotFound(
            f"no suite of `{file}` was begun in `{runs_dir}`",
            hint=f"begin one with `wander eval {file.name}`",
            code="no_suite",
        )
    return max(found)[1]


def prepare(context: Invocation, suite: Suite, folder: Path, *, allow_changed_code: bool) -> list[Ready]:
    """Find, and install where needed, every environment; raises for the first that is not to be had."""
    ready = []
    for planned in suite.planned:
        run_dir = folder / planned.folder
        try:
            settings, location = _settle(context, planned.settings, run_dir)
        except Exception as error:
            explained = explain(error)
            said = f"{planned.where}: {explained}"
            raise type(explained)(
                said, hint=explained.hint, code=explained.code, detail=explained.detail
            ) from error
        resume = (run_dir / "run.json").exists()
        evaluation = Evaluation(context, settings, location, run_dir, resume, allow_changed_code)
        ready.append(Ready(planned, evaluation, _finished(run_dir) if resume else None))
    return ready


def _settle(
    context: Invocation, settings: EvaluationSettings, run_dir: Path
) -> tuple[EvaluationSettings, Location]:
    require_settings(settings)
    if (run_dir / COMMAND_FILE).exists():
        # The version that the run was begun with, though there may be a newer one now.
        begun = stored_settings(run_dir)
        kept = {"environment": begun.environment, "environment_files": begun.environment_files}
        settings = settings.model_copy(update=kept)
        location = locate_begun(context, settings.environment, run_dir)
    else:
        settings, location = settle(context, settings)
    require_confined(context, settings.sandbox, location, settings.model, in_process=settings.in_process)
    return settings, location


def _finished(run_dir: Path) -> tuple[RunManifest, RunSummary] | None:
    from wander.evals.stats.summary import summarise
    from wander.evals.store.folder import RunFolder

    folder = RunFolder.open(run_dir)
    if folder.manifest.ended_at is None:
        return None
    summary = summarise(folder.rollouts(), expected=folder.manifest.expected_rollouts)
    return None if summary.failed or summary.rollouts < summary.expected else (folder.manifest, summary)


async def play_suite(
    context: Invocation, suite: Suite, ready: list[Ready], table: SuiteTable, budget: SharedBudget | None
) -> list[Outcome]:
    """Play what is not finished and what the budget allows; what breaks one evaluation stops no other.

    The first Ctrl-C ends all of them in order.
    """
    from wander.evals.run.stopping import StopRequest

    stop = StopRequest()
    async with ModelPool(context, suite.concurrency) as pool:
        common = Common(pool, asyncio.Semaphore(suite.at_once), stop, budget)
        with stopping_on_signals(stop):
            playing = [
                asyncio.create_task(_play(each, number, table, common)) for number, each in enumerate(ready)
            ]
            watching = asyncio.create_task(_end_what_waits(stop, playing, table))
            try:
                return await asyncio.gather(*playing)
            finally:
                watching.cancel()
                for task in playing:
                    task.cancel()
                await asyncio.gather(*playing, watching, return_exceptions=True)


async def _end_what_waits(stop: StopRequest, playing: list[asyncio.Task[Outcome]], table: SuiteTable) -> None:
    """After a request to stop, end what is not playing yet: those that play end by themselves, in order."""
    await stop.requested.wait()
    for task, row in zip(playing, table.rows, strict=True):
        if row.state in ("waiting", "starting"):
            task.cancel()


async def _play(ready: Ready, number: int, table: SuiteTable, common: Common) -> Outcome:
    planned, run_dir = ready.planned, ready.evaluation.run_dir
    if ready.finished is not None:
        table.changed(number, "kept", "complete already")
        return Outcome(planned, run_dir, "kept", *ready.finished)
    from wander.evals.run.budget import Share

    outcome = Outcome(planned, run_dir, "stopped")
    try:
        async with common.slots:
            if common.budget is not None and common.budget.spent is not None:
                table.changed(number, "partial", "the suite's budget is spent")
                return Outcome(planned, run_dir, "partial")
            table.changed(number, "starting")
            result = await run_evaluation(
                ready.evaluation,
                Listeners(on_progress=lambda progress: table.progressed(number, progress)),
                pool=common.pool,
                stop=common.stop,
                share=None if common.budget is None else Share(common.budget, planned.folder),
            )
        outcome = _of(planned, run_dir, result)
    except asyncio.CancelledError:
        if not common.stop.requested.is_set():
            raise
    except Exception as error:  # noqa: BLE001 - the other evaluations go on, and this one's error is told
        outcome = Outcome(planned, run_dir, "failed", error=explain(error))
    table.changed(number, outcome.state, str(outcome.error or ""))
    return outcome


def _of(planned: Planned, run_dir: Path, result: EvaluationResult) -> Outcome:
    summary = result.summary
    outcome = Outcome(planned, run_dir, "done", result.manifest, summary)
    if result.interrupted:
        outcome.state = "stopped"
    elif summary.rollouts and summary.failed == summary.rollouts:
        outcome.state, outcome.error = "failed", all_failed(result)
    elif summary.failed or summary.rollouts < summary.expected:
        outcome.state = "partial"
    return outcome
