"""Environments that answer the model turn by turn."""

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
"""Stop reason of a rollout that ran out of time, and the key under which its progress is published."""


class MultiTurnEnv(Environment):
    """An environment with a conversation: the model and `env_response` alternate until a stop condition
    holds.

    - `max_turns`: maximum number of completions per rollout. -1 means no limit.
    - `max_total_completion_tokens`: maximum number of completion tokens per rollout, as counted by the
      client. The completion that reaches the limit is the last one.
    - `timeout_seconds`: maximum time of a rollout. Time is not part of the determinism contract: the rollout
      publishes the point where it timed out, and a replay stops there.

    A rollout that exceeds its tokens or time is `truncated`, and scored as it is. Stop conditions are checked
    after every completion. They are checked again after `env_response` has answered it, before the answer is
    appended, so its changes to the state can end the rollout without another model call. In both cases, the
    last message in `state.completion` is the model's. If `env_response` sets `state["final_env_response"]`,
    these messages are appended instead of its return value, and the rollout ends.

    With `players` (the names of the players), `next_player` names the player whose model is called
    in each turn, and `state["player"]` holds this name. Every player has its own conversation
    (`wander.types.seen_by`), which consists of the prompt's messages that have the player's name in `player`
    or have no `player`, the player's own completions, and the answers of `env_response` to this player. An
    answer goes to the player who moves next, or to the last player if the rollout ends, unless its message
    names another `player`. The rubric scores the rollout once per player, with the conversation that this
    player saw.
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
        """Maximum number of turns of a rollout, or None."""
        return None if self.max_turns == -1 else self.max_turns

    @property
    def time_limit(self) -> float | None:
        """Maximum time of a rollout in seconds, or None."""
        return self.timeout_seconds

    def setup_state(self, state: State) -> Any:
        """Prepare the state of a new rollout in place. Override it if needed. May be async."""

    @abstractmethod
    def env_response(self, messages: Messages, state: State) -> Any:
        """Return the messages that answer the conversation so far. May be async.

        `messages` consists of prompt and completion. The last message is the model's.
        """

    def next_player(self, state: State) -> Any:
        """Return the player who moves next. May be async.

        By default, the players take turns in order, and a player that called tools moves again.
        """
        return next_in_turn(self._players, state)

    def tools(self, state: State) -> list[dict[str, Any]] | None:
        """Return the schemas of the functions that the model may call in this turn, or None."""
        return None

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Hold if the rollout has used all of its turns."""
        return self.max_turns != -1 and len(state.turns) >= self.max_turns

    @stop
    def max_total_completion_tokens_reached(self, state: State) -> bool:
        """Hold if the completions have used all of their tokens."""
        if (limit := self.max_total_completion_tokens) is None:
            return False
        reached = sum(turn.usage.completion_tokens for turn in state.turns) >= limit
        state["truncated"] = state["truncated"] or reached
        return reached

    @stop(priority=100)
    def content_filtered(self, state: State) -> bool:
        """Hold if a content filter removed or cut the last completion."""
        return bool(state.turns) and state.turns[-1].finish_reason == FILTERED

    @stop
    def has_final_env_response(self, state: State) -> bool:
        """Hold if `env_response` has set `state["final_env_response"]`."""
        return _is_final(state)

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let the model and the environment take turns until a stop condition holds, and record its name."""
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
        """Append the environment's answer to the last completion.

        Return the stop condition that then holds.
        """
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
        """Return whether a replayed rollout ran out of time at this point.

        Otherwise only the clock decides.
        """
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
        try:  # like `call_hook`, but without a coroutine per condition, for speed
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
    """Return whether the environment has given its final answer."""
    return state.get("final_env_response") is not None


def _progress(state: State) -> dict[str, int]:
    """Return the progress of a rollout."""
    return {"turns": len(state.turns), "messages": len(state.completion)}
