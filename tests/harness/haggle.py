"""An environment where a seller and a buyer haggle, each with a secret number."""

from __future__ import annotations

from typing import Any

from wander import Example, Messages, MultiTurnEnv, Rubric, State, stop
from wander.clients import ModelRequest
from wander.parsers import message_text


class HaggleEnv(MultiTurnEnv):
    """Players name prices in turn; repeating the other's last price accepts it."""

    players = ("seller", "buyer")

    def setup_state(self, state: State) -> None:
        for player, fact in (("seller", "cost"), ("buyer", "worth")):
            told = f"You are the {player}. The {fact} is {state['info'][fact]}."
            state.prompt.append({"role": "user", "content": told, "player": player})
        state["last"] = state["agreed"] = None

    def env_response(self, messages: Messages, state: State) -> Messages:
        price = message_text(messages[-1])
        if price == state["last"]:
            state["agreed"] = int(price)
            return [{"role": "user", "content": "Agreed.", "player": name} for name in self.players]
        state["last"] = price
        return [{"role": "user", "content": f"The other says {price}."}]

    @stop
    def over(self, state: State) -> bool:
        return state["agreed"] is not None

    def gold(self, example: Example) -> Any:
        return patient


def gain(state: State, info: dict[str, Any], player: str) -> float:
    """The player's share of the possible profit at the agreed price."""
    if state["agreed"] is None:
        return 0.0
    own = state["agreed"] - info["cost"] if player == "seller" else info["worth"] - state["agreed"]
    return own / (info["worth"] - info["cost"])


def moves(state: State) -> int:
    return len(state.turns)


def patient(request: ModelRequest) -> str:
    """Accept every price; open with 5."""
    said = message_text(request.messages[-1])
    return said.removeprefix("The other says ").rstrip(".") if said.startswith("The other") else "5"


def stubborn(price: int = 3) -> Any:
    """Return a player that never changes its price."""
    return lambda request: str(price)


def careless(request: ModelRequest) -> str:
    """Raise an error."""
    raise ValueError("no idea")


def load_environment(players: bool = True) -> MultiTurnEnv:
    rows = [
        {"question": "Haggle.", "info": {"cost": cost, "worth": 10}, "example_id": f"cost-{cost}"}
        for cost in (0, 1, 2)
    ]
    env = HaggleEnv(rows, rubric=Rubric([gain, moves], [1.0, 0.0]), max_turns=6)
    return env if players else HaggleEnv(rows, players=(), max_turns=1)
