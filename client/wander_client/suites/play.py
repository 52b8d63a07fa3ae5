"""Play the evaluations of a suite, several at a time, each into a run folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wander_client.environments.replay import locate_begun
from wander_client.environments.sandbox import require_confined
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.evaluate.evaluation import (
    Evaluation,
    Listeners,
    all_failed,
    read_settings_of,
    require_settings,
    run_evaluation,
    settle,
    stop_on_signals,
)
from wander_client.evaluate.progress import told_stall
from wander_client.failures import explain
from wander_client.models.pool import ModelPool
from wander_client.models.reference import is_local_model
from wander_client.names import is_scripted
from wander_client.suites.file import Suite, SuiteRun
from wander_client.suites.table import SuiteTable

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget
    from wander.evals.run.stopping import StopRequest
    from wander.wire import RunManifest, RunSummary

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.evaluate.settings import EvaluationSettings


@dataclass
class Outcome:
    """What became of an evaluation of a suite."""

    run: SuiteRun
    run_dir: Path
    state: Literal["done", "kept", "partial", "failed", "stopped"]
    manifest: RunManifest | None = None
    summary: RunSummary | None = None
    error: ClientError | None = None


@dataclass
class Ready:
    """An evaluation whose environment is at hand."""

    run: SuiteRun
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


def prepare(context: Invocation, suite: Suite, folder: Path, *, allow_changed_code: bool) -> list[Ready]:
    """Find, and install where needed, every environment; raises for the first that cannot be found."""
    ready = []
    for run in suite.parts():
        run_dir = folder / run.folder
        try:
            settings, location = _settle(context, run.settings, run_dir)
        except Exception as error:
            explained = explain(error)
            said = f"{run.where}: {explained}"
            raise type(explained)(
                said, hint=explained.hint, code=explained.code, detail=explained.detail
            ) from error
        resume = (run_dir / "run.json").exists()
        evaluation = Evaluation(context, settings, location, run_dir, resume, allow_changed_code)
        ready.append(Ready(run, evaluation, _read_finished(run_dir) if resume else None))
    return ready


def _settle(
    context: Invocation, settings: EvaluationSettings, run_dir: Path
) -> tuple[EvaluationSettings, Location]:
    require_settings(settings)
    begun = None
    with contextlib.suppress(NotFound):
        begun = read_settings_of(run_dir)
    if begun is not None and begun.is_own:
        # The version that the run started with, though there may be a newer one now.
        kept = {
            "environment": begun.command.environment,
            "environment_files": begun.command.environment_files,
        }
        settings = settings.model_copy(update=kept)
        location = locate_begun(context, settings.environment, run_dir)
    else:
        settings, location = settle(context, settings, run_dir if (run_dir / "run.json").exists() else None)
    require_confined(context, settings.sandbox, location, settings.model, in_process=settings.in_process)
    return settings, location


def _read_finished(run_dir: Path) -> tuple[RunManifest, RunSummary] | None:
    from wander.evals.stats.summary import summarise_run
    from wander.evals.store.folder import RunFolder

    folder = RunFolder.open(run_dir)
    if folder.manifest.ended_at is None:
        return None
    summary = summarise_run(folder.manifest, folder.rollouts())
    return None if summary.failed or summary.rollouts < summary.expected else (folder.manifest, summary)


async def play_suite(
    context: Invocation,
    suite: Suite,
    ready: list[Ready],
    table: SuiteTable,
    budget: SharedBudget | None,
    *,
    models: ModelPool | None = None,
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Play what is not finished and what the budget allows; what breaks one evaluation stops no other.

    The first Ctrl-C ends all of them in order.
    """
    from wander.evals.run.stopping import StopRequest

    stop = stop or StopRequest()
    async with models or ModelPool(context, suite.concurrency) as pool:
        common = Common(pool, asyncio.Semaphore(suite.evaluations_at_once), stop, budget)
        with stop_on_signals(stop):
            playing = [
                asyncio.create_task(_play(each, number, table, common)) for number, each in enumerate(ready)
            ]

            async def end_what_waits() -> None:
                # Those that play end by themselves, in order.
                await stop.requested.wait()
                for task, row in zip(playing, table.rows, strict=True):
                    if row.state in ("waiting", "starting"):
                        task.cancel()

            watching = asyncio.create_task(end_what_waits())
            try:
                return await asyncio.gather(*playing)
            finally:
                watching.cancel()
                for task in playing:
                    task.cancel()
                await asyncio.gather(*playing, watching, return_exceptions=True)


