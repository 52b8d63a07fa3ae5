"""Negotiation: a seller and a buyer, each with a limit that the other does not know, agree on a price."""

from __future__ import annotations

from typing import Any, Literal

from wander import Example, Messages, MultiTurnEnv, ProceduralRows, Rubric, State, XMLParser, stop
from wander.errors import ConfigError
from wander.parsers import answer_text
from wander.seeding import derived_rng

from negotiation.players import HIGHEST, SIDES, Player, asked_price, expert, gain_of, other, read_move

__all__ = ["NegotiationEnv", "load_environment"]

SYSTEM_PROMPT = (
    "You negotiate about the price of one thing. Prices are whole numbers from 1 to {highest}. "
    "A deal earns you your share of its gain, less {cost:g} % of that for each move after the first; "
    "without a deal nobody earns anything. You have {rounds} moves, and one move a turn:\n"
    "<move>offer 40</move>, <move>accept</move> what was offered last, or <move>leave</move>"
)
PATIENCE = 0.98
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.136,
    "random player, easy": 0.147,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.124,
    "scripted expert": 0.750,
}
"""Mean rewards of the runs in `reference/`."""


class NegotiationEnv(MultiTurnEnv):
    """Passes offers on; without players it plays the other side itself, and concedes as time passes."""

    def __init__(self, *, rounds: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rounds = rounds

    def setup_state(self, state: State) -> None:
        """Show each side its own limit. There is not yet an offer."""
        info = state["info"]
        state["side"] = self.players[0] if self.players else info["side"]
        state |= {
            "offer": None,
            "price": None,
            "moves": 0,
            "has_left": False,
            "made": dict.fromkeys(SIDES, 0),
        }
        if self.players:
            state.prompt[-1:] = [
                {"role": "user", "content": told(side, info[side]), "player": side} for side in SIDES
            ]

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Carry out the last move. A completion without a move costs the turn."""
        kind, price = read_move(answer_text(messages[-1]))
        state["made"][state["side"]] += 1
        if kind == "accept" and state["offer"] is not None:
            state["price"] = state["offer"]
        elif kind == "leave":
            state["has_left"] = True
        elif kind == "offer":
            return self.offered(price, state)
        else:
            return [{"role": "user", "content": "That is no move, or there is no offer to accept."}]
        return self.end(state)

    def offered(self, price: int, state: State) -> Messages:
        """Pass an offer on to the other side. If that side is not a player, it answers."""
        side = state["side"]
        state["offer"] = price
        if self.players:
            state["side"] = other(side)
            return [{"role": "user", "content": f"The {side} offers {price}."}]
        partner, info = other(side), state["info"]
        asked = asked_price(partner, info[partner], info["reach"], info["bend"], moves(state) / self.rounds)
        if gain_of(partner, asked, price) >= 0:
            state["price"] = price
            return self.end(state)
        state["offer"] = asked
        return [{"role": "user", "content": f"The {partner} offers {asked}."}]

    def end(self, state: State) -> Messages:
        """Announce the end to every player."""
        price = state["price"]
        said = "There is no deal." if price is None else f"Deal at {price}."
        state["final_env_response"] = [
            {"role": "user", "content": said} | ({"player": side} if self.players else {})
            for side in self.players or (state["side"],)
        ]
        return []

    def next_player(self, state: State) -> str:
        """Return the side that has to answer. It stays the same after a completion without a move."""
        return str(state["side"])

    @stop
    def ended(self, state: State) -> bool:
        """Return whether there is a deal or somebody has left."""
        return state["price"] is not None or state["has_left"]

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Return whether the side that has to answer has used all its moves."""
        return state["made"][state["side"]] == self.rounds

    def gold(self, example: Example) -> Player | dict[str, list[str]]:
        """Return the player that waits for concessions; with players a seller that knows the other limit."""
        if not self.players:
            return expert
        best = f"<move>offer {example.info['buyer']}</move>"
        return {"seller": [best], "buyer": ["<move>accept</move>"]}


def told(side: str, limit: int) -> str:
    """Return what a side knows at the start."""
    return (
        f"You sell it. It cost you {limit}."
        if side == "seller"
        else f"You buy it. It is worth {limit} to you."
    )


def share(state: State, player: str | None = None) -> float:
    """The side's share of the gain of both, from 0 to 1, minus the cost of time; 0 without a deal."""
    if state["price"] is None:
        return 0.0
    side, info = player or state["info"]["side"], state["info"]
    part = gain_of(side, info[side], state["price"]) / (info["buyer"] - info["seller"])
    return min(max(part, 0.0), 1.0) * PATIENCE ** (moves(state) - 1)


def deal(state: State) -> bool:
    """Return whether a price was agreed on."""
    return state["price"] is not None


def moves(state: State) -> int:
    """Return the number of moves: of both sides if both are players."""
    return sum(state["made"].values())


def load_environment(
    num_examples: int = 1000,
    rounds: int = 6,
    seed: int = 0,
    partner: Literal["environment", "player"] = "environment",
    show_examples: int = 0,
) -> NegotiationEnv:
    """Return the environment; each side has `rounds` moves.

    The model sells in even examples and buys in odd ones. With `partner="player"` it sells, and the
    run names the model that plays `buyer`.
    """
    if partner not in ("environment", "player"):
        raise ConfigError(f"`{partner}` is not a partner", hint='give "environment" or "player"')
    if num_examples < 1 or rounds < 1:
        raise ConfigError(f"`num_examples` ({num_examples}) and `rounds` ({rounds}) must be positive")

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("negotiation", seed, split, index)
            cost = rng.randint(10, 90)
            limits = {"seller": cost, "buyer": cost + rng.randint(20, 80)}
            side = SIDES[index % 2]
            return {
                "question": told(side, limits[side]),
                "info": {
                    **limits,
                    "side": side,
                    "reach": rng.randint(20, 60),
                    "bend": rng.choice((0.5, 1, 2)),
                },
                "example_id": f"{split}-{index}",
                "stratum": index % 2,
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([share])
    rubric.add_metric(deal)
    rubric.add_metric(moves)
    return NegotiationEnv(
        rounds=rounds,
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=2 * rounds if partner == "player" else rounds,
        players=SIDES if partner == "player" else (),
        system_prompt=SYSTEM_PROMPT.format(highest=HIGHEST, cost=100 * (1 - PATIENCE), rounds=rounds),
        parser=XMLParser(["move"], answer_field="move"),
        rubric=rubric,
        seed=seed,
        strata=2,
        summary="Agree on a price: a seller and a buyer, each with a limit that the other does not know.",
        tags=("negotiation", "two-player", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES if partner == "environment" else {},
        reward_bounds=(0.0, 1.0),
    )
