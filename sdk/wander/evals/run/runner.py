"""Plays the rollouts of an evaluation, many at a time, and records each as it ends.

What is bounded is the model calls in flight; rollouts whose environment or tools are at work hold no call.

A fixed set of tasks pulls rollouts from one iterator, so a plan of a million costs the memory of those in
flight. A failed rollout is data: it is recorded and its siblings go on. Only failures marked retryable are
played again, whole, with exponential backoff. Where rewards compare the rollouts of one example, they are
played, retried and resumed as one group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wander.clients.base import Client
from wander.clients.players import require_players
from wander.clients.rate_limit import SHARED_LIMITER, CallLimiter
from wander.errors import ModelError, name_option
from wander.evals.run.admission import Admission
from wander.evals.run.budget import Meter, MeteredClient, count_answers, count_tokens
from wander.evals.run.plan import EvaluationPlan, planned_examples, planned_on_record
from wander.evals.run.stopping import FailureWatch, StopRequest
from wander.evals.run.tally import DONE, FAILED, Tally
from wander.evals.stats.summary import summarise_run
from wander.evals.store.bookmark import Bookmark, bookmark_of, keep_digests
from wander.evals.store.examples import PackedExamples, RunExamples
from wander.evals.store.folder import RunFolder, begun_run, run_folder
from wander.evals.store.manifest import model_pin, new_manifest, player_pins
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.rollout.garbage import fewer_collections
from wander.types import Example, Failure, Rollout, Usage
from wander.wire import EndpointUse, EnvironmentPin, RunManifest, RunSummary

__all__ = ["EvaluationPlan", "EvaluationResult", "Progress", "evaluate", "planned_examples"]

_MARK_EVERY = 50_000
"""Rollouts after which a long run's bookmark is renewed: so many are read again after a kill, at most."""
_PROGRESS_SECONDS = 0.1
_SYNC_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 30.0
STOP_GRACE_SECONDS = 10.0
"""How long cancelled rollouts may take to clean up after the first request to stop."""


@dataclass(frozen=True)
class Progress:
    """The progress of an evaluation."""

    done: int
    """Rollouts on record, those of a resumed run included."""
    total: int
    failed: int
    retried: int
    """Rollouts that were played again after a retryable failure."""
    in_flight: int
    reward_mean: float | None
    usage: Usage
    seconds: float
    """Since this evaluation, or this resumption of it, began to play."""
    calls_in_flight: int = 0
    rate: float | None = None
    """Calls a second that the endpoint gets after it said that it is asked too much; else None."""
    paused_seconds: float = 0.0
    """How long it still wants not to be asked at all."""
    usd: float | None = None
    """What the run has cost so far; None where the prices are not known."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation."""

    manifest: RunManifest
    summary: RunSummary
    run_dir: Path | None
    rollouts: list[Rollout]
    """Every rollout, when the run was not saved to a folder; empty otherwise."""
    interrupted: bool
    """True when a stop was requested before the last rollout."""
    resumed: int
    """Rollouts that an earlier part of this run had played."""
    retried: int
    torn: str | None
    """What was found of a line that a crash cut short."""
    endpoints: EndpointUse = field(default_factory=EndpointUse)
    """How the endpoints were asked by this part of the run."""
    longest_stall: float = 0.0
    """Seconds that code in this process held up everything else, at most: an environment's synchronous hook,
    reward function or tool. Workers keep that apart."""
    scoring_seconds: float = 0.0
    """Seconds for which synchronous reward functions let nothing else of their process go on, in total."""
    scoring_share: float = 0.0
    """The same, as a share of the time of all processes of the environment."""
    processes: int = 1
    """Processes in which the environment played."""
    spent: str | None = None
    """The budget that ended the run early, in words; None when none did."""
    left_out: int = 0
    """Rollouts that are missing, and were not asked for (`only_failed`)."""


OnProgress = Callable[[Progress], None]
Job = tuple[int, range]
"""An example's place and which of its rollouts to play: one, or where rewards compare them the group."""


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
    """Play a plan and record it in `run_dir` (None keeps the rollouts in memory).

    `resume` continues the run in `run_dir`: rollouts that did not fail are kept, missing and failed ones
    are played. It is refused with `RunError` when the run was made of anything else, and starts a new run
    where the folder has none. The examples of a long run that took the first of its split are held to their
    digests page by page when they are played, the first page at once.

    `checked` says that the caller has just awaited `client.check()`: it may cost a call, so nobody asks
    twice. Raises `ModelError` early when the endpoint cannot be used at all; what was played until then is on
    disk. Cancelling the calling task ends the same way as a stop, with `CancelledError`.
    """
    require_players(environment.info, [*client.scripts, *client.others])
    if not checked:
        await client.check()
    if environment.info.calls_tools:
        client.check_tools()
    client.check_sampling(plan.sampling)
    begun = begun_run(run_dir, resume=resume)
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
    folder = run_folder(run_dir, manifest, begun)
    try:
        if isinstance(examples, PackedExamples):
            if folder is not None:
                keep_digests(examples, folder)
            examples.keep_content_alone()
        evaluation = _Evaluation(
            environment, client, plan, folder, manifest, on_progress, stop or StopRequest()
        )
        limiter = client.limiter
        bound = contextlib.nullcontext() if limiter is None else limiter.at_most(plan.concurrency)
        with bound, fewer_collections(plan.concurrency), _sharing(limiter):
            await evaluation.play(examples)
        return evaluation.result()
    finally:
        if folder is not None:
            folder.close()


