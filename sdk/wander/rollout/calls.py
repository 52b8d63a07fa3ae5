"""Calls of a rollout to its model: one request per turn. Each answer is appended to the state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse, name_of
from wander.errors import BoundaryError, ModelError
from wander.rollout.activity import model_call
from wander.rollout.faults import describe_fault
from wander.seeding import derived_seed
from wander.types import Messages, SamplingArgs, State, Turn, seen_by


class ModelCalls:
    """The model as seen by one rollout."""

    def __init__(
        self,
        client: Client,
        state: State,
        sampling: SamplingArgs,
        rollout_id: str,
        scripted: Mapping[str, Client] | None = None,
    ) -> None:
        """`scripted` are the players that the client leaves to scripts."""
        self.client = client
        self.scripted = scripted or {}
        self.state = state
        self.sampling = sampling
        self.rollout_id = rollout_id
        self.waited = 0.0
        """Seconds that turns waited because of an endpoint's rate limit."""

    def begin(self) -> None:
        """Tell the client that the rollout starts."""
        self._notify(self.client.begin)

    def end(self) -> None:
        """Tell the client that the rollout has made its last call."""
        self._notify(self.client.end)

    def _notify(self, notify: Callable[[str], Any]) -> Any:
        try:
            return notify(self.rollout_id)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                describe_fault(error, f"{type(self.client).__name__}.{notify.__name__}")
            ) from error

    async def complete(self, tools: list[dict[str, Any]] | None = None) -> ModelResponse:
        """Request the next completion of the conversation, and append it to the state.

        Raises `ModelError`, also for any other exception of a client.
        """
        state = self.state
        messages: Messages = [*state.prompt, *state.completion]
        turn, player, seed = len(state.turns), state.get("player"), 0
        if self._client_of(player).draws:
            seed = derived_seed(state.run_seed, state.example.seed, "completion", state["index"], turn)
        request = ModelRequest.assemble(
            rollout_id=self.rollout_id,
            turn=turn,
            messages=messages if player is None else seen_by(player, messages),
            sampling=self.sampling,
            tools=tools,
            seed=seed,
            player=player,
        )
        state["tools_offered"] = tools or None
        started = time.perf_counter()
        response = await self.answer(request)
        model_seconds = self.time_answer(response, time.perf_counter() - started)
        state.turns.append(
            Turn.assemble(
                message=response.message,
                context_messages=len(messages),
                finish_reason=response.finish_reason,
                usage=response.usage,
                model_seconds=model_seconds,
                environment_seconds=0.0,
                tokens=response.tokens,
                cached=False,
                player=player,
                left_out=response.left_out,
            )
        )
        state.completion.append(
            dict(response.message) if player is None else {**response.message, "player": player}
        )
        if response.finish_reason == "length":
            state["truncated"] = True
        return response

    def time_answer(self, response: ModelResponse, elapsed: float) -> float:
        """Return the seconds that the model took for a turn, and count the rest of `elapsed` as waiting."""
        seconds = elapsed if response.seconds is None else min(response.seconds, elapsed)
        self.waited += elapsed - seconds
        return seconds

    async def answer(self, request: ModelRequest) -> ModelResponse:
        """Return the completion of the client, or of the player's script. Raises `ModelError`, also for any
        other exception.
        """
        try:
            with model_call():
                return await self._client_of(request.player).complete(request)
        except BoundaryError:
            raise
        except Exception as error:
            raise ModelError(describe_fault(error, f"{name_of(self.client)}.complete")) from error

    def _client_of(self, player: str | None) -> Client:
        return self.client if player is None else self.scripted.get(player, self.client)
