"""Moves, the partner's concessions, and what each side is told and earns."""

from __future__ import annotations

import pytest
from negotiation import PATIENCE, load_environment
from negotiation.players import asked_price, expert, gain_of, read_move
from wander import ScriptedClient
from wander.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("<move>offer 40</move>", ("offer", 40)),
        ("I take it. <move> accept </move>", ("accept", 0)),
        ("<move>leave</move>", ("leave", 0)),
        ("<move>offer 0</move>", ("", 0)),
        ("<move>offer 251</move>", ("", 251)),
        ("<move>offer -5</move>", ("", 0)),
        ("<move>accept</move> or <move>leave</move>", ("", 0)),
        ("accept", ("", 0)),
    ],
)
def test_one_move_a_turn(text, move):
    assert read_move(text) == move


@pytest.mark.parametrize("side", ["seller", "buyer"])
def test_a_side_concedes_down_to_its_limit_and_never_below(side):
    asked = [asked_price(side, 60, 30, 2, time / 6) for time in range(7)]
    gains = [gain_of(side, 60, price) for price in asked]
    assert gains == sorted(gains, reverse=True)
    assert (gains[0], gains[-1]) == (30, 0)


async def played(reply, index=0, **arguments):
    env = load_environment(**arguments)
    example = env.dataset("eval")[index]
    return example, await env.rollout(ScriptedClient(reply), example)


@pytest.mark.parametrize("index", [0, 1])
async def test_an_own_limit_is_told_and_the_other_is_not(index):
    example, rollout = await played(["<move>leave</move>"], index)
    seen = "".join(str(message["content"]) for message in rollout.prompt)
    own, hidden = (example.info[side] for side in (("seller", "buyer"), ("buyer", "seller"))[index])
    assert (str(own) in seen, str(hidden) in seen) == (True, False)
    assert (rollout.reward, rollout.stop_reason) == (0.0, "ended")


async def test_the_price_divides_the_gain_and_time_costs():
    example, rollout = await played(["<move>accept</move>", "no", "<move>offer 1</move>"])
    assert rollout.completion[1]["content"].startswith("That is no move")
    assert (rollout.reward, rollout.metrics["deal"]) == (0.0, 1.0), "a loss earns nothing"
    high = example.info["buyer"]
    last = [f"<move>offer {high}</move>"]
    example, rollout = await played([*["<move>offer 250</move>"] * 5, *last])
    assert rollout.reward == pytest.approx(PATIENCE**5), "the partner's limit, with the last move"
    example, rollout = await played([*["<move>offer 250</move>"] * 5, f"<move>offer {high + 1}</move>"])
    assert (rollout.reward, rollout.metrics["deal"]) == (0.0, 0.0)


async def test_two_players_share_what_there_is():
    script = {"seller": ["<move>offer 250</move>", "<move>accept</move>"], "buyer": [""]}

    def reply(request):
        offered = "The buyer offers" in str(request.messages[-1]["content"])
        side = "seller" if "You sell it" in str(request.messages) else "buyer"
        if side == "buyer":
            limit = int(next(m for m in request.messages if "worth" in m["content"])["content"].split()[6])
            return f"<move>offer {limit - 10}</move>"
        return script["seller"][offered]

    example, rollout = await played(reply, partner="player")
    surplus = example.info["buyer"] - example.info["seller"]
    assert rollout.rewards == pytest.approx(
        {"seller": PATIENCE**2 * (surplus - 10) / surplus, "buyer": PATIENCE**2 * 10 / surplus}
    )
    _, both = await played(expert, partner="player")
    assert both.metrics["deal"] == 1.0


async def test_no_side_has_more_moves_than_it_was_told():
    _, rollout = await played(["hm", "hm", "<move>offer 250</move>"], partner="player", rounds=2)
    assert (rollout.metrics["moves"], rollout.stop_reason) == (2.0, "max_turns_reached")
    replies = ["<move>offer 250</move>", "<move>offer 1</move>"] * 2
    _, rollout = await played(replies, partner="player", rounds=2)
    assert (rollout.metrics["moves"], rollout.stop_reason) == (4.0, "max_turns_reached")


def test_arguments_that_are_none():
    with pytest.raises(ConfigError, match="`bank`"):
        load_environment(partner="bank")
    with pytest.raises(ConfigError, match="must be positive"):
        load_environment(rounds=0)