@contextlib.contextmanager
def _sharing(limiter: CallLimiter | None) -> Iterator[None]:
    """Let judges and players that bring no limiter use that of the evaluation's model."""
    token = SHARED_LIMITER.set(limiter)
    try:
        yield
    finally:
        SHARED_LIMITER.reset(token)


def _record_broken(example: Example, index: int, error: BaseException) -> Rollout:
    """Record what an environment handle raised although it never should."""
    kind = type(error).__name__
    return Rollout(
        example_id=example.example_id,
        index=index,
        seed=example.seed,
        prompt=example.prompt,
        completion=[],
        failure=Failure(boundary="environment", type=kind, message=str(error) or kind),
    )


class _Evaluation:
    """The state of one evaluation while it plays."""

    def __init__(
        self,
        environment: EnvironmentHandle,
        client: Client,
        plan: EvaluationPlan,
        folder: RunFolder | None,
        manifest: RunManifest,
        on_progress: OnProgress | None,
        stop: StopRequest,
    ) -> None:
        self.environment = environment
        most = plan.most_rollouts(client)
        self.admission = Admission(plan.concurrency if client.limiter is not None else most, most)
        self.manifest = folder.manifest if folder else manifest
        before = self.manifest.spending
        self.meter = Meter(plan.budget, Usage() if before is None else before.usage, plan.share)
        self.client = MeteredClient(client, self.admission, self.meter)
        self.limiter = client.limiter
        self.used_before = EndpointUse() if self.limiter is None else self.limiter.use()
        self.answers = 0
        """Calls of the model that the record has answers of."""
        self.forgotten = EndpointUse()
        """What parts of the run that were killed could not say of their calls."""
        self.plan = plan
        self.folder = folder
        self.on_progress = on_progress
        self.stop = stop
        self.tally = Tally(self.manifest)
        self.watch = FailureWatch(most, why_lost=lambda: environment.lost_reason)
        self.kept: list[Rollout] = []
        self.total = self.manifest.expected_rollouts
        self.unit = self.manifest.played_together
        """How many rollouts are played together."""
        self.most_jobs = max(1, plan.most_started(client) // self.unit)
        self.bookmark = bookmark_of(folder) if folder is not None else None
        self.marked = 0
        """Rollouts that the bookmark knows of."""
        self.resumed = 0
        self.left_out = 0
        """Rollouts that are missing and not asked for."""
        self.spent: str | None = None
        self.untouched = False
        self.retried = 0
        self.in_flight = 0
        self.longest_stall = 0.0
        self.scored_before = environment.scoring_seconds
        self.ended = False
        """Set once nothing more is recorded: a rollout that ignored its cancellation comes too late."""
        self._started = time.monotonic()
        self._told_at = 0.0
        self._jitter = random.Random()  # noqa: S311 - spreads retries, decides no result

    async def play(self, examples: RunExamples) -> None:
        """Play what is missing; returns early on a stop and raises the failure watch's verdict."""
        self._resume()
        jobs = self._missing()
        # A run that was complete and closed before stays as it is, to the byte.
        self.untouched = self.resumed == self.total and self.manifest.ended_at is not None
        if self.folder is not None and not self.untouched:
            self.folder.resume()
        workers = min(self.most_jobs, (self.total - self.resumed - self.left_out) // self.unit)
        self._tell(force=True)
        async with self._each_second():
            tasks = {asyncio.create_task(self._work(examples, jobs)) for _ in range(workers)}
            try:
                await self._until_done(tasks)
            finally:
                await self._cancel(tasks)
                self.ended = True
        self._tell(force=True)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self.watch.verdict is not None:
            raise self.watch.verdict

    def result(self) -> EvaluationResult:
        """Close the run and return what it came to."""
        use, complete = self._use(), self.tally.rollouts == self.total
        scored, processes = self.environment.scoring_seconds - self.scored_before, self.environment.processes
        if self.folder is not None:
            if self.bookmark is not None and not complete:
                self.bookmark.write(self._mark(self.folder))
            # Failures of an earlier part that were not played again still stand there.
            summary = summarise_run(self.manifest, self.folder.rollouts_in_order())
        else:
            summary = summarise_run(self.manifest, sorted(self.kept, key=self.tally.places.place_of))
        if self.folder is not None and not self.untouched:
            if (used := self.forgotten + use).calls or use.cached:
                self.folder.add_use(used)
            if (spending := self.meter.spending()) is not None:
                self.folder.set_spending(spending)
            if (details := model_pin(self.client).details) != self.folder.manifest.model.details:
                self.folder.set_model_details(details)
            if complete:
                self.folder.finish(summary)
                if self.bookmark is not None:
                    self.bookmark.remove()
            else:
                self.folder.write_summary(summary)
        return EvaluationResult(
            manifest=self.folder.manifest if self.folder else self.manifest,
            summary=summary,
            run_dir=self.folder.path if self.folder else None,
            rollouts=self.kept,
            interrupted=not complete
            and self.spent is None
            and self.tally.rollouts + self.left_out < self.total,
            resumed=self.resumed,
            retried=self.retried,
            torn=self.folder.torn if self.folder else None,
            endpoints=use,
            longest_stall=self.longest_stall,
            scoring_seconds=scored,
            scoring_share=scored / (processes * max(1e-9, time.monotonic() - self._started)),
            processes=processes,
            spent=None if complete else self.spent,
            left_out=self.left_out,
        )

    def _use(self) -> EndpointUse:
        use = EndpointUse() if self.limiter is None else self.limiter.use() - self.used_before
        return use.model_copy(update={"cached": self.meter.cached_calls})

    def _missing(self) -> Iterator[Job]:
        """Return an iterator over what is to be played."""
        state, unit, each = self.tally.state, self.unit, self.plan.rollouts_per_example
        starts, shard = range(0, len(state), unit), self.plan.shard
        # Of a group one failed rollout is enough: it is played again as a whole.
        only_failed = self.plan.only_failed
        if only_failed:
            failed = sum(FAILED in state[start : start + unit] for start in starts)
            self.left_out = self.total - self.resumed - failed * unit
        return (
            (start // each, range(start % each, start % each + unit))
            for number, start in enumerate(starts)
            if (FAILED in state[start : start + unit] if only_failed else state[start] != DONE)
            and (shard is None or shard.takes(number))
        )

    def _resume(self) -> None:
        """Learn what an earlier part of this run has come to; of groups only whole ones are done."""
        if self.folder is None:
            return
        mark, tally = self.bookmark.read() if self.bookmark is not None else None, self.tally
        if mark is not None:
            tally.restore(mark)
        spent = mark.spent if mark is not None else Usage()
        self.answers = mark.answers if mark is not None else 0
        for rollout, whole in self._on_record(self.folder, mark):
            self.answers += count_answers(rollout.turns, self.manifest.players)
            spent += count_tokens(rollout.turns)
            if rollout.failure is not None:
                tally.state[tally.places.place_of(rollout)] = FAILED
            elif whole:
                tally.add(rollout)
        self.meter.at_least(spent)
        said = 0 if self.manifest.endpoints is None else self.manifest.endpoints.calls
        if self.limiter is not None and self.answers > said:
            self.forgotten = EndpointUse(calls=self.answers - said, at_least=True)
        self.resumed = tally.state.count(DONE)

    def _on_record(self, folder: RunFolder, mark: Bookmark | None) -> Iterator[tuple[Rollout, bool]]:
        """Yield what is on record since a bookmark, and whether all that is played with it is."""
        if self.unit > 1:
            good = Counter(each.example_id for each in folder.rollouts() if each.failure is None)
            yield from ((each, good[each.example_id] == self.unit) for each in folder.rollouts())
            return
        start = (mark.length, mark.lines) if mark is not None else (0, 0)
        for number, rollout in folder.every_line(*start):
            if self.tally.state[self.tally.places.place_of(rollout)] == DONE:
                raise folder.repeats(number)
            yield rollout, True

    def _mark(self, folder: RunFolder) -> Bookmark:
        self.marked = self.tally.rollouts
        return self.tally.bookmark(folder.plain_bytes(), self.meter.usage, self.answers)

    async def _work(self, examples: RunExamples, jobs: Iterator[Job]) -> None:
        for place, indices in jobs:
            example = await examples.example(place)
            rollout_ids = [f"{example.example_id}/{index}" for index in indices]
            await self.admission.enter(rollout_ids)
            if self.stop.requested.is_set() or self._over_budget():
                self.admission.leave(rollout_ids)
                return
            self.in_flight += len(indices)
            try:
                rollouts = await self._play_with_retries(example, indices)
            finally:
                self.in_flight -= len(indices)
                self.admission.leave(rollout_ids)
            for rollout, rollout_id in zip(rollouts, rollout_ids, strict=True):
                self._record(self.meter.mark(rollout, rollout_id))
                if self.watch.add(rollout):
                    self.stop.requested.set()
            if self._over_budget() or self.stop.requested.is_set():
                return

    def _over_budget(self) -> bool:
        if self.meter.is_blind and self.watch.verdict is None:
            self.watch.verdict = ModelError(
                f"the endpoint of `{self.client.model}` does not count tokens, so no budget can be kept",
                hint="bound the run by " + name_option("n") + " instead of a budget",
            )
            self.stop.requested.set()
        self.spent = self.spent or self.meter.spent
        return self.spent is not None or self.watch.verdict is not None

    async def _play_with_retries(self, example: Example, indices: range) -> list[Rollout]:
        """Play a rollout or a group, again while a failure is retryable and retries are left."""
        for attempt in range(self.plan.max_retries + 1):
            rollouts = await self._attempt(example, indices)
            retryable = any(each.failure is not None and each.failure.retryable for each in rollouts)
            if not retryable or attempt == self.plan.max_retries:
                break
            self.retried += len(indices)
            pause = min(_LONGEST_RETRY_SECONDS, _RETRY_SECONDS * 2**attempt)
            await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.5))
        return rollouts

    async def _attempt(self, example: Example, indices: range) -> list[Rollout]:
        try:
            return await self.environment.play_request(
                RolloutRequest.of(
                    self.client,
                    example,
                    indices,
                    run_seed=self.plan.seed,
                    sampling=self.plan.sampling,
                    together=self.environment.info.group_rewards,
                )
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a handle that breaks its promise fails here
            return [_record_broken(example, index, error) for index in indices]

    def _record(self, rollout: Rollout) -> None:
        if self.ended:
            return
        if self.folder is not None:
            rollout = self.folder.append(rollout)
        else:
            self.kept.append(rollout)
        self.answers += count_answers(rollout.turns, self.manifest.players)
        self.tally.add(rollout)
        self._tell()

    def _tell(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self.on_progress is None or not (force or now - self._told_at >= _PROGRESS_SECONDS):
            return
        self._told_at = now
        tally = self.tally
        status = None if self.limiter is None else self.limiter.status()
        self.on_progress(
            Progress(
                done=tally.rollouts,
                total=self.total,
                failed=tally.rollouts - tally.scored,
                retried=self.retried,
                in_flight=self.in_flight,
                reward_mean=tally.reward_mean,
                usage=tally.usage,
                seconds=now - self._started,
                calls_in_flight=status.in_flight if status else self.in_flight,
                rate=status.rate if status else None,
                paused_seconds=status.paused_seconds if status else 0.0,
                usd=self.meter.usd,
            )
        )

    async def _until_done(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait for the end of all work, of the first task that broke, or for a request to stop."""
        work = asyncio.gather(*tasks)
        # Seen here, so that asyncio does not log it: play() raises it once everything has ended.
        work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        asked = asyncio.create_task(self.stop.requested.wait())
        either: set[asyncio.Future[Any]] = {work, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    async def _cancel(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel what is in flight and wait for it: a bounded time, or not at all once that is urgent."""
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if not pending or self.stop.urgent.is_set():
            return
        work = asyncio.gather(*pending, return_exceptions=True)
        urgent = asyncio.create_task(self.stop.urgent.wait())
        try:
            either: set[asyncio.Future[Any]] = {work, urgent}
            await asyncio.wait(either, timeout=STOP_GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            urgent.cancel()

    @contextlib.asynccontextmanager
    async def _each_second(self) -> AsyncIterator[None]:
        """Force appended rollouts to the disk, off the event loop, and tell the progress, also of a pause."""
        folder = self.folder
        if folder is not None:
            folder.sync_seconds = None
        finished = asyncio.Event()

        async def keep_syncing() -> None:
            while not finished.is_set():
                began = time.monotonic()
                with contextlib.suppress(TimeoutError):  # a second went by
                    await asyncio.wait_for(finished.wait(), _SYNC_SECONDS)
                stall = time.monotonic() - began - _SYNC_SECONDS
                self.longest_stall = max(self.longest_stall, stall)
                if folder is not None:
                    await asyncio.to_thread(folder.sync)
                    if self.bookmark is not None and self.tally.rollouts >= self.marked + _MARK_EVERY:
                        await asyncio.to_thread(self.bookmark.write, self._mark(folder))
                self._tell()

        syncing = asyncio.create_task(keep_syncing())
        try:
            yield
        finally:
            finished.set()
            await syncing
