"""Evaluation during training, by the policy itself, on the same examples and seeds each time.

It does not influence the training. Its rollouts use their own seeds, never a global generator, and are
sampled separately from the rollouts of steps. Several processes share the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.clients.base import Client, WrappedClient
from wander.clients.choices import ask_for_line
from wander.clients.players import require_players
from wander.errors import ConfigError
from wander.evals.exhaustive import branches, count_lines, is_bad, openings_of
from wander.evals.stats.intervals import Interval
from wander.evals.stats.summary import summarize
from wander.handle import EnvironmentHandle
from wander.train.config import EvaluationCell, GRPOSettings
from wander.train.distributed import World
from wander.train.records.checkpoints import BEST_MODEL, seal_folder
from wander.train.records.files import (
    EVALUATION,
    BestCheckpoint,
    CellEvaluation,
    forget_best,
    pick_value,
    read_best,
    read_evaluations,
    values_of,
    write_best,
    write_evaluations,
)
from wander.train.records.record import TrainingRecord
from wander.train.rollouts.concurrent_play import play_once
from wander.train.rollouts.environments import EnvironmentChoice, EnvironmentOpener
from wander.train.rollouts.source import RolloutSource
from wander.train.rollouts.step_metrics import means_by_player
from wander.types import (
    Example,
    Rollout,
    SamplingArgs,
    canonical_json,
    task_set_digest,
)
from wander.wire import RunSummary

MOST_LINES = 20_000
"""Maximum number of lines in an exhaustive cell. More lines would take longer than the training."""

Choices = tuple[Any, ...]
"""Choices of the environment at the start of a line."""


def count_ends(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the number of lines of an exhaustive cell by outcome.

    These numbers have no intervals, because the cell plays every line.
    """
    count = {**vars(count_lines(rollouts)), "bad": sum(map(is_bad, rollouts))}
    return {"lines": count.pop("lines"), "metrics": count}


