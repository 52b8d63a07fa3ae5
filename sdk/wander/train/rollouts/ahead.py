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
no longer exist when the run is resumed. If a step cannot be waited for, its weights are stored instead, and
the resumed run plays it with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from wander.errors import RunError
from wander.evals.store import jsonl
from wander.loop_thread import wait_for
from wander.models.engines.base import Weights
from wander.models.policy import PolicyClient
from wander.train.rollouts.sampler import Pick
from wander.train.rollouts.source import StepRollouts
from wander.train.rollouts.step import PlayedStep, StepPlayer
from wander.types import Record

AHEAD = "ahead.jsonl"
"""File in a checkpoint with the rollouts of the next steps."""
WEIGHTS = "ahead-{}.pt"
"""File in a checkpoint with the weights of a step that must be played again. It is not in safetensors format,
because all such files in a folder count as weights of its model."""
_TICK = 0.1


class KeptStep(Record):
    """A line of `ahead.jsonl`: a step that was played and has not been learned from yet."""

    step: int
    """Number of updates before the one that learns from it."""
    version: int | None
    """Number of updates before the weights that play it; None if they are the newest of a resumed run."""
    picks: list[Pick]
    played: StepRollouts | None
    """None if it must be played again."""
    process: int = 0
    """Rank of the process that played it, which is its share of the step."""


@dataclass
class _UnderWay:
    picks: list[Pick]
    version: int | None = None
    """Number of updates before the weights that its engine has; None before it has them."""
    playing: Future[StepRollouts] | None = None
    """None before it starts."""

    @property
    def result(self) -> StepRollouts | None:
        """Rollouts of the step after it ended; None if it was interrupted, failed or has not started."""
        if self.playing is None or self.playing.exception() is not None:
            return None
        return self.playing.result()


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
        self._collected: int | None = None
        """Last collected step."""
        self._under_way_before: dict[int, _UnderWay] = {}
        """Steps that were under way before it was collected."""

    def take(self, step: int, slots: Sequence[int]) -> tuple[PlayedStep, int]:
        """Wait for this process's share of a step, and return it with the version of its weights.

        The share consists of the groups in `slots`, which must be the same for every step. Also starts the
        steps that may start now. Raises `RunError` like `StepPlayer.play`.
        """
        self._slots = slots
        self._collected, self._under_way_before = step, dict(self._under_way)
        for number in range(step, step + len(self._clients)):
            self._begin(number, step)
        # The other players that replaced groups are played with, at the current weights.
        self.player.opponents.prepare(self.player.source.client, step, self._weights)
        current = self._under_way[step]
        assert current.playing is not None
        assert current.version is not None
        try:
            played = self.player.finish(current.picks, wait_for(current.playing))
        except RunError:
            current.playing = None
            raise
        del self._under_way[step]
        self._begin(step + len(self._clients), step)
        return played, current.version

    def abandon(self, step: int) -> None:
        """Stop playing, and undo `take` if the step was collected but not learned from.

        The caller restores the sampler of examples.
        """
        playing = self._playing
        if self._collected == step:
            self._under_way = self._under_way_before
        self._interrupt([*playing, *self._playing])

    def save(self, checkpoint: Path) -> None:
        """Write the next steps into a checkpoint; all processes must call this.

        A step that one of the processes could not play is played again by all of them after the run is
        resumed: with the same weights, or with the newest weights if a server has them.
        """
        while wait(self._playing, timeout=_TICK).not_done:  # in short steps, as `wait_for` does
            pass
        unplayed = [step for step, ahead in self._under_way.items() if ahead.result is None]
        again = set(self.player.exchange(unplayed))
        kept = self.player.exchange(
            [
                KeptStep(
                    step=step,
                    version=ahead.version,
                    picks=ahead.picks,
                    played=None if step in again else ahead.result,
                    process=self.player.rank,
                )
                for step, ahead in sorted(self._under_way.items())
            ]
        )
        if self.player.rank == 0:
            for step in sorted(again):
                if weights := self._client(step).engine.own_weights():
                    torch.save(weights, checkpoint / WEIGHTS.format(step))
            jsonl.write_records(checkpoint / AHEAD, kept)

    def load(self, checkpoint: Path) -> None:
        """Continue with the steps in a checkpoint, after the sampler was restored."""
        for kept in jsonl.read_records(checkpoint / AHEAD, KeptStep):
            if kept.process != self.player.rank:
                continue
            ahead = self._under_way[kept.step] = _UnderWay(kept.picks, kept.version)
            weights_file = checkpoint / WEIGHTS.format(kept.step)
            if kept.played is not None:
                ahead.playing = Future()
                ahead.playing.set_result(kept.played)
            elif weights_file.is_file():
                weights = torch.load(weights_file, map_location="cpu", weights_only=True)
                self._client(kept.step).engine.update_weights(weights.items)
            else:
                ahead.version = None

    def close(self) -> None:
        """Stop playing steps that are no longer needed."""
        self._interrupt(self._playing)
        self._threads.shutdown()
        for client in self._clients:
            self.player.source.release(client)

    @property
    def _playing(self) -> list[Future[StepRollouts]]:
        return [step.playing for step in self._under_way.values() if step.playing is not None]

    def _client(self, step: int) -> PolicyClient:
        return self._clients[step % len(self._clients)]

    def _interrupt(self, playing: Sequence[Future[StepRollouts]]) -> None:
        while wait(playing, timeout=_TICK).not_done:
            self.player.source.interrupt()

    def _begin(self, step: int, version: int) -> None:
        """Start a step, unless it has started or the run ends before it."""
        if step >= self._steps:
            return
        if step not in self._under_way:
            self._under_way[step] = _UnderWay(self.player.draw(self._slots))
        ahead, client = self._under_way[step], self._client(step)
        if ahead.playing is not None:
            return
        if ahead.version is None:
            client.engine.update_weights(self._weights)
            ahead.version = version
        client.engine.resume(ahead.version)
        self.player.opponents.prepare(client, ahead.version, self._weights)
        ahead.playing = self._threads.submit(self.player.play_groups, ahead.picks, client)
