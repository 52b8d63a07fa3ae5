"""Environments for games of other libraries: begin, take actions, until the game is over.

A bridge subclasses `Game` for one episode of its library, and overrides `GameEnv.open` to make one. This
module provides the conversation, unreadable actions, players, endings and rewards.
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
"""Key of the result in `state["public"]`. With it, a stored rollout can be scored without playing."""


class NoAction(Exception):
    """The completion does not contain an action. The text of the error, if any, tells the model why."""


class Game(ABC):
    """One episode. The seed of `begin` is its only source of randomness.

    `begin`, `step` and `close` may be async.
    """

    player: str | None = None
    """The player who moves next; None in games for one player."""
    over: bool = False

    def __init__(self) -> None:
        self.earned: dict[str | None, float] = {}
        """The reward so far, by player."""

    @abstractmethod
    def begin(self, seed: int) -> str | Awaitable[str]:
        """Start, and return the text for the first player. The seed has 31 bits."""

    @abstractmethod
    def step(self, action: str) -> str | Awaitable[str]:
        """Take an action, and return the text for the next `player`; raises `NoAction`."""

    def close(self) -> Awaitable[None] | None:  # noqa: B027 - an optional hook
        """Free the game's resources. Called once for each episode, whether it failed or not."""


class GameEnv(MultiTurnEnv):
    """Plays the games that `open` returns. Each example has a different seed.

    The reward is `earned`, the reward of the game. The metrics are `finished` (whether the game ended) and
    `no_actions` (completions without an action). Such a completion gets an answer, costs a turn, and does not
    reach the game.
    """

    no_action = "That does not contain an action."
    """The answer to a completion without an action, unless `NoAction` has a text."""

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
        """Begin the game, and show its first text to the player who moves first."""
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
        """Return the player who moves next."""
        game: Game = state["game"]
        return game.player

    async def env_response(self, messages: Messages, state: State) -> Messages:
        """Take the action of the last message, and return the result for the next player."""
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
        """Return whether the game has ended."""
        return finished(state)

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Return whether every turn is answered, so that the last action is also played."""
        return bool(state["answered"] == self.max_turns)

    @cleanup
    async def close_game(self, state: State) -> None:
        """Close the game. The record keeps its result."""
        game: Game | None = state.pop("game", None)
        if game is not None:
            await _result(game.close())

    def _keep(self, state: State, game: Game) -> None:
        told = {player or "": float(reward) for player, reward in game.earned.items()}
        state["public"][GAME] |= {"over": bool(game.over), "earned": told}


async def _result(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def earned(state: State, player: str | None = None) -> float:
    """Return the reward that the game gave a player."""
    return float(state["public"][GAME]["earned"].get(player or "", 0.0))


def finished(state: State) -> bool:
    """Return whether the game ended."""
    return bool(state["public"][GAME]["over"])


def no_actions(state: State) -> int:
    """Return the number of completions without an action."""
    return int(state["public"][GAME]["no_actions"])


def require_count(num_examples: object) -> None:
    """Raise `ConfigError` unless `num_examples` is a positive whole number."""
    if isinstance(num_examples, bool) or not isinstance(num_examples, int) or num_examples < 1:
        raise ConfigError(f"`num_examples` must be a positive whole number, got `{num_examples!r}`")


def _rows(split: str, length: int) -> ProceduralRows:
    """Return examples that differ by their id, and so by their seed."""
    return ProceduralRows(lambda index: {"question": "", "example_id": f"{split}-{index}"}, length)
