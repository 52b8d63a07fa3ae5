"""Play the evaluations of a suite, several at a time, each in its own run folder."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wander_client.environments.replay import locate_started
from wander_client.environments.sandbox import require_confined
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.evaluate.evaluation import (
    Evaluation,
    Listeners,
    all_failed,
    read_settings_of,
    require_settings,
    resolve_settings,
    run_evaluation,
    stop_on_signals,
)
from wander_client.evaluate.progress import describe_stall
from wander_client.failures import explain
from wander_client.models.pool import ModelPool
from wander_client.models.reference import is_local_model
from wander_client.names import is_scripted
from wander_client.suites.file import Suite, SuiteRun
from wander_client.suites.progress import SuiteProgress

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget
    from wander.evals.run.stopping import StopRequest
    from wander.wire import RunManifest, RunSummary

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.evaluate.settings import EvaluationSettings


@dataclass
class EvaluationOutcome:
    """The result of an evaluation of a suite."""

    run: SuiteRun
    run_dir: Path
    state: Literal["done", "kept", "partial", "failed", "stopped"]
    manifest: RunManifest | None = None
    summary: RunSummary | None = None
    error: ClientError | None = None


@dataclass
class Ready:
    """An evaluation whose environment is installed."""

    run: SuiteRun
    evaluation: Evaluation
    finished: tuple[RunManifest, RunSummary] | None
    """Manifest and summary, if the run is complete without failures and will not be played again."""


@dataclass(frozen=True)
class Common:
    """Objects that the evaluations of a suite share."""

    pool: ModelPool
    slots: asyncio.Semaphore
    stop: StopRequest
    budget: SharedBudget | None


def prepare(context: Invocation, suite: Suite, folder: Path, *, allow_changed_code: bool) -> list[Ready]:
    """Find or install every environment. Raises the first error."""
    ready = []
    for run in suite.parts():
        run_dir = folder / run.folder
        try:
            settings, location = _resolve(context, run.settings, run_dir)
        except Exception as error:
            explained = explain(error)
            message = f"{run.where}: {explained}"
            raise type(explained)(
                message, hint=explained.hint, code=explained.code, detail=explained.detail
            ) from error
        resume = (run_dir / "run.json").exists()
        evaluation = Evaluation(context, settings, location, run_dir, resume, allow_changed_code)
        ready.append(Ready(run, evaluation, _read_finished(run_dir) if resume else None))
    return ready


def _resolve(
    context: Invocation, settings: EvaluationSettings, run_dir: Path
) -> tuple[EvaluationSettings, Location]:
    require_settings(settings)
    started = None
    with contextlib.suppress(NotFound):
        started = read_settings_of(run_dir)
    if started is not None and started.is_own:
        # Keep the version that the run started with, even if there is a newer version.
        pinned = {
            "environment": started.command.environment,
            "environment_files": started.command.environment_files,
        }
        settings = settings.model_copy(update=pinned)
        location = locate_started(context, settings.environment, run_dir)
    else:
        settings, location = resolve_settings(
            context, settings, run_dir if (run_dir / "run.json").exists() else None
        )
    require_confined(context, settings.sandbox, location, settings.model, in_process=settings.in_process)
    return settings, location


def _read_finished(run_dir: Path) -> tuple[RunManifest, RunSummary] | None:
    from wander.evals.stats.summary import summarize_run
    from wander.evals.store.folder import RunFolder

    folder = RunFolder.open(run_dir)
    if folder.manifest.ended_at is None:
        return None
    summary = summarize_run(folder.manifest, folder.rollouts())
    return None if summary.failed or summary.rollouts < summary.expected else (folder.manifest, summary)


async def play_suite(
    context: Invocation,
    suite: Suite,
    ready: list[Ready],
    shown: SuiteProgress,
    budget: SharedBudget | None,
    *,
    models: ModelPool | None = None,
    stop: StopRequest | None = None,
) -> list[EvaluationOutcome]:
    """Play the evaluations that are not finished, within the budget. An error stops only its own evaluation.

    The first Ctrl-C stops all evaluations after saving their rollouts.
    """
    from wander.evals.run.stopping import StopRequest

    stop = stop or StopRequest()
    async with models or ModelPool(context, suite.concurrency) as pool:
        common = Common(pool, asyncio.Semaphore(suite.evaluations_at_once), stop, budget)
        with stop_on_signals(stop):
            playing = [
                asyncio.create_task(_play(item, number, shown, common)) for number, item in enumerate(ready)
            ]

            async def cancel_waiting() -> None:
                # Evaluations that are playing stop by themselves and save their rollouts.
                await stop.requested.wait()
                for task, row in zip(playing, shown.rows, strict=True):
                    if row.state in ("waiting", "starting"):
                        task.cancel()

            watching = asyncio.create_task(cancel_waiting())
            try:
                return await asyncio.gather(*playing)
            finally:
                watching.cancel()
                for task in playing:
                    task.cancel()
                await asyncio.gather(*playing, watching, return_exceptions=True)


async def _play(ready: Ready, number: int, shown: SuiteProgress, common: Common) -> EvaluationOutcome:
    run, run_dir = ready.run, ready.evaluation.run_dir
    if ready.finished is not None:
        shown.set_state(number, "kept", "already complete")
        return EvaluationOutcome(run, run_dir, "kept", *ready.finished)
    from wander.evals.run.budget import Share

    outcome, stall = EvaluationOutcome(run, run_dir, "stopped"), None
    try:
        async with common.slots:
            if common.budget is not None and common.budget.spent is not None:
                shown.set_state(number, "partial", "the budget is spent")
                return EvaluationOutcome(run, run_dir, "partial")
            shown.set_state(number, "starting")
            result = await run_evaluation(
                ready.evaluation,
                Listeners(on_progress=lambda progress: shown.set_progress(number, progress)),
                pool=common.pool,
                stop=common.stop,
                share=None if common.budget is None else Share(common.budget, run.folder),
            )
        summary, stall = result.summary, describe_stall(result, ready.evaluation.settings)
        outcome = EvaluationOutcome(run, run_dir, "done", result.manifest, summary)
        if result.interrupted:
            outcome.state = "stopped"
        elif summary.rollouts and summary.failed == summary.rollouts:
            outcome.state, outcome.error = "failed", all_failed(result)
        elif summary.failed or summary.rollouts < summary.expected:
            outcome.state = "partial"
    except asyncio.CancelledError:
        if not common.stop.requested.is_set():
            raise
    except Exception as error:  # noqa: BLE001 - reported, so that the other evaluations continue
        outcome = EvaluationOutcome(run, run_dir, "failed", error=explain(error))
    shown.set_state(number, outcome.state, str(outcome.error or stall or ""))
    return outcome


def share_budget(suite: Suite, ready: list[Ready]) -> SharedBudget | None:
    """Return the shared budget of the evaluations, across all parts of the suite that were played.

    Returns None without a budget. Raises `UsageError` for a budget in USD if the prices of a model are
    unknown.
    """
    from wander.evals.run.budget import SharedBudget

    if suite.budget_tokens is None and suite.budget_usd is None:
        return None
    for item in ready if suite.budget_usd is not None else ():
        settings = item.evaluation.settings
        # Local models and scripted players cost nothing.
        local = settings.base_url is None and is_local_model(settings.model)
        free = local or settings.serve is not None or is_scripted(settings.model)
        if settings.prices is None and not free:
            raise UsageError(
                f"{item.run.where}: a budget in USD requires the prices of `{settings.model}`",
                hint="set them in USD per million tokens: `--set prices=0.15/0.60`, or `prices` in the "
                "suite's file",
            )
    earlier = {item.run.folder: _sum_spent(item) for item in ready}
    return SharedBudget(suite.budget_tokens, suite.budget_usd, earlier)


def _sum_spent(ready: Ready) -> tuple[int, float]:
    """Return the tokens and the cost of the rollouts that were played before."""
    from wander.evals.run.budget import Meter, count_tokens
    from wander.evals.store.folder import RunFolder
    from wander.types import Usage

    if not (ready.evaluation.run_dir / "run.json").exists():
        return 0, 0.0
    folder = RunFolder.open(ready.evaluation.run_dir)
    spending = folder.manifest.spending
    meter = Meter(ready.evaluation.settings.plan().budget, Usage() if spending is None else spending.usage)
    meter.at_least(sum((count_tokens(rollout.turns) for rollout in folder.rollouts()), Usage()))
    return meter.tokens, meter.usd or 0.0


def describe_spending(budget: SharedBudget) -> dict[str, Any]:
    """Return the fields of a shared budget for `--json`."""
    return {
        "tokens": budget.spent_tokens,
        "usd": budget.spent_usd,
        "budget_tokens": budget.tokens,
        "budget_usd": budget.usd,
        "budget_spent": budget.spent,
    }