async def _play(ready: Ready, number: int, table: SuiteTable, common: Common) -> Outcome:
    run, run_dir = ready.run, ready.evaluation.run_dir
    if ready.finished is not None:
        table.set_state(number, "kept", "complete already")
        return Outcome(run, run_dir, "kept", *ready.finished)
    from wander.evals.run.budget import Share

    outcome, waited = Outcome(run, run_dir, "stopped"), None
    try:
        async with common.slots:
            if common.budget is not None and common.budget.spent is not None:
                table.set_state(number, "partial", "the budget is spent")
                return Outcome(run, run_dir, "partial")
            table.set_state(number, "starting")
            result = await run_evaluation(
                ready.evaluation,
                Listeners(on_progress=lambda progress: table.set_progress(number, progress)),
                pool=common.pool,
                stop=common.stop,
                share=None if common.budget is None else Share(common.budget, run.folder),
            )
        summary, waited = result.summary, told_stall(result, ready.evaluation.settings)
        outcome = Outcome(run, run_dir, "done", result.manifest, summary)
        if result.interrupted:
            outcome.state = "stopped"
        elif summary.rollouts and summary.failed == summary.rollouts:
            outcome.state, outcome.error = "failed", all_failed(result)
        elif summary.failed or summary.rollouts < summary.expected:
            outcome.state = "partial"
    except asyncio.CancelledError:
        if not common.stop.requested.is_set():
            raise
    except Exception as error:  # noqa: BLE001 - the other evaluations go on, and this one's error is told
        outcome = Outcome(run, run_dir, "failed", error=explain(error))
    table.set_state(number, outcome.state, str(outcome.error or waited or ""))
    return outcome


def share_budget(suite: Suite, ready: list[Ready]) -> SharedBudget | None:
    """Return what the evaluations may spend together, over all parts in which the suite is played.

    None without bounds. Raises `UsageError` for a bound in USD where somebody's prices are not known.
    """
    from wander.evals.run.budget import SharedBudget

    if suite.budget_tokens is None and suite.budget_usd is None:
        return None
    for each in ready if suite.budget_usd is not None else ():
        settings = each.evaluation.settings
        # Code and models of this machine cost nothing.
        local = settings.base_url is None and is_local_model(settings.model)
        free = local or settings.serve is not None or is_scripted(settings.model)
        if settings.prices is None and not free:
            raise UsageError(
                f"{each.run.where}: a budget of the suite in USD needs the prices of `{settings.model}`",
                hint="give them in USD per million tokens: `--set prices=0.15/0.60`; in a suite `prices`",
            )
    earlier = {each.run.folder: _sum_spent(each) for each in ready}
    return SharedBudget(suite.budget_tokens, suite.budget_usd, earlier)


def _sum_spent(ready: Ready) -> tuple[int, float]:
    """Return the tokens and the cost of the parts of an evaluation that were played before."""
    from wander.evals.run.budget import Meter, count_tokens
    from wander.evals.store.folder import RunFolder
    from wander.types import Usage

    if not (ready.evaluation.run_dir / "run.json").exists():
        return 0, 0.0
    folder = RunFolder.open(ready.evaluation.run_dir)
    spending = folder.manifest.spending
    meter = Meter(ready.evaluation.settings.plan().budget, Usage() if spending is None else spending.usage)
    meter.at_least(sum((count_tokens(one.turns) for one in folder.rollouts()), Usage()))
    return meter.tokens, meter.usd or 0.0


def describe_spending(budget: SharedBudget) -> dict[str, Any]:
    """Return what `--json` tells of a shared budget."""
    return {
        "tokens": budget.spent_tokens,
        "usd": budget.spent_usd,
        "budget_tokens": budget.tokens,
        "budget_usd": budget.usd,
        "budget_spent": budget.spent,
    }
