"""Play an evaluation and show its progress: a plan, a bar, and warnings at the end."""

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
"""Stalls of the event loop above this are reported. Busy machines cause shorter stalls."""
LARGE_SCORING_SHARE = 0.25
"""Share of the run time above which synchronous reward functions cause a warning."""


async def play(
    evaluation: Evaluation,
    *,
    pool: ModelPool | None = None,
    stop: StopRequest | None = None,
    only_failed: bool = False,
    exactly: bool = False,
) -> EvaluationResult:
    """Play an evaluation like `run_evaluation`, and show its progress.

    Without a `pool`, the model is opened only for this evaluation. `exactly` means that the user chose the
    number of examples.
    """
    settings, output = evaluation.settings, evaluation.context.output
    with output.progress("evaluating", None, unit="rollouts") as bar:

        def on_start(opened: OpenedEnvironment) -> None:
            output.note(_plan_line(evaluation, opened))
            available, wanted = _available(settings, opened), settings.num_examples
            if exactly and available is not None and wanted is not None and available < wanted:
                available_text = f"the {settings.split} split has {counted(available, 'example')}"
                output.note(f"{available_text}, fewer than {wanted}: all are played")

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
    if warning := describe_stall(result, settings):
        output.warn(warning)
    return result


def describe_stall(result: EvaluationResult, settings: EvaluationSettings) -> str | None:
    """Return advice if the environment's synchronous code delayed rollouts, otherwise None."""
    cores = os.cpu_count() or 1
    if result.scoring_share > LARGE_SCORING_SHARE and result.scoring_seconds > LONG_STALL_SECONDS:
        problem = f"rollouts waited while other rollouts were scored, {result.scoring_share:.0%} of the time"
        if settings.in_process:
            share = name_option("workers", max(2, cores))
            return f"{problem}; remove `in_process`, and use more processes: " + share
        if result.processes < cores:
            return f"{problem}; use more processes: " + name_option("workers", cores)
        return f"{problem}; make the reward functions asynchronous or faster"
    if settings.in_process and result.longest_stall > LONG_STALL_SECONDS:
        problem = f"the environment's code blocked all rollouts for up to {result.longest_stall:.0f} s"
        return f"{problem}; remove `in_process`, or make the code asynchronous"
    return None


def require_scored(result: EvaluationResult, output: Output) -> None:
    """Warn about failed and missing rollouts. Raises `ClientError` if every rollout failed."""
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
        output.warn(f"{result.spent}: {counted(missing, 'rollout')} of {summary.expected:,} were not played")
    elif missing:
        output.warn(f"{counted(missing, 'rollout')} of {summary.expected:,} are missing")


def _plan_line(evaluation: Evaluation, opened: OpenedEnvironment) -> str:
    settings, location = evaluation.settings, evaluation.location
    known = [number for number in (settings.num_examples, _available(settings, opened)) if number is not None]
    count = min(known) if known else 0
    version = f" {opened.pin.version}" if opened.pin.version else ""
    examples = f"{counted(count, 'example')} x {settings.rollouts}"
    return (
        f"evaluating {settings.model} on {location.label}{version}: {examples} = "
        f"{counted(count * settings.rollouts, 'rollout')}, seed {settings.seed}, "
        f"{counted(settings.concurrency, 'concurrent call')}\nsaving to {evaluation.run_dir}"
    )


def _progress_note(progress: Progress) -> str:
    mean = "" if progress.reward_mean is None else f"reward {progress.reward_mean:.3f}"
    failed = f"  {progress.failed} failed" if progress.failed else ""
    cost = "" if progress.usd is None else f"  {progress.usd:.4g} USD"
    return f"{mean}{failed}{cost}{rate_limit_note(progress)}"


def rate_limit_note(progress: Progress) -> str:
    """Return a note on the endpoint's current rate limit, or an empty text."""
    if progress.paused_seconds >= 1:
        return f"  rate-limited: waiting {progress.paused_seconds:.0f} s"
    if progress.rate is None:
        return ""
    per_second, per_minute = progress.rate, max(1, round(progress.rate * 60))
    rate = f"{per_second:.0f} calls/s" if per_second >= 1 else f"{per_minute} calls/min"
    return f"  rate-limited: {rate}"


def _available(settings: EvaluationSettings, opened: OpenedEnvironment) -> int | None:
    info = opened.handle.info
    return info.eval_examples if settings.split == "eval" else info.train_examples
