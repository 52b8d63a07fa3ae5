"""A rollout that was recorded in one process plays again in others with other hashes, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from wander.evals.replay import first_difference
from wander.types import Rollout

PROGRAM = """
import asyncio, json, sys
from wander import LocalEnvironment, ReplayClient, ScriptedClient, load_environment
from wander.clients.scripted import scripted_client_from_spec
from wander.types import Rollout, task_set_digest

name, player, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
recorded = [Rollout.model_validate_json(line) for line in sys.stdin]

async def main():
    handle = LocalEnvironment(load_environment(name, **arguments))
    examples = await handle.examples("eval", 0, 12)
    if recorded:
        client = ReplayClient(recorded)
    else:
        client = ScriptedClient(reversing) if player == "reversing" else scripted_client_from_spec(player)
    print(json.dumps([task_set_digest(examples), hash("text")]))
    for example in examples:
        for index in range(2):
            rollout = await handle.rollout(client, example, index=index, run_seed=7)
            print(rollout.model_dump_json())

def reversing(request):
    text = request.messages[-1]["content"]
    words = text.split()
    answer = text[::-1] if request.seed % 2 else " ".join(reversed(words))
    return f"<reversed_text>{answer}</reversed_text>"

asyncio.run(main())
"""


def run(hash_seed, name, player, arguments, recorded=()):
    """Return (task-set digest, a hash of that process, rollouts) of a process with a hash seed of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, name, player, json.dumps(arguments)],
        input="".join(f"{rollout.model_dump_json()}\n" for rollout in recorded),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    head, *lines = done.stdout.splitlines()
    digest, some_hash = json.loads(head)
    return digest, some_hash, [Rollout.model_validate_json(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "player", "arguments"),
    [
        pytest.param("reverse-text", "reversing", {"seed": 3}, marks=pytest.mark.full),
        ("tictactoe", "tictactoe.players:teacher?random_move_prob=0.5", {"max_random_move_prob": 0.7}),
    ],
)
def test_a_recorded_run_replays_under_other_hash_seeds(name, player, arguments):
    digest, first_hash, recorded = run("1", name, player, arguments)
    assert len(recorded) == 24
    assert len({rollout.reward for rollout in recorded}) > 1, "the rollouts are too alike to prove anything"
    hashes = {first_hash}
    for hash_seed in ("2", "0"):
        again_digest, other_hash, again = run(hash_seed, name, player, arguments, recorded)
        hashes.add(other_hash)
        assert again_digest == digest
        assert [first_difference(*pair) for pair in zip(recorded, again, strict=True)] == [None] * 24
        assert [[turn.message for turn in rollout.turns] for rollout in again] == [
            [turn.message for turn in rollout.turns] for rollout in recorded
        ]
    assert len(hashes) == 3, "the processes did not differ in their hashes"


def test_another_run_seed_is_another_game():
    _, _, recorded = run("1", "tictactoe", "tictactoe.players:random", {"min_random_move_prob": 1.0})
    assert len({json.dumps(rollout.completion) for rollout in recorded}) > 12
