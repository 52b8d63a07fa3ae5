"""Plays the rollouts of an evaluation concurrently, and records each as it ends.

The limit applies to model calls in flight. Rollouts whose environment or tools are at work do not hold a
call.

A fixed set of tasks pulls rollouts from one iterator, so a plan of a million rollouts needs memory only for
those in flight. A failed rollout is data: it is recorded, and its siblings continue. Only rollouts with a
retryable failure are played again, from the start, with exponential backoff. If rewards compare the rollouts
of one example, these are played, retried and resumed as one group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wander.clients.base import Client
from wander.clients.players import require_players
from wander.clients.rate_limit import SHARED_LIMITER
from wander.errors import ModelError, name_option
from wander.evals.run.admission import Admission
from wander.evals.run.budget import Meter, MeteredClient
from wander.evals.run.plan import EvaluationPlan, planned_examples, planned_on_record
from wander.evals.run.record import PlannedGroup, RunRecord
from wander.evals.run.stopping import FailureWatch, StopRequest, run_until_stopped
from wander.evals.store.bookmark import keep_digests
from wander.evals.store.examples import PackedExamples, RunExamples
from wander.evals.store.folder import run_folder, run_to_resume
from wander.evals.store.manifest import model_pin, new_manifest, player_pins
from wander.handle import EnvironmentHandle, RolloutRequest, make_failed_rollouts
from wander.rollout.garbage import fewer_collections
from wander.types import Example, Failure, Rollout, Usage
from wander.wire import EndpointUse, EnvironmentPin, RunManifest, RunSummary

__all__ = ["EvaluationPlan", "EvaluationResult", "Progress", "evaluate", "planned_examples"]

_PROGRESS_SECONDS = 0.1
_SYNC_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class Progress:
    """Progress of an evaluation."""

    done: int
    """Rollouts recorded, including those of earlier sessions."""
    total: int
    failed: int
    retried: int
    """Rollouts played again after a retryable failure."""
    in_flight: int
    reward_mean: float | None
    usage: Usage
    seconds: float
    """Seconds since this session started to play."""
    calls_in_flight: int = 0
    rate: float | None = None
    """Calls per second that the endpoint receives after it reported too many. None if it did not."""
    paused_seconds: float = 0.0
    """Seconds without any calls to the endpoint."""
    usd: float | None = None
    """Cost of the run so far in USD, or None if the prices are unknown."""


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation."""

    manifest: RunManifest
    summary: RunSummary
    run_dir: Path | None
    rollouts: list[Rollout]
    """All rollouts if the run was not saved to a folder, otherwise empty."""
    interrupted: bool
    """Whether a stop was requested before the last rollout."""
    resumed: int
    """Rollouts that earlier sessions had played."""
    retried: int
    torn: str | None
    """Description of a line that a crash cut short, or None."""
    endpoints: EndpointUse = field(default_factory=EndpointUse)
    """Endpoint use of this session."""
    longest_stall: float = 0.0
    """Longest time in seconds that synchronous code blocked this process: a hook, a reward function or a
    tool of an environment. Code in workers does not count."""
    scoring_seconds: float = 0.0
    """Total seconds that synchronous reward functions blocked their process."""
    scoring_share: float = 0.0
    """`scoring_seconds` as a share of the time of all processes of the environment."""
    processes: int = 1
    """Number of processes that played the environment."""
    spent: str | None = None
    """Description of the budget that ended the run early, or None."""
    left_out: int = 0
    """Number of missing rollouts that were skipped because of `only_failed`."""


OnProgress = Callable[[Progress], None]


