"""The rollouts of steps to come, played while the policy learns (`batch.max_staleness`).

With a staleness of S, step k (counted from 0) is played, as a whole, with the weights after k - S updates: it
begins when step k - S has been collected, on the engine that this one leaves, whose copy of the weights is
then brought up to date. So no generation is ever in flight where weights change, no more than S steps are
under way, none is thrown away, and which weights sampled what, and which turns were sampled together, is
decided by the settings and never by the clock: in exact mode the same seed gives the same bits.

A vLLM server has the newest weights at any time, so there the later turns of a rollout may be fresher than
its first ones (`wander.models.engines.vllm_server`).

What is refilled is played when the step is collected, by the policy as it is. Of several processes each plays
its share, and all begin, collect and forget the same steps.

A checkpoint waits for the steps under way and keeps them (`AHEAD`), since the weights that played them are
gone when the run is resumed.
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
"""In a checkpoint: the rollouts of the steps that come next."""
_TICK = 0.1


class KeptStep(Record):
    """A line of `ahead.jsonl`: a step that was played and not learnt from yet."""

    step: int
    """Updates before the one that learns from it."""
    version: int
    """Updates before the weights that played it."""
    picks: list[Pick]
    played: StepRollouts
    process: int = 0
    """Which of the run's processes played it: its share of the step."""


@dataclass
class _UnderWay:
    picks: list[Pick]
    version: int
    sampler: dict[str, Any]
    """The state of what decides the examples, before these were drawn."""
    playing: Future[StepRollouts]


class StepsAhead:
    """Plays the steps of a run before they are wanted, one with each of the `clients`.

    `weights` gives those of the policy as they are; `steps` is how many the run has.
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
        """The step that was taken last, and the sampler before it was drawn."""

    def take(self, step: int, slots: Sequence[int]) -> tuple[PlayedStep, int]:
        """Return this process's share of a step, once it is played, and the version of its weights.

        The share is the groups in these `slots`, the same of every step. Steps that may begin now do. Raises
        `RunError` as `StepPlayer.play` does; the sampler is then where it was before the step.
        """
        self._slots = slots
        # Who plays beside the policy where groups are played again with the weights of now.
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
        """Have a step and those after it drawn again, even if it was taken and not learned from."""
        if self._under_way:
            self._forget(min(self._under_way))
        if self._taken is not None and self._taken[0] == step:
            self.player.mixture.restore(self._taken[1])

    def save(self, checkpoint: Path) -> None:
        """Write the steps that come next into a checkpoint, before the sampler is written: all processes do.

        One that cannot be played is left out with those after it: it is drawn again.
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
        """Stop what is played for steps that never come."""
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
        """Have a step and those after it drawn again."""
        self.player.mixture.restore(self._under_way[first].sampler)
        for step in [step for step in self._under_way if step >= first]:
            while wait([self._under_way[step].playing], timeout=_TICK).not_done:
                self.player.source.interrupt()
            del self._under_way[step]

    def load(self, checkpoint: Path) -> None:
        """Continue with the steps that a checkpoint kept, once the sampler is where it was."""
        for kept in jsonl.read_records(checkpoint / AHEAD, KeptStep):
            if kept.process != self.player.rank:
                continue
            playing: Future[StepRollouts] = Future()
            playing.set_result(kept.played)
            self._under_way[kept.step] = _UnderWay(
                kept.picks, kept.version, self.player.mixture.state(), playing
            )
