"""Plays a policy against every possible line of an environment, starting from every opening.

A line is one sequence of the environment's choices (`wander.clients.choices`). A rollout plays the choices
that it was assigned, and then takes the first option of every further choice. Each option that it did not
take starts another line. So every line is played exactly once. Lines with the same beginning share the
model's answers: the model is asked about each conversation only once. The lines of one wave do not depend on
each other, so they are played concurrently.

The model must be a function of the conversation, so it samples greedily. Its moves may depend on the whole
conversation: two lines that reach the same position in different ways are two lines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.clients.choices import ask_for_line, line_of
from wander.errors import ConfigError
from wander.evals.run.stopping import FailureWatch, StopRequest, run_until_stopped
from wander.evals.stats.summary import summarize
from wander.evals.store.folder import RunFolder, run_folder, run_to_resume
from wander.evals.store.manifest import model_pin, new_manifest
from wander.handle import EnvironmentHandle
from wander.seeding import derived_seed
from wander.types import Example, Rollout, SamplingArgs, canonical_json
from wander.wire import EnvironmentPin, RunManifest, RunSummary

OUTCOMES = ("won", "drawn", "lost")
"""Reward functions that report the outcome of a line. If none of them is positive, the line is
`unfinished`."""
INVALID = "invalid_moves"
"""The reward function that counts the completions without a valid move."""


@dataclass(frozen=True)
class WalkPlan:
    """Settings for walking the lines of an environment."""

    seed: int = 0
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    """Sampling arguments. Sampling is always greedy: a temperature other than 0 is rejected."""
    concurrency: int = 512
    """Maximum number of rollouts in flight. If the client bounds its calls, also the maximum number of
    calls."""
    max_lines: int = 100_000
    """Number of lines after which the walk ends, even if the environment has more."""

    def __post_init__(self) -> None:
        if self.sampling.temperature:
            raise ConfigError(
                f"an exhaustive evaluation is greedy, not at temperature {self.sampling.temperature:g}",
                hint="leave the temperature out",
            )
        if self.concurrency < 1 or self.max_lines < 1:
            raise ConfigError("`concurrency` and `max_lines` must be at least 1")

    @property
    def greedy(self) -> SamplingArgs:
        """The sampling arguments, with temperature 0."""
        return self.sampling.model_copy(update={"temperature": 0.0})


@dataclass(frozen=True)
class LineCount:
    """Number of lines of play (all moves from the first to the last) by outcome."""

    lines: int = 0
    won: int = 0
    drawn: int = 0
    lost: int = 0
    unfinished: int = 0
    """Lines that ended without a result, because no turns or no legal moves were left."""
    failed: int = 0
    """Lines that could not be played to the end."""
    invalid: int = 0
    """Lines with an invalid move of the model, regardless of their outcome."""

    @property
    def clean(self) -> bool:
        """Whether every line was won or drawn."""
        return not (self.lost or self.unfinished or self.failed)

    def __add__(self, other: LineCount) -> LineCount:
        return LineCount(**{name: count + getattr(other, name) for name, count in vars(self).items()})


@dataclass(frozen=True)
class WalkProgress:
    """Progress of a walk."""

    lines: int
    """Lines recorded."""
    known: int
    """Lines discovered so far. The number may still grow."""
    conversations: int
    """Distinct conversations sent to the model."""
    lost: int


@dataclass(frozen=True)
class WalkResult:
    """The result of a walk."""

    manifest: RunManifest
    summary: RunSummary
    count: LineCount
    by_opening: dict[str, LineCount]
    conversations: int
    run_dir: Path | None
    bad: list[Rollout]
    """Lost, unfinished and failed lines and those with an invalid move, sorted by opening and number."""
    interrupted: bool
    unexplored: int
    """Lines that were discovered but not played because of `max_lines`."""
    resumed: int


def outcome_of(rollout: Rollout) -> str:
    """Return the outcome of a line: `won`, `drawn`, `lost`, `unfinished` or `failed`."""
    if rollout.failure is not None:
        return "failed"
    return next((name for name in OUTCOMES if rollout.metrics.get(name, 0.0) > 0), "unfinished")


def count_lines(rollouts: Iterable[Rollout]) -> LineCount:
    """Count lines by outcome."""
    ends: Counter[str] = Counter()
    for rollout in rollouts:
        ends["lines"] += 1
        ends[outcome_of(rollout)] += 1
        ends["invalid"] += rollout.metrics.get(INVALID, 0.0) > 0
    return LineCount(**ends)


def is_bad(rollout: Rollout) -> bool:
    """Return whether a line was lost, unfinished or failed, or contains an invalid move."""
    return outcome_of(rollout) not in ("won", "drawn") or rollout.metrics.get(INVALID, 0.0) > 0


class ConversationMemo(WrappedClient):
    """Calls a client once per conversation, and assigns a line to each rollout.

    The request's seed is derived from the conversation, so that even a model that samples gives the same
    answer to the same conversation.
    """

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(client)
        self._seed = seed
        self._answers: dict[str, asyncio.Task[ModelResponse]] = {}
        self._lines: dict[str, dict[str, Any]] = {}

    @property
    def conversations(self) -> int:
        """Number of different conversations sent to the client."""
        return len(self._answers)

    def assign(self, rollout_id: str, choices: Sequence[Any]) -> None:
        """Make a rollout play a line that begins with these choices."""
        self._lines[rollout_id] = ask_for_line(choices)

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the line assigned to a rollout, or None."""
        return self._lines.get(rollout_id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the shared answer to a conversation. Raises the client's error if the call failed."""
        conversation = canonical_json([request.messages, request.tools])
        if conversation not in self._answers:
            seed = derived_seed(self._seed, "conversation", conversation)
            asked = request.model_copy(update={"seed": seed})
            self._answers[conversation] = asyncio.create_task(self._client.complete(asked))
        # Shielded, because other rollouts may be waiting for the same answer when this one is canceled.
        response = await asyncio.shield(self._answers[conversation])
        return response.model_copy(deep=True)

    async def settle(self) -> None:
        """Cancel the calls that are still in flight."""
        for task in self._answers.values():
            task.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)


