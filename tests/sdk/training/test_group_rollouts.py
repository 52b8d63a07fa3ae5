"""Training on rewards that compare the rollouts of an example, here and in a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from wander.environment import LocalEnvironment
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.rollouts.rows import trajectories_of
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.types import SamplingArgs
from wander.worker.host.environment import WorkerEnvironment

SOURCE = """
from wander import MultiTurnEnv, Rubric, stop


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        if state["info"]["fails"] and state["index"] == 5 and not FAILED:
            FAILED.append(state["index"])
            raise ValueError("once")
        return [{"role": "user", "content": "Pull again."}]

    @stop
    def has_said_enough(self, state):
        # Rollouts of one group end at different times: a batch must not wait for those that did.
        return len(state.turns) > state["index"] % 3


FAILED = []


def ranked(completions):
    turns = [len(completion) for completion in completions]
    return [float(sum(each > other for other in turns)) for each in turns]


def load_environment(fails=False):
    rows = [{"question": f"Machine {n}.", "info": {"fails": fails}} for n in range(3)]
    return Env(rows, rubric=Rubric([ranked]), max_turns=4)
"""
ASSIGNMENTS = [Assignment(position, index) for position in range(2) for index in range(4)]


@contextlib.asynccontextmanager
async def opened(folder: Path, where: str, fails: bool) -> AsyncIterator[EnvironmentHandle]:
    path = folder / "ranked_environment.py"
    path.write_text(SOURCE)
    handle: EnvironmentHandle
    if where == "here":
        handle = LocalEnvironment(load_path(path, fails=fails))
    else:
        handle = await WorkerEnvironment.start(
            None, None, path=path, arguments={"fails": fails}, log_path=folder / "worker.log"
        )
    try:
        yield handle
    finally:
        await handle.close()


@pytest.mark.parametrize("where", ["here", "in a worker"])
def test_a_step_scores_each_group_together(tiny: Path, tmp_path: Path, where: str) -> None:
    loaded = load_model(tiny, device="cpu")
    client = PolicyClient(loaded.model, loaded.tokenizer)
    told: list[tuple[int, int]] = []
    source = RolloutSource(
        lambda choice: opened(tmp_path, where, False),
        client,
        sampling=SamplingArgs(max_tokens=4),
        run_seed=0,
    )
    try:
        assert source.info.group_rewards
        played = source.play(list(reversed(ASSIGNMENTS)), lambda *counts: told.append(counts))
    finally:
        source.close()
    assert [(r.example_id, r.index) for r in played.rollouts] == [
        (str(each.position), each.index) for each in reversed(ASSIGNMENTS)
    ]
    assert [len(rollout.turns) for rollout in played.rollouts] == [1, 3, 2, 1] * 2
    assert [rollout.reward for rollout in played.rollouts] == [0.0, 3.0, 2.0, 0.0] * 2
    assert played.retried == 0
    assert told == [(4, 8), (8, 8)], "a group that is scored together ends together"
    assert all(len(trajectories_of(rollout)) == 1 for rollout in played.rollouts)


def test_the_whole_group_of_a_failed_rollout_is_played_again(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    source = RolloutSource(
        lambda choice: opened(tmp_path, "in a worker", True),
        PolicyClient(loaded.model, loaded.tokenizer),
        sampling=SamplingArgs(max_tokens=4),
        run_seed=0,
    )
    assignments = [Assignment(0, 1), Assignment(0, 2), Assignment(0, 5), Assignment(1, 1), Assignment(1, 2)]
    try:
        played = source.play(assignments)
    finally:
        source.close()
    assert [each.failure for each in played.rollouts] == [None] * len(played.rollouts)
    assert played.retried == 3
    assert [rollout.reward for rollout in played.rollouts] == [0.0, 1.0, 1.0, 0.0, 1.0]


async def test_groups_in_one_worker_play_at_the_same_time(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    client = PolicyClient(loaded.model, loaded.tokenizer)
    async with opened(tmp_path, "in a worker", False) as handle:
        examples = await handle.examples("train")
        names = [[f"{example.example_id}/{index}" for index in range(4)] for example in examples]
        for name in (name for group in names for name in group):
            client.begin(name)
        async with asyncio.timeout(120):
            groups = await asyncio.gather(
                *(
                    handle.rollout_group(
                        client,
                        example,
                        indices=range(4),
                        sampling=SamplingArgs(max_tokens=4),
                        rollout_ids=group,
                    )
                    for example, group in zip(examples, names, strict=True)
                )
            )
    await client.close()
    assert [[rollout.reward for rollout in group] for group in groups] == [[0.0, 2.0, 3.0, 0.0]] * 3
