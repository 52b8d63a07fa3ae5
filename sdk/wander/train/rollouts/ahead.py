"""Steps that are played in advance while the policy learns (`batch.max_staleness`).

With a staleness of S, step k (counted from 0) is played as a whole with the weights after k - S updates. It
starts when step k - S has been collected, on the engine of that step, whose copy of the weights is then
updated. Weights therefore never change while rollouts are generated, at most S steps are in progress, and no
step is discarded. Only the settings decide which weights sampled a turn, and which turns were sampled
together. The clock has no influence, so in exact mode the same seed gives the same bits.

A vLLM server always has the newest weights, so later turns of a rollout may use newer weights than its first
turns (`wander.models.engines.vllm_server`).

Replaced groups are played by the current policy when the step is collected. Each of several processes plays
its share, and all of them start, collect and discard the same steps.

A checkpoint waits for the steps in progress and stores them (`AHEAD`), because the weights that played them
no longer exist when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wander.errors import RunError
from wander.evals.store import jsonl
from wander.models.engines.base import Weights
from wander.models.policy import PolicyClient
from wander.train.rollouts.sampler import Pick
from wander.train.rollouts.source import StepRollouts
from wander.train.rollouts.step import PlayedStep, StepPlayer
from wander.types import Record

AHEAD = "ahead.jsonl"
"""File in a checkpoint with the rollouts of the next steps."""
_TICK = 0.1


class KeptStep(Record):
    """A line of `ahead.jsonl`: a step that was played and has not been learned from yet."""

    step: int
    """Number of updates before the one that learns from it."""
    version: int
    """Number of updates before the weights that played it."""
    picks: list[Pick]
    played: StepRollouts
    process: int = 0
    """Rank of the process that played it, which is its share of the step."""


@dataclass
class _UnderWay:
    picks: list[Pick]
    version: int
    sampler: dict[str, Any]
    """State of the sampler of examples before these examples were drawn."""
    playing: Future[StepRollouts]


class StepsAhead:
    """Plays the steps of a run in advance, one with each of the `clients`.

    `weights` returns the current weights of the policy, and `steps` is the number of steps in the run.
    """

    def __init__(
        self,
        player: StepPlayer,
        clients: Sequence[PolicyClient],
        weights: Weights,
        steps: int,
    ) -> None:
        self.player = player
        self._clients = list(clients)
        self._weights = weights
        self._steps = steps
        self._threads = ThreadPoolExecutor(len(self._clients), thread_name_prefix="wander-ahead")
        self._under_way: dict[int, _UnderWay] = {}
        self._slots: Sequence[int] = ()
        self._taken: tuple[int, dict[str, Any]] | None = None
        """Last collected step, and the state of the sampler before it was drawn."""

    def take(self, step: int, slots: Sequence[int]) -> tuple[PlayedStep, int]:
        """Wait for this process's share of a step, and return it with the version of its weights.

        The share consists of the groups in `slots`, which must be the same for every step. Also starts the
        steps that may start now. Raises `RunError` like `StepPlayer.play`; the sampler is then restored to
        its state before the step.
        """
        self._slots = slots
        # The other players that replaced groups are played with, at the current weights.
        self.player.opponents.prepare(self.player.source.client, step, self._weights)
        for number in range(step, step + len(self._clients)):
            if number not in self._under_way:
                self._begin(number, step)
        current = self._under_way[step]
        try:
            played = self.player.finish(current.picks, current.playing.result())
        except RunError:
            self._forget(step)
            raise
        del self._under_way[step]
        self._taken = step, current.sampler
        self._begin(step + len(self._clients), step)
        return played, current.version

    def forget_from(self, step: int) -> None:
        """Redraw a step and later ones, even if the step was collected but not learned from."""
        if self._under_way:
            self._forget(min(self._under_way))
        if self._taken is not None and self._taken[0] == step:
            self.player.mixture.restore(self._taken[1])

    def save(self, checkpoint: Path) -> None:
        """Write the next steps into a checkpoint; all processes must call this before the sampler is written.

        A step that cannot be played is left out together with later steps, and they are drawn again.
        """
        wait([ahead.playing for ahead in self._under_way.values()])
        failed = [step for step, ahead in self._under_way.items() if ahead.playing.exception() is not None]
        if failed := self.player.exchange(failed):
            self._forget(min(failed))
        kept = self.player.exchange(
            [
                KeptStep(
                    step=step,
                    version=ahead.version,
                    picks=ahead.picks,
                    played=ahead.playing.result(),
                    process=self.player.rank,
                )
                for step, ahead in sorted(self._under_way.items())
            ]
        )
        if self.player.rank == 0:
            jsonl.write_records(checkpoint / AHEAD, kept)

    def close(self) -> None:
        """Stop playing steps that are no longer needed."""
        playing = [step.playing for step in self._under_way.values()]
        while wait(playing, timeout=_TICK).not_done:
            self.player.source.interrupt()
        self._threads.shutdown()
        for client in self._clients:
            self.player.source.release(client)

    def _begin(self, step: int, version: int) -> None:
        if step >= self._steps:
            return
        client, sampler = self._clients[step % len(self._clients)], self.player.mixture.state()
        client.engine.update_weights(self._weights)
        client.engine.resume(version)
        self.player.opponents.prepare(client, version, self._weights)
        picks = self.player.draw(self._slots)
        playing = self._threads.submit(self.player.play_groups, picks, client)
        self._under_way[step] = _UnderWay(picks, version, sampler, playing)

    def _forget(self, first: int) -> None:
        """Redraw a step and later ones."""
        self.player.mixture.restore(self._under_way[first].sampler)
        for step in [step for step in self._under_way if step >= first]:
            while wait([self._under_way[step].playing], timeout=_TICK).not_done:
                self.player.source.interrupt()
            del self._under_way[step]

    def load(self, checkpoint: Path) -> None:
        """Continue with the steps in a checkpoint, after the sampler was restored."""
        for kept in jsonl.read_records(checkpoint / AHEAD, KeptStep):
            if kept.process != self.player.rank:
                continue
            playing: Future[StepRollouts] = Future()
            playing.set_result(kept.played)
            self._under_way[kept.step] = _UnderWay(
                kept.picks, kept.version, self.player.mixture.state(), playing
            )