async def openings_of(environment: EnvironmentHandle) -> list[Example]:
    """Return the openings of an environment. Raises `ConfigError` if it declares no openings."""
    openings = await environment.openings()
    if not openings:
        raise ConfigError(
            f"`{environment.info.name}` declares no openings, so its lines cannot be enumerated",
            hint="implement `openings` and `choose` in the environment: see docs/authoring.md",
        )
    return list(openings)


async def walk(
    environment: EnvironmentHandle,
    client: Client,
    plan: WalkPlan,
    run_dir: Path | None,
    pin: EnvironmentPin,
    *,
    resume: bool = False,
    on_progress: Callable[[WalkProgress], None] | None = None,
    stop: StopRequest | None = None,
) -> WalkResult:
    """Play every line and record it in `run_dir` when it ends. With `run_dir=None`, keep only the bad lines.

    `resume` continues the walk in `run_dir`: recorded lines that did not fail are reused. Raises
    `ConfigError` if the environment declares no openings, `RunError` if the folder belongs to another run,
    and `ModelError` if the endpoint cannot be used.
    """
    openings = await openings_of(environment)
    manifest = new_manifest(
        environment=pin,
        model=model_pin(client),
        examples=openings,
        sampling=plan.greedy,
        seed=plan.seed,
        kind="exhaustive",
    )
    folder = run_folder(run_dir, manifest, run_to_resume(run_dir, resume=resume))
    if folder is not None:
        folder.resume()
    memo = ConversationMemo(client, plan.seed)
    bound = contextlib.nullcontext() if client.limiter is None else client.limiter.at_most(plan.concurrency)
    walking = _Walk(environment, memo, plan, folder, manifest, on_progress, stop or StopRequest())
    try:
        with bound:
            await walking.play(openings)
        return walking.result()
    finally:
        await memo.settle()
        if folder is not None:
            folder.close()


