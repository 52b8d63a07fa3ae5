"""The dialog of a rollout: which player sees which messages, and whom the environment answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from wander.errors import ConfigError, EnvironmentFault
from wander.rollout.hooks import call_hook, check_messages
from wander.types import Messages, State, seen_by

PLAYER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Pattern of player names."""


class Dialog:
    """The default dialog: one model sees every message."""

    async def begin(self, state: State) -> None:
        """Check the prompt before the first turn."""
        check_messages(state["prompt"], 'state["prompt"]')

    def visible_messages(self, state: State) -> Messages:
        """Return the messages visible to the player who has just moved."""
        return [*state.prompt, *state.completion]

    async def address(self, state: State, answer: Messages, *, ends: bool) -> Messages:
        """Return the environment's answer for the record. `ends` is true if nobody moves after it."""
        return answer


class PlayersDialog(Dialog):
    """A dialog of several players.

    Each player sees messages without an addressee, those to it, and its own.
    """

    def __init__(self, players: Sequence[str], next_player: Callable[[State], Any]) -> None:
        self._players = players
        self._next_player = next_player
        """Hook of the environment that names the next player."""

    async def begin(self, state: State) -> None:
        """Check the prompt, and choose the player who moves first."""
        await super().begin(state)
        self._require_players(state["prompt"], 'state["prompt"]')
        await self._pass_turn(state)

    def visible_messages(self, state: State) -> Messages:
        """Return the messages visible to the player who has just moved."""
        return seen_by(state["player"], super().visible_messages(state))

    async def address(self, state: State, answer: Messages, *, ends: bool) -> Messages:
        """Return the answer, addressed to the next player, or to the last player if the rollout ends."""
        if not ends:
            await self._pass_turn(state)
        addressed = [{**message, "player": message.get("player", state["player"])} for message in answer]
        self._require_players(addressed, "env_response")
        return addressed

    async def _pass_turn(self, state: State) -> None:
        """Set `state["player"]` to the player who moves next."""
        named = await call_hook(self._next_player, state)
        self._require_players([{"player": named}], "next_player")
        state["player"] = named

    def _require_players(self, messages: Messages, where: str) -> None:
        for message in messages:
            if "player" in message and message["player"] not in self._players:
                raise EnvironmentFault(
                    f"`{where}` names `{message['player']!s:.80}`, which is not one of the players "
                    f"{', '.join(f'`{player}`' for player in self._players)}"
                )


def check_players(players: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the players. Raises `ConfigError` for invalid names."""
    names = (players,) if isinstance(players, str) else tuple(players)
    if invalid := [name for name in names if not isinstance(name, str) or not PLAYER.fullmatch(name)]:
        raise ConfigError(
            f"`{invalid[0]}` is not a valid player name", hint="use letters, digits, `-` and `_`"
        )
    if len(names) == 1 or len(set(names)) < len(names):
        raise ConfigError(
            f"`players` needs at least two different names, got `{', '.join(names)}`",
            hint="leave out `players` if only one model plays",
        )
    return names


def next_in_turn(players: Sequence[str], state: State) -> str:
    """Return the next player. A player that called tools moves again."""
    if not state.turns:
        return players[0]
    last = state.turns[-1]
    number = players.index(last.player or "")
    return players[number if last.message.get("tool_calls") else (number + 1) % len(players)]
