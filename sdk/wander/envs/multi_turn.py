"""Environments that answer the model, turn by turn."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from wander.dataset import ProceduralRows, Rows
from wander.environment import Environment
from wander.envs.dialog import Dialog, PlayersDialog, check_players, next_in_turn
from wander.errors import BoundaryError, ConfigError, EnvironmentFault
from wander.rollout.activity import ACTIVITY, PLAY
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import blame
from wander.rollout.hooks import PLAIN, STOP, call_hook, check_messages, find_marked, stop
from wander.types import FILTERED, Messages, State

TIMEOUT = "timeout_reached"
"""The stop reason of a rollout that its time ended, and the key under which it publishes where."""


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
        self.players = self._players = check_players(self.players if players is None else players)
        self._dialog = Dialog()
        if self._players:
            self._dialog = PlayersDialog(self._players, self.next_player)
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
        return next_in_turn(self._players, state)

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
        return _is_final(state)

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let model and environment take turns until a stop condition holds, and record its name."""
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                state["stop_reason"] = await self._take_turns(state, model)
        except TimeoutError:
            if not limit.expired():
                raise
            state["stop_reason"] = TIMEOUT
        if state["stop_reason"] == TIMEOUT:
            state["truncated"] = True
            state["public"][TIMEOUT] = _progress(state)

    async def _take_turns(self, state: State, model: ModelCalls) -> str:
        """Return the name of the stop condition that ended the rollout."""
        await self._set_up(state)
        await self._dialog.begin(state)
        while (reason := await self._stop_reason(state)) is None:
            if await self._timed_out_before(state):
                return TIMEOUT
            if state.turns:
                reason = await self._answer(state)
                if reason is not None:
                    return reason
                if _is_final(state):
                    continue
                if await self._timed_out_before(state):
                    return TIMEOUT
            await model.complete(self.tools(state))
        return reason

    async def _answer(self, state: State) -> str | None:
        """Append the environment's answer to the last completion; return the stop condition that it met."""
        started = time.perf_counter()
        answer = await call_hook(self.env_response, self._dialog.visible_messages(state), state)
        is_final = _is_final(state)
        if is_final:
            answer = check_messages(state["final_env_response"], 'state["final_env_response"]')
        else:
            answer = check_messages(answer, "env_response")
        vars(state.turns[-1])["environment_seconds"] = time.perf_counter() - started
        reason = None if is_final else await self._stop_reason(state)
        ends = reason is not None or _is_final(state)
        state.completion.extend(await self._dialog.address(state, answer, ends=ends))
        return reason

    async def _timed_out_before(self, state: State) -> bool:
        """Tell whether a rollout that is replayed ran out of time here; an evaluation goes by the clock."""
        if self.timeout_seconds is None or "host" not in state:
            return False
        return await state["host"].recall("timeout", _progress(state)) is True

    async def _set_up(self, state: State) -> None:
        returned = await call_hook(self.setup_state, state)
        if isinstance(returned, dict):
            state.update(returned)
        elif returned is not None:
            raise EnvironmentFault(
                f"`setup_state` returned a `{type(returned).__name__}`; it must return the state or None"
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


def _is_final(state: State) -> bool:
    """Tell whether the environment has said its last word."""
    return state.get("final_env_response") is not None


def _progress(state: State) -> dict[str, int]:
    """Return how far a rollout has come."""
    return {"turns": len(state.turns), "messages": len(state.completion)}