async def evaluate(
    environment: EnvironmentHandle,
    client: Client,
    plan: EvaluationPlan,
    run_dir: Path | None,
    pin: EnvironmentPin,
    *,
    resume: bool = False,
    checked: bool = False,
    on_progress: OnProgress | None = None,
    stop: StopRequest | None = None,
) -> EvaluationResult:
    """Play a plan and record it in `run_dir`. With `run_dir=None`, keep the rollouts in memory.

    `resume` continues the run in `run_dir`: rollouts that did not fail are kept, and missing and failed ones
    are played. Raises `RunError` if the pins of the run (environment, arguments, examples, model, sampling,
    seed) differ. If the folder does not contain a run, a new run starts. A long run that took the first
    examples of its split compares them with their digests page by page as they are played. The first page is
    checked immediately.

    `checked` means that the caller has just awaited `client.check()`, which may cost a call, so it is not
    repeated. Raises `ModelError` early if the endpoint cannot be used at all. Everything played until then is
    on disk. Canceling the calling task has the same effect as a stop, and raises `CancelledError`.
    """
    require_players(environment.info, [*client.scripts, *client.others])
    if not checked:
        await client.check()
    if environment.info.calls_tools:
        client.check_tools()
    client.check_sampling(plan.sampling)
    begun = run_to_resume(run_dir, resume=resume)
    recorded = planned_on_record(environment, plan, begun)
    examples: RunExamples = recorded or await planned_examples(environment, plan)
    first = await examples.example(0)
    manifest = new_manifest(
        environment=pin,
        model=model_pin(client),
        examples=examples,
        rollouts_per_example=plan.rollouts_per_example,
        sampling=plan.sampling,
        split=first.split,
        seed=plan.seed,
        notes=plan.notes,
    ).model_copy(
        update={
            "choice": plan.choice,
            "rerun_of": plan.rerun_of,
            "players": player_pins(client),
            "shard": plan.shard,
        }
    )
    record = RunRecord(run_folder(run_dir, manifest, begun), manifest)
    try:
        if isinstance(examples, PackedExamples):
            if record.folder is not None:
                keep_digests(examples, record.folder)
            examples.drop_metadata()
        evaluation = _Evaluation(environment, client, plan, record, stop or StopRequest(), on_progress)
        with _limits(client, plan), fewer_collections(plan.concurrency):
            await evaluation.play(examples)
        return evaluation.result()
    finally:
        if record.folder is not None:
            record.folder.close()


@contextlib.contextmanager
def _limits(client: Client, plan: EvaluationPlan) -> Iterator[None]:
    """Limit the calls in flight.

    Judges and players without their own limiter share that of the model.
    """
    limiter = client.limiter
    token = SHARED_LIMITER.set(limiter)
    try:
        with contextlib.nullcontext() if limiter is None else limiter.at_most(plan.concurrency):
            yield
    finally:
        SHARED_LIMITER.reset(token)


