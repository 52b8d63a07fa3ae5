"""Games that another library plays, as environments: begin, take actions, until it is over.

A bridge subclasses `Game` for one episode of its library and `GameEnv.open` to make it; conversation, actions
that cannot be read, players, endings and rewards are here, once.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any

from wander.dataset import ProceduralRows
from wander.envs.multi_turn import MultiTurnEnv
from wander.errors import ConfigError
from wander.rollout.hooks import cleanup, stop
from wander.rubrics import Rubric
from wander.types import Messages, State

GAME = "game"
"""Where in `state["public"]` stands what came of it, so that a stored rollout is scored without playing."""


class NoAction(Exception):
    """What the model wrote is no action; the text, where there is one, tells it why."""


class Game(ABC):
    """One episode. It draws from the seed that `begin` gets and from nothing else.

    `begin`, `step` and `close` may be async.
    """

    player: str | None = None
    """Who moves next; None where the model is alone."""
    over: bool = False

    def __init__(self) -> None:
        self.earned: dict[str | None, float] = {}
        """The reward so far, by player."""

    @abstractmethod
    def begin(self, seed: int) -> str | Awaitable[str]:
        """Start and return what the first player is told; the seed has 31 bits."""

    @abstractmethod
    def step(self, action: str) -> str | Awaitable[str]:
        """Take an action and return what `player` is told then; raises `NoAction`."""

    def close(self) -> Awaitable[None] | None:  # noqa: B027 - most games hold nothing
        """Let go of what the game holds; called once, however the episode ended."""


class GameEnv(MultiTurnEnv):
    """Plays the games that `open` returns; every example begins one with another seed.

    The reward is `earned`, what the game gave; the metrics are `finished`, whether it came to its end, and
    `no_actions`, how many completions were none. Those are answered, cost a turn, and do not reach the game.
    """

    no_action = "That holds no action."
    """What the model is told where that is all there is to tell."""

    def __init__(
        self, dataset: Any = None, eval_dataset: Any = None, *, num_examples: int = 1000, **kwargs: Any
    ) -> None:
        require_count(num_examples)
        if "rubric" not in kwargs:
            kwargs["rubric"] = Rubric([earned])
            kwargs["rubric"].add_metric(finished)
            kwargs["rubric"].add_metric(no_actions)
        if dataset is None and eval_dataset is None:
            dataset, eval_dataset = _rows("train", num_examples), _rows("eval", num_examples)
        super().__init__(dataset, eval_dataset, **kwargs)

    @abstractmethod
    def open(self, state: State) -> Game:
        """Return a new episode of the example's game."""

    async def setup_state(self, state: State) -> None:
        """Begin the game, and tell who moves first about it."""
        state["game"] = game = self.open(state)
        state["answered"], state["public"][GAME] = 0, {"no_actions": 0}
        told: dict[str, Any] = {
            "role": "user",
            "content": await _result(game.begin(self.rng(state, "game").getrandbits(31))),
        }
        if self._players:
            told["player"] = game.player
        first = state.prompt[-1]
        if first["role"] == "user" and not first["content"]:
            state.prompt.pop()
        state.prompt.append(told)
        self._keep(state, game)

    def next_player(self, state: State) -> str | None:
        """Return who moves next in the game."""
        game: Game = state["game"]
        return game.player

    async def env_response(self, messages: Messages, state: State) -> Messages:
        """Take the action in the last message and tell who moves next what came of it."""
        game: Game = state["game"]
        try:
            said = self.parser.parse_answer([messages[-1]])
            if not isinstance(said, str) or not said.strip():
                raise NoAction
            answer = await _result(game.step(said.strip()))
        except NoAction as no_action:
            state["public"][GAME]["no_actions"] += 1
            answer = str(no_action) or self.no_action
        state["answered"] += 1
        self._keep(state, game)
        return [{"role": "user", "content": answer}]

    @stop(priority=100)
    def game_over(self, state: State) -> bool:
        """Hold when the game has ended."""
        return finished(state)

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Hold when every turn is answered: the last action is played too."""
        return bool(state["answered"] == self.max_turns)

    @cleanup
    async def close_game(self, state: State) -> None:
        """Close the game; the record keeps what came of it."""
        game: Game | None = state.pop("game", None)
        if game is not None:
            await _result(game.close())

    def _keep(self, state: State, game: Game) -> None:
        told = {player or "": float(reward) for player, reward in game.earned.items()}
        state["public"][GAME] |= {"over": bool(game.over), "earned": told}


async def _result(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def earned(state: State, player: str | None = None) -> float:
    """Return what the game gave a player."""
    return float(state["public"][GAME]["earned"].get(player or "", 0.0))


def finished(state: State) -> bool:
    """Tell whether the game came to its end."""
    return bool(state["public"][GAME]["over"])


def no_actions(state: State) -> int:
    """Count the completions that were no action."""
    return int(state["public"][GAME]["no_actions"])


def require_count(num_examples: object) -> None:
    """Raise `ConfigError` for a number of examples that is none."""
    if isinstance(num_examples, bool) or not isinstance(num_examples, int) or num_examples < 1:
        raise ConfigError(f"`num_examples` must be a positive whole number, got `{num_examples!r}`")


def _rows(split: str, length: int) -> ProceduralRows:
    """Return examples that differ by their id, and so by their seed."""
    return ProceduralRows(lambda index: {"question": "", "example_id": f"{split}-{index}"}, length)
