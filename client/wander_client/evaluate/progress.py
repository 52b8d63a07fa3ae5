"""Play an evaluation and tell how it goes: what begins, a bar, and in the end what is worth a warning."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wander_client.errors import name_option
from wander_client.evaluate.evaluation import Evaluation, Listeners, all_failed, run_evaluation
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.models.pool import ModelPool
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.evals.run.runner import EvaluationResult, Progress
    from wander.evals.run.stopping import StopRequest

    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.terminal.output import Output

LONG_STALL_SECONDS = 5.0
"""A stall of the event loop that is worth a warning; a busy machine makes shorter ones."""
LARGE_SCORING_SHARE = 0.25
"""Share of the time that is worth a warning if synchronous reward functions take it."""


async def play(
    evaluation: Evaluation,
    *,
    pool: ModelPool | None = None,
    stop: StopRequest | None = None,
    only_failed: bool = False,
    exactly: bool = False,
) -> EvaluationResult:
    """Play one evaluation as `run_evaluation` does, and tell how it goes.

    Without a `pool` its model is opened for it alone. `exactly` says that the number of examples is the
    user's own.
    """
    settings, output = evaluation.settings, evaluation.context.output
    with output.progress("evaluating", None, unit="rollouts") as bar:

        def on_start(opened: OpenedEnvironment) -> None:
            output.note(_plan_line(evaluation, opened))
            available, wanted = _available(settings, opened), settings.num_examples
            if exactly and available is not None and wanted is not None and available < wanted:
                there = f"the {settings.split} split has {counted(available, 'example')}"
                output.note(f"{there}, not {wanted}: all are played")

        def on_progress(progress: Progress) -> None:
            bar.total = progress.total
            bar.update(progress.done, _progress_note(progress))

        listeners = Listeners(on_start, on_progress)
        async with pool or ModelPool(evaluation.context) as models:
            result = await run_evaluation(
                evaluation, listeners, pool=models, only_failed=only_failed, stop=stop
            )
    if result.torn:
        output.warn(result.torn)
    if said := describe_stall(result, settings):
        output.warn(said)
    return result


def describe_stall(result: EvaluationResult, settings: EvaluationSettings) -> str | None:
    """Return what to change if the environment's synchronous code kept rollouts waiting."""
    cores = os.cpu_count() or 1
    if result.scoring_share > LARGE_SCORING_SHARE and result.scoring_seconds > LONG_STALL_SECONDS:
        waited = f"rollouts waited for the scoring of others: it took {result.scoring_share:.0%} of the time"
        if settings.in_process:
            share = name_option("workers", max(2, cores))
            return f"{waited}; leave out `in_process`, and share it with " + share
        if result.processes < cores:
            return f"{waited}; share it with " + name_option("workers", cores)
        return f"{waited}; make the reward functions asynchronous, or faster"
    if settings.in_process and result.longest_stall > LONG_STALL_SECONDS:
        held_up = f"the environment's code held up all rollouts for {result.longest_stall:.0f} s at a time"
        return f"{held_up}; leave out `in_process`, or make it asynchronous"
    return None


def require_scored(result: EvaluationResult, output: Output) -> None:
    """Warn of rollouts that failed or are missing; raises `ClientError` where not one could be scored."""
    from wander_client.runs.text import failure_reasons

    summary = result.summary
    if summary.rollouts and summary.failed == summary.rollouts:
        raise all_failed(result)
    if summary.failed and result.run_dir is not None:
        output.warn(f"{summary.failed} of {summary.rollouts} rollouts failed")
        for reason, count in failure_reasons(result.run_dir):
            output.warn(f"{count} x {reason}")
    missing = summary.expected - summary.rollouts
    if result.spent is not None:
        output.warn(f"{result.spent}: {counted(missing, 'rollout')} of {summary.expected:,} not played")
    elif missing:
        output.warn(f"{counted(missing, 'rollout')} of {summary.expected:,} are missing, and were left out")


def _plan_line(evaluation: Evaluation, opened: OpenedEnvironment) -> str:
    settings, location = evaluation.settings, evaluation.location
    known = [number for number in (settings.num_examples, _available(settings, opened)) if number is not None]
    count = min(known) if known else 0
    version = f" {opened.pin.version}" if opened.pin.version else ""
    examples = f"{counted(count, 'example')} x {settings.rollouts}"
    return (
        f"evaluating {settings.model} on {location.label}{version}: {examples} = "
        f"{counted(count * settings.rollouts, 'rollout')}, seed {settings.seed}, "
        f"{counted(settings.concurrency, 'call')} at once\nsaving to {evaluation.run_dir}"
    )


def _progress_note(progress: Progress) -> str:
    mean = "" if progress.reward_mean is None else f"reward {progress.reward_mean:.3f}"
    failed = f"  {progress.failed} failed" if progress.failed else ""
    cost = "" if progress.usd is None else f"  {progress.usd:.4g} USD"
    return f"{mean}{failed}{cost}{rate_limit_note(progress)}"


def rate_limit_note(progress: Progress) -> str:
    """Return what the endpoint allows at the moment, if that is less than was asked for."""
    if progress.paused_seconds >= 1:
        return f"  rate-limited: waiting {progress.paused_seconds:.0f} s"
    if progress.rate is None:
        return ""
    from wander.clients.rate_limit import format_rate

    return f"  rate-limited: {format_rate(progress.rate)}"


def _available(settings: EvaluationSettings, opened: OpenedEnvironment) -> int | None:
    info = opened.handle.info
    return info.eval_examples if settings.split == "eval" else info.train_examples
