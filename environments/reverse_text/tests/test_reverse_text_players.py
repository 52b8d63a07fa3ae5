"""The scripted players: a careful one, and one that leaves words forwards."""

from __future__ import annotations

import pytest
from reverse_text import load_environment
from reverse_text.players import careful, careless, teacher
from wander import ScriptedClient
from wander.clients import ModelRequest, scripted_client_from_spec
from wander.errors import ModelError


def written(player, text: str, seed: int = 0) -> str:
    message = {"role": "user", "content": text}
    reply = player(ModelRequest(rollout_id="0/0", turn=0, messages=[message], seed=seed))
    return reply.removeprefix("<reversed_text>").removesuffix("</reversed_text>")


async def test_the_careful_player_scores_one():
    env = load_environment(num_examples=30)
    for example in env.dataset("eval"):
        rollout = await env.rollout(ScriptedClient(careful), example)
        assert (rollout.reward, rollout.metrics["format"]) == (1.0, 1.0)


def test_words_are_left_forwards_as_often_as_asked_for():
    text = "green dry bag"
    assert written(careful, text) == "gab yrd neerg"
    assert written(teacher(1.0), text) == "bag dry green"
    replies = [written(careless, text, seed).split() for seed in range(300)]
    assert all(reply[1] in ("dry", "yrd") for reply in replies)
    forwards = sum(reply[place] == word for reply in replies for place, word in enumerate(text.split()[::-1]))
    assert 0.5 < forwards / 900 < 0.7


def test_what_is_left_depends_on_the_seeds_only():
    text = "moon river cold"
    assert written(careless, text, 5) == written(careless, text, 5)
    assert len({written(careless, text, seed) for seed in range(40)}) == 8
    replies = [[written(teacher(0.5, seed=seed), text, each) for each in range(9)] for seed in (1, 2)]
    assert replies[0] != replies[1]


def test_a_teacher_is_named_on_the_command_line():
    client = scripted_client_from_spec("scripted:reverse_text.players:teacher?forwards_prob=0.2")
    assert client.model == "scripted:reverse_text.players:teacher?forwards_prob=0.2"
    with pytest.raises(ModelError, match="forwards_prob"):
        teacher(1.5)