class _Evaluation:
    """State shared by the tasks of one evaluation."""

    def __init__(
        self,
        environment: EnvironmentHandle,
        client: Client,
        plan: EvaluationPlan,
        record: RunRecord,
        stop: StopRequest,
        on_progress: OnProgress | None,
    ) -> None:
        most = plan.most_rollouts(client)
        before = record.manifest.spending
        self._environment = environment
        self._plan = plan
        self._record = record
        self._stop = stop
        self._on_progress = on_progress
        self._admission = Admission(plan.concurrency if client.limiter is not None else most, most)
        self._meter = Meter(plan.budget, Usage() if before is None else before.usage, plan.share)
        self._client = MeteredClient(client, self._admission, self._meter)
        self._watch = FailureWatch(most, why_lost=lambda: environment.lost_reason)
        self._most_tasks = max(1, plan.most_started(client) // record.manifest.played_together)
        self._use_before = self._use()
        self._scored_before = environment.scoring_seconds
        self._spent: str | None = None
        """Description of the budget that is used up, or None."""
        self._retried = self._in_flight = 0
        self._longest_stall = 0.0
        self._started = time.monotonic()
        self._reported_at = 0.0
        self._jitter = random.Random()  # noqa: S311 - spreads retries, decides no result

    async def play(self, examples: RunExamples) -> None:
        """Play the missing rollouts. Returns early on a stop, and raises the verdict of the failure watch."""
        record = self._record
        self._meter.at_least(record.resume())
        record.left_out = record.count_left_out(self._plan)
        groups = record.missing_groups(self._plan)
        count = (record.total - record.resumed - record.left_out) // record.manifest.played_together
        self._report_progress(force=True)
        async with self._each_second():
            tasks = [
                asyncio.create_task(self._play_groups(examples, groups))
                for _ in range(min(self._most_tasks, count))
            ]
            try:
                await run_until_stopped(tasks, self._stop)
            finally:
                record.is_closed = True
        self._report_progress(force=True)
        if self._watch.verdict is not None:
            raise self._watch.verdict

    async def _play_groups(self, examples: RunExamples, groups: Iterator[PlannedGroup]) -> None:
        """Play one group after another, until none is left or the evaluation should end."""
        for place, indices in groups:
            example = await examples.example(place)
            rollout_ids = [f"{example.example_id}/{index}" for index in indices]
            await self._admission.enter(rollout_ids)
            if self._must_stop():
                self._admission.leave(rollout_ids)
                return
            self._in_flight += len(indices)
            try:
                rollouts = await self._play_with_retries(example, indices)
            finally:
                self._in_flight -= len(indices)
                self._admission.leave(rollout_ids)
            for rollout, rollout_id in zip(rollouts, rollout_ids, strict=True):
                self._record.append(self._meter.mark(rollout, rollout_id))
                self._report_progress()
                if self._watch.add(rollout):
                    self._stop.requested.set()
            if self._must_stop():
                return

    async def _play_with_retries(self, example: Example, indices: range) -> list[Rollout]:
        """Play a rollout or a group, and repeat it while its failure is retryable and retries are left."""
        request = RolloutRequest.of(
            self._client,
            example,
            indices,
            run_seed=self._plan.seed,
            sampling=self._plan.sampling,
            together=self._environment.info.group_rewards,
        )
        for attempt in range(self._plan.max_retries + 1):
            try:
                rollouts = await self._environment.play_request(request)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a handle that breaks its promise fails here
                kind = type(error).__name__
                failure = Failure(boundary="environment", type=kind, message=str(error) or kind)
                rollouts = make_failed_rollouts(example, indices, failure)
            retryable = any(rollout.failure is not None and rollout.failure.retryable for rollout in rollouts)
            if not retryable or attempt == self._plan.max_retries:
                break
            self._retried += len(indices)
            pause = min(_LONGEST_RETRY_SECONDS, _RETRY_SECONDS * 2**attempt)
            await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.5))
        return rollouts

    def _must_stop(self) -> bool:
        """Note a budget that is spent or cannot be enforced, and return whether to start no more rollouts."""
        if self._meter.is_blind and self._watch.verdict is None:
            self._watch.verdict = ModelError(
                f"the endpoint of `{self._client.model}` does not count tokens, so no budget can be enforced",
                hint="limit the run with " + name_option("n") + " instead of a budget",
            )
            self._stop.requested.set()
        self._spent = self._spent or self._meter.spent
        return self._stop.requested.is_set() or self._spent is not None or self._watch.verdict is not None

    @contextlib.asynccontextmanager
    async def _each_second(self) -> AsyncIterator[None]:
        """Sync appended rollouts to the disk off the event loop, and report progress even during a pause."""
        if self._record.folder is not None:
            self._record.folder.sync_seconds = None
        finished = asyncio.Event()

        async def keep_syncing() -> None:
            while not finished.is_set():
                began = time.monotonic()
                with contextlib.suppress(TimeoutError):  # a second went by
                    async with asyncio.timeout(_SYNC_SECONDS):
                        await finished.wait()
                stall = time.monotonic() - began - _SYNC_SECONDS
                self._longest_stall = max(self._longest_stall, stall)
                await self._record.sync(self._meter.usage)
                self._report_progress()

        syncing = asyncio.create_task(keep_syncing())
        try:
            yield
        finally:
            finished.set()
            await syncing

    def _report_progress(self, *, force: bool = False) -> None:
        now, record = time.monotonic(), self._record
        if self._on_progress is None or not (force or now - self._reported_at >= _PROGRESS_SECONDS):
            return
        self._reported_at = now
        status = None if self._client.limiter is None else self._client.limiter.status()
        self._on_progress(
            Progress(
                done=record.rollouts,
                total=record.total,
                failed=record.rollouts - record.scored,
                retried=self._retried,
                in_flight=self._in_flight,
                reward_mean=record.reward_mean,
                usage=record.usage,
                seconds=now - self._started,
                calls_in_flight=status.in_flight if status else self._in_flight,
                rate=status.rate if status else None,
                paused_seconds=status.paused_seconds if status else 0.0,
                usd=self._meter.usd,
            )
        )

    def result(self) -> EvaluationResult:
        """Close the run and return its result."""
        record, folder = self._record, self._record.folder
        use = (self._use() - self._use_before).model_copy(update={"cached": self._meter.cached_calls})
        scored = self._environment.scoring_seconds - self._scored_before
        processes = self._environment.processes
        summary = record.finish(self._meter.usage, **self._learned(use))
        is_asked = record.rollouts + record.left_out >= record.total
        return EvaluationResult(
            manifest=record.manifest,
            summary=summary,
            run_dir=folder.path if folder else None,
            rollouts=record.kept,
            interrupted=not is_asked and self._spent is None,
            resumed=record.resumed,
            retried=self._retried,
            torn=folder.torn if folder else None,
            endpoints=use,
            longest_stall=self._longest_stall,
            scoring_seconds=scored,
            scoring_share=scored / (processes * max(1e-9, time.monotonic() - self._started)),
            processes=processes,
            spent=None if record.is_complete else self._spent,
            left_out=record.left_out,
        )

    def _learned(self, use: EndpointUse) -> dict[str, Any]:
        """Return the fields of the manifest that this session changed."""
        manifest, learned = self._record.manifest, dict[str, Any]()
        used = use if self._client.limiter is None else self._record.unreported + use
        if used.calls or use.cached:
            learned["endpoints"] = (manifest.endpoints or EndpointUse()) + used
        if (spending := self._meter.spending()) is not None:
            learned["spending"] = spending
        if (details := model_pin(self._client).details) != manifest.model.details:
            learned["model"] = manifest.model.model_copy(update={"details": details})
        return learned

    def _use(self) -> EndpointUse:
        return EndpointUse() if self._client.limiter is None else self._client.limiter.use()
