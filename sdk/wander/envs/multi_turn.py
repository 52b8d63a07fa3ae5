"""Environments that answer the model, turn by turn."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from wander.dataset import ProceduralRows, Rows
from wander.environment import Environment
from wander.errors import BoundaryError, ConfigError, EnvironmentFault
from wander.rollout.activity import ACTIVITY, PLAY
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import blame
from wander.rollout.hooks import PLAIN, STOP, call_hook, check_messages, find_marked, stop
from wander.types import FILTERED, Messages, State, seen_by

PLAYER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What players are called."""
TIMEOUT = "timeout_reached"
"""The stop reason of a rollout that its time ended, and the key under which it publishes where."""

_UNLIMITED = nullcontext()


class MultiTurnEnv(Environment):
    """An environment with a conversation: the model speaks, `env_response` answers, until a stop holds.

    - `max_turns` bounds the completions of a rollout; -1 means no bound.
    - `max_total_completion_tokens` bounds their tokens, as the client counts them; the completion that
      reaches the bound is the last.
    - `timeout_seconds` bounds the time of a rollout. Time is no part of the determinism contract: where the
      limit struck is published, and a replay stops at the same place.

    A rollout that its tokens or its time end is `truncated`, and scored as it is. Stops are asked after every
    completion, and again when `env_response` has answered it, before its messages are appended: what it
    changed in the state may end the rollout without another model call, and a stop that reads
    `state.completion` meets the model's message last both times. Setting `state["final_env_response"]` in
    `env_response` appends those messages in place of what it returns and ends the rollout.

    With `players`, names of who takes turns, each turn asks the model of the one whom `next_player` names;
    `state["player"]` says who it is. Every player has a conversation of its own (`wander.types.seen_by`): of
    the prompt's messages those with its name in `player` and those without any, its own completions, and what
    `env_response` says to it. That goes to who moves next, or to who moved last where the rollout ends,
    unless a message names another `player`. The rubric scores the rollout once for each, as that one saw it.
    """

    kind: ClassVar[str] = "multi_turn"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        max_turns: int = -1,
        max_total_completion_tokens: int | None = None,
        timeout_seconds: float | None = None,
        players: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, eval_dataset, **kwargs)
        self.players = self._players = _check_players(self.players if players is None else players)
        for name, limit in (
            ("max_total_completion_tokens", max_total_completion_tokens),
            ("timeout_seconds", timeout_seconds),
        ):
            if limit is not None and not limit > 0:
                raise ConfigError(f"`{name}` must be positive or None, got `{limit!r}`")
        self.max_total_completion_tokens = max_total_completion_tokens
        self.timeout_seconds = timeout_seconds
        if (
            isinstance(max_turns, bool)
            or not isinstance(max_turns, int)
            or (max_turns < 1 and max_turns != -1)
        ):
            raise ConfigError(f"`max_turns` must be a positive whole number or -1, got `{max_turns!r}`")
        self.max_turns = max_turns
        self._stops = find_marked(self, STOP)

    @property
    def turn_limit(self) -> int | None:
        """The most turns that a rollout may take, or None."""
        return None if self.max_turns == -1 else self.max_turns

    @property
    def time_limit(self) -> float | None:
        """The seconds after which a rollout ends, or None."""
        return self.timeout_seconds

    def setup_state(self, state: State) -> Any:
        """Prepare the state of a new rollout, in place; may be async and overridden."""

    @abstractmethod
    def env_response(self, messages: Messages, state: State) -> Any:
        """Return the messages that answer the conversation so far; may be async.

        `messages` is prompt and completion; the last one is the model's.
        """

    def next_player(self, state: State) -> Any:
        """Return which of `players` moves next; may be async.

        Unless overridden they take turns, in order, and one that called tools goes on.
        """
        if not state.turns:
            return self._players[0]
        last = state.turns[-1]
        place = self._players.index(last.player or "")
        return (
            last.player if last.message.get("tool_calls") else self._players[(place + 1) % len(self._players)]
        )

    def tools(self, state: State) -> list[dict[str, Any]] | None:
        """Return the function schemas that the model may call in this turn, or None."""
        return None

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Hold when the rollout has used its turns."""
        return self.max_turns != -1 and len(state.turns) >= self.max_turns

    @stop
    def max_total_completion_tokens_reached(self, state: State) -> bool:
        """Hold when the completions have used their tokens."""
        if (limit := self.max_total_completion_tokens) is None:
            return False
        reached = sum(turn.usage.completion_tokens for turn in state.turns) >= limit
        state["truncated"] = state["truncated"] or reached
        return reached

    @stop(priority=100)
    def content_filtered(self, state: State) -> bool:
        """Hold when a content filter took the last completion away or cut it short."""
        return bool(state.turns) and state.turns[-1].finish_reason == FILTERED

    @stop
    def has_final_env_response(self, state: State) -> bool:
        """Hold when `env_response` has set `state["final_env_response"]`."""
        return state.get("final_env_response") is not None

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let model and environment take turns until a stop condition holds, and record its name."""
        limit = asyncio.timeout(self.timeout_seconds) if self.timeout_seconds else None
        try:
            async with limit or _UNLIMITED:
                state["stop_reason"] = await self._take_turns(state, model)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            state["stop_reason"] = TIMEOUT
        if state["stop_reason"] == TIMEOUT:
            state["truncated"] = True
            state["public"][TIMEOUT] = _place(state)

    async def _take_turns(self, state: State, model: ModelCalls) -> str:
        """Return the name of the stop condition that ended the rollout."""
        await self._set_up(state)
        await self._pass_turn(state)
        while (reason := await self._stop_reason(state)) is None:
            if await self._is_over(state):
                return TIMEOUT
            if state.turns:
                answer = await self._answer(state)
                reason = None if _is_final(state) else await self._stop_reason(state)
                if self._players:
                    if reason is None and not _is_final(state):
                        await self._pass_turn(state)
                    answer = [
                        {**message, "player": message.get("player", state["player"])} for message in answer
                    ]
                    self._require_players(answer, "env_response")
                state.completion.extend(answer)
                if reason is not None:
                    return reason
                if _is_final(state):
                    continue
                if await self._is_over(state):
                    return TIMEOUT
            await model.complete(self.tools(state))
        return reason

    async def _is_over(self, state: State) -> bool:
        """Tell whether a rollout that is replayed ran out of time here; an evaluation goes by the clock."""
        if self.timeout_seconds is None or "host" not in state:
            return False
        return await state["host"].recall("timeout", _place(state)) is True

    async def _set_up(self, state: State) -> None:
        returned = await call_hook(self.setup_state, state)
        if isinstance(returned, dict):
            state.update(returned)
        elif returned is not None:
            raise EnvironmentFault(
                f"`setup_state` returned a `{type(returned).__name__}`; it must return the state or None"
            )
        check_messages(state["prompt"], 'state["prompt"]')
        self._require_players(state["prompt"], 'state["prompt"]')

    async def _pass_turn(self, state: State) -> None:
        """Let `state["player"]` be who moves next."""
        if not self._players:
            return
        named = await call_hook(self.next_player, state)
        self._require_players([{"player": named}], "next_player")
        state["player"] = named

    def _require_players(self, messages: Messages, where: str) -> None:
        for message in messages:
            if self._players and "player" in message and message["player"] not in self._players:
                raise EnvironmentFault(
                    f"`{where}` names `{message['player']!s:.80}`, who is none of the players "
                    f"{', '.join(f'`{player}`' for player in self._players)}"
                )

    async def _stop_reason(self, state: State) -> str | None:
        """Return the name of the first stop condition that holds."""
        condition, activity = None, ACTIVITY.get()
        try:  # as `call_hook`, without a coroutine for each: dozens are asked in a rollout
            for name, condition in self._stops:
                if activity is not None:
                    activity.places[0] = name
                holds = condition(state)
                if await holds if type(holds) not in PLAIN and inspect.isawaitable(holds) else holds:
                    return name
        except BaseException as error:
            blame(error, EnvironmentFault, getattr(condition, "__name__", "hook"), passing=BoundaryError)
            raise
        finally:
            if activity is not None:
                activity.places[0] = PLAY
        return None

    async def _answer(self, state: State) -> Messages:
        """Return the environment's answer to the last completion, and record how long it took."""
        started = time.perf_counter()
        messages = [*state.prompt, *state.completion]
        if self._players:
            messages = seen_by(state["player"], messages)
        answer = await call_hook(self.env_response, messages, state)
        final = state.get("final_env_response")
        if final is None:
            answer = check_messages(answer, "env_response")
        else:
            answer = check_messages(final, 'state["final_env_response"]')
        vars(state.turns[-1])["environment_seconds"] = time.perf_counter() - started
        return answer


def _check_players(players: Sequence[str]) -> tuple[str, ...]:
    """Return the names of players; raises `ConfigError` for what cannot be some."""
    names = (players,) if isinstance(players, str) else tuple(players)
    if odd := [name for name in names if not isinstance(name, str) or not PLAYER.fullmatch(name)]:
        raise ConfigError(f"`{odd[0]}` is no name of a player", hint="use letters, digits, `-` and `_`")
    if len(names) == 1 or len(set(names)) < len(names):
        raise ConfigError(
            f"the players `{', '.join(names)}` are not two or more of different names",
            hint="leave `players` out where the model is alone",
        )
    return names


def _is_final(state: State) -> bool:
    """Tell whether the environment has said its last word."""
    return state.get("final_env_response") is not None


def _place(state: State) -> dict[str, int]:
    """Return how far a rollout has come."""
    return {"turns": len(state.turns), "messages": len(state.completion)}