def branches(rollout: Rollout, begin: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the beginnings of all lines that branch off from a rollout after its assigned choices."""
    taken = line_of(rollout)
    # The rollout took the first option, so the branches start at the second.
    return [
        (*taken["choices"][:place], option)
        for place in range(len(begin), len(taken["choices"]))
        for option in taken["options"][place][1:]
    ]


@dataclass(frozen=True)
class _Line:
    """A line to play: an opening, the number of the line in that opening, and the choices it begins with."""

    opening: Example
    index: int
    choices: tuple[Any, ...] = ()

    @property
    def rollout_id(self) -> str:
        return f"{self.opening.example_id}/{self.index}"


class _Walk:
    """The state of one walk."""

    def __init__(
        self,
        environment: EnvironmentHandle,
        memo: ConversationMemo,
        plan: WalkPlan,
        folder: RunFolder | None,
        manifest: RunManifest,
        on_progress: Callable[[WalkProgress], None] | None,
        stop: StopRequest,
    ) -> None:
        self._environment = environment
        self._memo = memo
        self._plan = plan
        self._folder = folder
        self._manifest = folder.manifest if folder else manifest
        self._on_progress = on_progress
        self._stop = stop
        self._known: Counter[str] = Counter()
        """Number of known lines of each opening, which is also the number of its next line."""
        self._played: list[Rollout] = []
        self._recorded = {} if folder is None else {r.key: r for r in folder.rollouts() if r.failure is None}
        self._watch = FailureWatch(plan.concurrency, why_lost=lambda: environment.lost_reason)
        self._lost = 0
        self._unexplored = 0
        self._resumed = 0
        self._slots = asyncio.Semaphore(plan.concurrency)

    async def play(self, openings: Sequence[Example]) -> None:
        """Play wave after wave until no lines are left or a stop is requested."""
        wave = [self._line(opening, ()) for opening in openings]
        while wave and not self._stop.requested.is_set():
            played = await self._play_wave(wave)
            self._report_progress()
            if self._watch.verdict is not None:
                raise self._watch.verdict
            wave = []
            for line, rollout in played:
                for choices in branches(rollout, line.choices):
                    if self._known.total() < self._plan.max_lines:
                        wave.append(self._line(line.opening, choices))
                    else:
                        self._unexplored += 1

    def result(self) -> WalkResult:
        """Close the run and return its result."""
        stopped = self._stop.requested.is_set()
        places = {name: place for place, name in enumerate(self._manifest.example_ids)}
        played = sorted(self._played, key=lambda rollout: (places[rollout.example_id], rollout.index))
        complete = not stopped and not self._unexplored
        expected = self._known.total() + self._unexplored
        summary = summarize(played, expected=expected, info=self._manifest.environment.info)
        manifest = self._manifest.model_copy(update={"lines": expected if complete else None})
        if self._folder is not None:
            self._folder.manifest = manifest
            if complete:
                self._folder.finish(summary)
                manifest = self._folder.manifest
            else:
                self._folder.write_summary(summary)
        by_opening = dict.fromkeys(self._manifest.example_ids, LineCount())
        for name, lines in groupby(played, key=lambda rollout: rollout.example_id):
            by_opening[name] = count_lines(lines)
        return WalkResult(
            manifest=manifest,
            summary=summary,
            count=sum(by_opening.values(), LineCount()),
            by_opening=by_opening,
            conversations=self._memo.conversations,
            run_dir=self._folder.path if self._folder else None,
            bad=[rollout for rollout in played if is_bad(rollout)],
            interrupted=stopped,
            unexplored=self._unexplored,
            resumed=self._resumed,
        )

    def _line(self, opening: Example, choices: tuple[Any, ...]) -> _Line:
        index = self._known[opening.example_id]
        self._known[opening.example_id] += 1
        return _Line(opening, index, choices)

    async def _play_wave(self, wave: Sequence[_Line]) -> list[tuple[_Line, Rollout]]:
        """Play the lines of a wave concurrently, and leave out canceled lines."""
        tasks = [asyncio.create_task(self._play(line)) for line in wave]
        await run_until_stopped(tasks, self._stop)
        pairs = zip(wave, tasks, strict=True)
        return [(line, task.result()) for line, task in pairs if task.done() and not task.cancelled()]

    async def _play(self, line: _Line) -> Rollout:
        recorded = self._recorded.get((line.opening.example_id, line.index))
        if recorded is not None and tuple(line_of(recorded)["choices"][: len(line.choices)]) == line.choices:
            self._resumed += 1
            self._count(recorded)
            return recorded
        async with self._slots:
            self._memo.assign(line.rollout_id, line.choices)
            rollout = await self._environment.rollout(
                self._memo,
                line.opening,
                index=line.index,
                run_seed=self._plan.seed,
                sampling=self._plan.greedy,
                rollout_id=line.rollout_id,
            )
        if self._folder is not None:
            rollout = self._folder.append(rollout)
        self._count(rollout)
        if self._watch.add(rollout):
            self._stop.requested.set()
        self._report_progress()
        return rollout

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            known = self._known.total()
            self._on_progress(WalkProgress(len(self._played), known, self._memo.conversations, self._lost))

    def _count(self, rollout: Rollout) -> None:
        self._played.append(rollout)
        self._lost += outcome_of(rollout) == "lost"