def collect_means(summary: RunSummary, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the metrics of a cell of examples: means and their intervals, and means by player."""
    return {
        "interval": _interval(summary.reward_low, summary.reward_high),
        "metrics": {name: metric.mean for name, metric in summary.metrics.items()}
        | means_by_player(rollouts),
        "intervals": {
            name: interval
            for name, metric in summary.metrics.items()
            if (interval := _interval(metric.low, metric.high)) is not None
        },
    }


def _interval(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else (low, high)


SaveBest = Callable[[Path], str | None]
"""Function that saves the current weights in a folder and returns their digest."""


class PolicyEvaluation:
    """Plays the cells with the policy before the first step, every `evaluation.every` steps, and after the
    last.

    It keeps the weights with the best result. Each environment is opened once and stays open. A checkpoint
    includes the evaluation of its step, and a resumed run repeats later evaluations.
    """

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        source: RolloutSource,
        settings: GRPOSettings,
        world: World,
        record: TrainingRecord,
        save_best: SaveBest,
        covered: int,
    ) -> None:
        """Prepare the evaluation.

        `source` plays the run's rollouts. Its client also plays here, on its loop, and it closes all
        environments. `covered` is the number of steps in the checkpoint that the run resumes from.
        """
        self.world = world
        self.client = source.client
        self.settings = settings
        self.record = record
        self.folder = record.path
        self.save_best = save_best
        self.evaluations = [
            line for line in read_evaluations(self.folder) if covered and line.step <= covered
        ]
        best = read_best(self.folder) if covered else None
        self.best = best if best is not None and best.step <= covered else None
        self.sampling = SamplingArgs(
            temperature=settings.evaluation.temperature,
            max_tokens=settings.evaluation.max_tokens or settings.sampling.max_tokens,
            compact_at=settings.sampling.compact_at,
            stop=settings.sampling.stop or None,
        )
        self._opponents = source.opponents
        self._open = open_environment
        self._thread = source.thread
        self._handles: dict[str, EnvironmentHandle] = {}
        self._joined: dict[str, Client] = {}
        """Clients of the policy and the other players, by cell."""
        self._examples: dict[str, list[Example]] = {}

    def begin(self, step: int) -> None:
        """Remove evaluations that a resumed run repeats, and evaluate the initial model."""
        write_evaluations(self.folder, self.evaluations)
        if self.best is None:
            forget_best(self.folder)
        if step == 0:
            self._evaluate(0)

    def end_step(self, step: int, steps: int) -> None:
        """Evaluate if it is due, before the step's metrics and checkpoint are written."""
        if step % self.settings.evaluation.every == 0 or step == steps:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        """Play every cell once with the current weights."""
        started = perf_counter()
        self.client.refresh()
        self.client.take_totals()
        cells = [self._evaluate_cell(cell, step) for cell in self.settings.evaluation_cells]
        self.client.take_totals()  # so that it does not count in the next step
        self.evaluations += cells
        write_evaluations(self.folder, self.evaluations)
        self._keep_best(step, cells)
        values = {f"{EVALUATION}{name}": value for name, value in values_of(cells).items()}
        self.record.note_pause(perf_counter() - started, values if step else {})

    def _keep_best(self, step: int, cells: Sequence[CellEvaluation]) -> None:
        output = self.settings.output
        if output.keep_best is None:
            return
        value = pick_value(values_of(cells), output.keep_best)
        if value is None or (self.best is not None and not self.best.is_beaten_by(value)):
            return
        best = BestCheckpoint(metric=output.keep_best, mode=output.best_mode, value=value, step=step)
        sha256 = self.save_best(self.folder / BEST_MODEL)
        if self.world.is_main:
            seal_folder(self.folder / BEST_MODEL, step)
        self.best = best.model_copy(update={"weights_sha256": sha256})
        write_best(self.folder, self.best)

    def _evaluate_cell(self, cell: EvaluationCell, step: int) -> CellEvaluation:
        started = perf_counter()
        handle, examples = self.world.together(lambda: self._open_cell(cell))
        if cell.exhaustive:
            rollouts = self._play_lines(handle, cell.name, examples)
        else:
            rollouts = self._play(handle, cell.name, [(example, None) for example in examples])
        tokens = sum(self.world.exchange([self.client.take_totals().tokens]))
        summary = summarize(rollouts, expected=len(rollouts), info=handle.info)
        return CellEvaluation(
            step=step,
            cell=cell.name,
            split=examples[0].split,
            task_set_sha256=task_set_digest(examples),
            examples=len(examples),
            failed=summary.failed,
            reward=summary.reward_mean,
            turns=summary.turns_mean,
            truncated=summary.truncated,
            tokens=tokens / len(rollouts),
            seconds=perf_counter() - started,
            **(count_ends(rollouts) if cell.exhaustive else collect_means(summary, rollouts)),
        )

    def _open_cell(self, cell: EvaluationCell) -> tuple[EnvironmentHandle, list[Example]]:
        """Return the environment of a cell, and its examples or openings."""
        base = {} if cell.environment else self.settings.environment.arguments
        choice = EnvironmentChoice(cell.environment, {**base, **cell.arguments})
        key = canonical_json([choice.name, choice.arguments])
        if key not in self._handles:
            self._handles[key] = self._thread.enter(self._open(choice))
        handle = self._handles[key]
        if cell.name not in self._examples:
            count = cell.examples or self.settings.evaluation.examples
            asked = openings_of(handle) if cell.exhaustive else handle.examples("eval", 0, count)
            self._examples[cell.name] = self._thread.run(asked)
            require_players(handle.info, cell.players)
            everybody: Client = self.client
            if cell.players:
                assert self._opponents is not None
                everybody = self._opponents.join_models(self.client, cell.players)
            self._joined[cell.name] = everybody
            everybody.check_sampling(self.sampling)
            if handle.info.calls_tools:
                everybody.check_tools()
        if not self._examples[cell.name]:
            raise ConfigError(f"`{handle.info.name}` has no examples to evaluate `{cell.name}` on")
        return handle, self._examples[cell.name]

    def _play_lines(self, handle: EnvironmentHandle, name: str, openings: Sequence[Example]) -> list[Rollout]:
        """Play every line in waves; the lines of a wave branch off from lines of the previous wave."""
        rollouts: list[Rollout] = []
        wave: list[tuple[Example, Choices | None]] = [(opening, ()) for opening in openings]
        while wave:
            if len(rollouts) + len(wave) > MOST_LINES:
                raise ConfigError(
                    f"cell `{name}` has more than {MOST_LINES:,} lines",
                    hint="evaluate it on examples instead",
                )
            played = self._play(handle, name, wave)
            rollouts += played
            wave = [
                (opening, choices)
                for (opening, begin), rollout in zip(wave, played, strict=True)
                for choices in branches(rollout, begin or ())
            ]
        return rollouts

    def _play(
        self, handle: EnvironmentHandle, name: str, asked: Sequence[tuple[Example, Choices | None]]
    ) -> list[Rollout]:
        """Play examples, or lines that start with these choices, shared among the processes."""
        own = self.world.together(lambda: self._play_share(handle, name, asked))
        played = dict(self.world.exchange(list(own.items())))
        return [played[number] for number in range(len(played))]

    def _play_share(
        self, handle: EnvironmentHandle, name: str, asked: Sequence[tuple[Example, Choices | None]]
    ) -> dict[int, Rollout]:
        """Play this process's share; return the rollouts by number."""
        share = range(self.world.rank, len(asked), self.world.size)
        # At most the number of rollouts in a step, because that number is known to fit in memory.
        size = self.settings.batch.rollouts // self.world.size
        rollouts: dict[int, Rollout] = {}
        for first in range(0, len(share), size):
            part = share[first : first + size]
            prefix = f"evaluation/{name}/{first}"
            played = self._play_part(handle, name, [asked[number] for number in part], prefix)
            rollouts |= dict(zip(part, played, strict=True))
            failed = [number for number in part if rollouts[number].failure is not None]
            again = self._play_part(handle, name, [asked[number] for number in failed], f"{prefix}/again")
            rollouts |= dict(zip(failed, again, strict=True))
        return rollouts

    def _play_part(
        self,
        handle: EnvironmentHandle,
        cell: str,
        asked: Sequence[tuple[Example, Choices | None]],
        prefix: str,
    ) -> list[Rollout]:
        names = [f"{prefix}/{number}" for number in range(len(asked))]
        client = LineClient(
            self._joined[cell],
            {name: choices for name, (_, choices) in zip(names, asked, strict=True) if choices is not None},
        )
        played = play_once(
            client,
            handle,
            [example for example, _ in asked],
            names,
            run_seed=self.settings.evaluation.seed,
            sampling=self.sampling,
            at_once=self.settings.environment.rollouts_at_once,
        )
        return self._thread.run(played)


class LineClient(WrappedClient):
    """Gives rollouts the lines that they play."""

    def __init__(self, client: Client, lines: Mapping[str, Choices]) -> None:
        super().__init__(client)
        self._lines = lines

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the line for a rollout; None if it plays an example."""
        return ask_for_line(self._lines[rollout_id]) if rollout_id in self._lines else None
