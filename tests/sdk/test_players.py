"""Environments with players: who moves, what each sees and earns, who answers for whom."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import haggle
import pytest
from haggle import HaggleEnv, gain, load_environment
from wander import MultiTurnEnv, ReplayClient, Rollout, Rubric, ScriptedClient
from wander.checks.players import gold_script
from wander.clients.base import Client
from wander.clients.players import PlayersClient, require_players
from wander.environment import LocalEnvironment
from wander.errors import ConfigError
from wander.evals import EvaluationPlan, evaluate
from wander.evals.replay import replay_run
from wander.evals.store.manifest import find_differing_pins
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment


class Heard(ScriptedClient):
    """Plays a list and keeps what it was asked."""

    def __init__(self, replies, model="heard"):
        super().__init__(replies, model=model)
        self.asked = []

    async def complete(self, request):
        self.asked.append(request)
        return await super().complete(request)


async def haggled(client: Client, example: int = 0) -> Rollout:
    env = load_environment()
    rollout = await env.rollout(client, env.dataset("eval")[example])
    assert rollout.failure is None, rollout.failure
    return rollout


async def test_each_player_sees_its_own_part():
    client = Heard(["8", "4", "6", "6"])
    rollout = await haggled(client)
    assert [request.player for request in client.asked] == ["seller", "buyer", "seller", "buyer"]
    assert [[each["content"] for each in request.messages] for request in client.asked[2:]] == [
        ["Haggle.", "You are the seller. The cost is 0.", "8", "The other says 4."],
        ["Haggle.", "You are the buyer. The worth is 10.", "The other says 8.", "4", "The other says 6."],
    ]
    assert not any("player" in message for request in client.asked for message in request.messages)
    assert [turn.player for turn in rollout.turns] == ["seller", "buyer", "seller", "buyer"]
    assert [(each["player"], each["content"]) for each in rollout.completion[-3:]] == [
        ("buyer", "6"),
        ("seller", "Agreed."),
        ("buyer", "Agreed."),
    ]


async def test_each_player_is_scored_on_its_own_view():
    rollout = await haggled(ScriptedClient(["8", "4", "6", "6"]), example=2)
    assert rollout.rewards == {"seller": 0.5, "buyer": 0.5}
    assert (rollout.reward, rollout.metrics) == (0.5, {"gain": 0.5, "moves": 2.0})
    uneven = await haggled(ScriptedClient(["9", "9"]), example=2)
    assert uneven.rewards == {"seller": 7 / 8, "buyer": 1 / 8}
    assert uneven.reward == 7 / 8


async def test_a_player_can_have_its_own_client():
    seller, buyer = Heard(["7", "7"]), Heard(["3", "7"])
    rollout = await haggled(PlayersClient(seller, {"buyer": buyer}))
    assert {request.player for request in seller.asked} == {"seller"}
    assert {request.player for request in buyer.asked} == {"buyer"}
    assert rollout.rewards == {"seller": 0.7, "buyer": 0.3}


@pytest.mark.parametrize("worker", [False, True])
async def test_a_script_of_the_package_plays_where_the_environment_runs(worker, tmp_path):
    async def play(handle):
        client = PlayersClient(Heard(["7", "3"]), {"buyer": "scripted:haggle:stubborn?price=3"})
        (example,) = await handle.examples("eval", 0, 1)
        rollout = await handle.rollout(client, example)
        assert rollout.failure is None, rollout.failure
        assert {request.player for request in client._client.asked} == {"seller"}
        assert rollout.rewards == {"seller": 0.3, "buyer": 0.7}
        return example, rollout

    if not worker:
        await play(LocalEnvironment(load_environment()))
        return
    log = tmp_path / "worker.log"
    handle = await WorkerEnvironment.start(None, None, path=Path(haggle.__file__), log_path=log)
    try:
        assert handle.info.players == ["seller", "buyer"]
        example, rollout = await play(handle)
        client = ReplayClient([rollout], scripts={"buyer": "scripted:haggle:stubborn?price=4"})
        again = await handle.rollout(client, example)
        assert again.failure is not None
        assert again.failure.type == "NotRecorded"
        assert "asks for turn" in again.failure.message, "the game goes on where the record ends"
    finally:
        await handle.close()


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("scripted:json:dumps", "is not a function of `haggle`"),
        ("scripted:haggle:nobody", "has no function `nobody`"),
        ("scripted:haggle:message_text", "has no function `message_text`"),
        ("scripted:./haggle.py:patient", "is not a function of `haggle`"),
        ("scripted:haggle:careless", "no idea"),
    ],
)
async def test_a_script_that_cannot_play_fails_its_rollouts(spec, fault):
    env = load_environment()
    rollout = await env.rollout(PlayersClient(ScriptedClient(["1"]), {"buyer": spec}), env.dataset()[0])
    assert rollout.failure is not None
    assert rollout.failure.boundary == "model"
    assert fault in rollout.failure.message


class Rude(HaggleEnv):
    """Names nobody."""

    def next_player(self, state):
        return "judge"


async def test_an_environment_that_names_nobody_fails_its_rollout():
    env = Rude([{"question": "x", "info": {"cost": 0, "worth": 10}}], rubric=Rubric([gain]))
    rollout = await env.rollout(ScriptedClient(["1"]), env.dataset()[0])
    assert rollout.failure is not None
    assert rollout.failure.boundary == "environment"
    assert (
        "`next_player` names `judge`, which is not one of the players `seller`, `buyer`"
        in rollout.failure.message
    )


@pytest.mark.parametrize("players", [("one",), ("a", "a"), "ab", ("a", "b c"), ("a", "b/c"), ("a", 1)])
def test_impossible_players_are_rejected(players):
    with pytest.raises(ConfigError):
        HaggleEnv([{"question": "x"}], players=players)


@pytest.mark.parametrize(
    ("players", "named", "fault"),
    [
        (True, "judge", "no player `judge`"),
        (True, "seller", "`seller` is played by the run's model"),
        (False, "buyer", "has no players"),
    ],
)
def test_invalid_player_names_are_rejected(players, named, fault):
    with pytest.raises(ConfigError, match=fault):
        require_players(load_environment(players).info, [named])


def test_environments_without_players_do_not_mention_players():
    env = load_environment(players=False)
    assert "players" not in env.info.model_dump()
    assert isinstance(env, MultiTurnEnv)


async def played(folder, others):
    handle = LocalEnvironment(load_environment())
    client = PlayersClient(ScriptedClient(lambda request: "7"), others)
    pin = EnvironmentPin(name="haggle", info=handle.info)
    return handle, await evaluate(handle, client, EvaluationPlan(rollouts_per_example=2), folder, pin)


async def test_a_run_records_its_players(tmp_path):
    scripted = {"buyer": "scripted:haggle:stubborn?price=7"}
    _, result = await played(tmp_path / "a", scripted)
    assert {name: (pin.kind, pin.name) for name, pin in result.manifest.players.items()} == {
        "buyer": ("script", "scripted:haggle:stubborn?price=7")
    }
    _, other = await played(tmp_path / "b", {"buyer": ScriptedClient(lambda request: "7", model="b")})
    _, alone = await played(tmp_path / "c", {})
    assert find_differing_pins(result.manifest, other.manifest) == [
        "players.buyer.kind",
        "players.buyer.name",
    ]
    assert find_differing_pins(result.manifest, alone.manifest) == ["players"]
    assert "players" not in json.loads((tmp_path / "c" / "run.json").read_text())


async def test_a_replay_runs_scripted_players_again():
    scripted = {"buyer": "scripted:haggle:stubborn?price=7"}
    handle, honest = await played(None, scripted)
    report = await replay_run(handle, honest.manifest, honest.rollouts)
    assert (report.differing, report.level, report.answered) == (0, "replayed", 0)
    # The same rollouts under the name of a stronger player: what it would have said is found out.
    pin = honest.manifest.players["buyer"].model_copy(update={"name": "scripted:haggle:stubborn?price=1"})
    lie = honest.manifest.model_copy(update={"players": {"buyer": pin}})
    report = await replay_run(handle, lie, honest.rollouts)
    assert report.differing == len(honest.rollouts)
    # Who is no script is the submitter's word: the rewards follow from the record, no more.
    _, other = await played(None, {"buyer": ScriptedClient(lambda request: "7", model="somebody")})
    report = await replay_run(handle, other.manifest, other.rollouts)
    assert (report.differing, report.level, report.answered) == (0, "complete", len(other.rollouts))
    # And nobody else plays: all completions are the model's own.
    _, alone = await played(None, {})
    report = await replay_run(handle, alone.manifest, alone.rollouts)
    assert (report.differing, report.level, report.answered) == (0, "replayed", 0)


class OldGame(MultiTurnEnv):
    """Has had an attribute of that name before environments had players."""

    def __init__(self, rows):
        super().__init__(rows, max_turns=1, rubric=Rubric([lambda: 1.0]))
        self.players = 2

    def env_response(self, messages, state):
        return []


async def test_an_attribute_named_players_may_be_set_later():
    env = OldGame([{"question": "x"}])
    rollout = await env.rollout(ScriptedClient(["1"]), env.dataset()[0])
    assert (env.info.players, rollout.reward, rollout.rewards) == ([], 1.0, {})


def test_gold_may_be_one_script_for_each_player():
    env = load_environment()
    env.gold = lambda example: {"seller": ["5"], "buyer": haggle.patient}
    script = gold_script(env, env.dataset()[0])
    client = PlayersClient(ScriptedClient(script), {})
    rollout = asyncio.run(env.rollout(client, env.dataset()[0]))
    assert rollout.rewards == {"seller": 0.5, "buyer": 0.5}
