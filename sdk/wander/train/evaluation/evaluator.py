"""Evaluation while the policy learns: the same examples and seeds each time, played by the policy itself.

It changes nothing of the training: rollouts draw from seeds of their own, never from a global generator, and
are sampled beside no rollout of a step. Several processes deal the examples out among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from wander.errors import ConfigError
from wander.evals.stats.intervals import Interval
from wander.evals.stats.summary import summarise
from wander.evals.store import jsonl
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.loop_thread import LoopThread
from wander.train.config import EvaluationCell, GRPOSettings
from wander.train.distributed import World
from wander.train.rollouts.environments import EnvironmentChoice, EnvironmentOpener
from wander.train.rollouts.together import play_together
from wander.types import (
    EnvironmentInfo,
    Example,
    Record,
    Rollout,
    SamplingArgs,
    canonical_json,
    task_set_digest,
)

if TYPE_CHECKING:
    from wander.models.policy import PolicyClient

EVALUATIONS = "evaluations.jsonl"


class CellEvaluation(Record):
    """One cell, evaluated once: a line of `evaluations.jsonl`."""

    step: int
    """Steps that the policy had learnt; 0 is the model that training began with."""
    cell: str
    split: Literal["train", "eval"]
    """`train` where the environment has no examples of its own for evaluation."""
    task_set_sha256: str
    """Of the ordered examples: lines that share it can be compared."""
    examples: int
    failed: int = 0
    """Rollouts that failed twice; they are in no mean."""
    reward: float | None
    """Mean over the examples; None when every rollout failed."""
    interval: Interval | None = None
    """Of the reward, 95 %."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Mean of every reward function and metric."""
    intervals: dict[str, Interval] = Field(default_factory=dict)
    """Theirs, 95 %."""
    turns: float | None = None
    truncated: int = 0
    tokens: float = 0.0
    """Sampled tokens a rollout."""
    seconds: float = 0.0

    def values(self) -> dict[str, float | None]:
        """Return what was measured by its name in settings: `CELL/reward`, `CELL/METRIC`."""
        return {f"{self.cell}/reward": self.reward} | {
            f"{self.cell}/{name}": value for name, value in self.metrics.items() if name != "reward"
        }


def read_evaluations(folder: Path) -> list[CellEvaluation]:
    """Return the evaluations of a training run, in the order in which they were made."""
    return jsonl.read_records(folder / EVALUATIONS, CellEvaluation)


def write_evaluations(folder: Path, evaluations: Iterable[CellEvaluation]) -> None:
    """Write all lines anew, whole or not at all."""
    jsonl.write_records(folder / EVALUATIONS, evaluations)


def read_value(evaluations: Sequence[CellEvaluation], name: str) -> float | None:
    """Return one value of the cells of a step; raises `ConfigError` for a name that they lack."""
    values = {key: value for one in evaluations for key, value in one.values().items()}
    if name not in values:
        if any(one.cell == name.partition("/")[0] and one.reward is None for one in evaluations):
            return None
        raise ConfigError(f"no evaluation has `{name}`", hint=f"they have {', '.join(sorted(values))}")
    return values[name]


class Evaluator:
    """Plays the cells with the policy under training; each environment is opened once and stays open."""

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        client: PolicyClient,
        settings: GRPOSettings,
        world: World,
    ) -> None:
        self.world = world
        self.client = client
        self.settings = settings
        self._open = open_environment
        self._thread = LoopThread("wander-evaluations")
        self._handles: dict[str, EnvironmentHandle] = {}
        self._infos: dict[str, EnvironmentInfo] = {}
        self._examples: dict[str, list[Example]] = {}

    @property
    def sampling(self) -> SamplingArgs:
        """How the policy plays here."""
        section = self.settings.evaluation
        return SamplingArgs(
            temperature=section.temperature,
            max_tokens=section.max_tokens or self.settings.sampling.max_tokens,
        )

    def evaluate(self, step: int) -> list[CellEvaluation]:
        """Play every cell once, with the weights as they are now; all processes get the whole of it."""
        self.client.refresh()
        self.client.take_totals()
        found = [self._evaluate_cell(cell, step) for cell in self.settings.evaluation_cells]
        self.client.take_totals()  # none of it counts towards the step that follows
        return found

    def close(self) -> None:
        """Close the environments and the loop."""
        self._thread.close()

    def _evaluate_cell(self, cell: EvaluationCell, step: int) -> CellEvaluation:
        started = perf_counter()
        own = self.world.together(lambda: self._play(cell))
        tokens = sum(self.world.exchange([self.client.take_totals().tokens]))
        played = dict(self.world.exchange(list(own.items())))
        rollouts = [played[number] for number in range(len(played))]
        examples = self._examples[cell.name]
        summary = summarise(rollouts, expected=len(examples), info=self._infos[cell.name])
        low, high = summary.reward_low, summary.reward_high
        return CellEvaluation(
            step=step,
            cell=cell.name,
            split=examples[0].split,
            task_set_sha256=task_set_digest(examples),
            examples=len(examples),
            failed=summary.failed,
            reward=summary.reward_mean,
            interval=None if low is None or high is None else (low, high),
            metrics={name: metric.mean for name, metric in summary.metrics.items()},
            intervals={
                name: (metric.low, metric.high)
                for name, metric in summary.metrics.items()
                if metric.low is not None and metric.high is not None
            },
            turns=summary.turns_mean,
            truncated=summary.truncated,
            tokens=tokens / len(examples),
            seconds=perf_counter() - started,
        )

    def _play(self, cell: EvaluationCell) -> dict[int, Rollout]:
        """Play this process's share of the examples; return the rollouts by the numbers of theirs."""
        base = {} if cell.environment else self.settings.environment.arguments
        choice = EnvironmentChoice(cell.environment, {**base, **cell.arguments})
        key = canonical_json([choice.name, choice.arguments])
        if key not in self._handles:
            self._handles[key] = self._thread.enter(self._open(choice))
        handle = self._handles[key]
        self._infos[cell.name] = handle.info
        if cell.name not in self._examples:
            count = cell.examples or self.settings.evaluation.examples
            self._examples[cell.name] = self._thread.run(handle.examples("eval", 0, count))
        examples = self._examples[cell.name]
        if not examples:
            raise ConfigError(f"`{handle.info.name}` has no examples to evaluate `{cell.name}` on")
        share = range(self.world.rank, len(examples), self.world.size)
        # As many at once as a step plays: what fits in memory there fits here.
        size = self.settings.batch.rollouts // self.world.size
        rollouts: dict[int, Rollout] = {}
        for first in range(0, len(share), size):
            part = share[first : first + size]
            name = f"evaluation/{cell.name}/{first}"
            played = self._play_part(handle, [examples[number] for number in part], name)
            rollouts |= dict(zip(part, played, strict=True))
            failed = [number for number in part if rollouts[number].failure is not None]
            again = self._play_part(handle, [examples[number] for number in failed], f"{name}/again")
            rollouts |= dict(zip(failed, again, strict=True))
        return rollouts

    def _play_part(self, handle: EnvironmentHandle, examples: Sequence[Example], name: str) -> list[Rollout]:
        requests = [
            RolloutRequest.of(
                self.client,
                example,
                [0],
                run_seed=self.settings.evaluation.seed,
                sampling=self.sampling,
                rollout_ids=[f"{name}/{number}"],
                together=handle.info.group_rewards,
            )
            for number, example in enumerate(examples)
        ]
        asked = [(handle, request) for request in requests]
        most = self.settings.environment.rollouts_at_once
        played = self._thread.run(play_together(self.client, asked, at_once=most))
        return [rollout for (rollout,) in played]
