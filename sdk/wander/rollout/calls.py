"""How a rollout reaches its model: one request a turn, kept in the state as it is answered."""

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
    """The model as one rollout sees it."""

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
        """Seconds that turns waited for the rate of an endpoint."""

    def begin(self) -> None:
        """Tell the client that the rollout starts."""
        self._tell(self.client.begin)

    def end(self) -> None:
        """Tell the client that the rollout makes no more calls."""
        self._tell(self.client.end)

    def _tell(self, tell: Callable[[str], Any]) -> Any:
        try:
            return tell(self.rollout_id)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                describe_fault(error, f"{type(self.client).__name__}.{tell.__name__}")
            ) from error

    async def complete(self, tools: list[dict[str, Any]] | None = None) -> ModelResponse:
        """Ask for the next completion of the conversation and append it to the state.

        Raises `ModelError`, also for whatever else a client raises.
        """
        state = self.state
        messages: Messages = [*state.prompt, *state.completion]
        turn, player, seed = len(state.turns), state.get("player"), 0
        if self._who_plays(player).draws:
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
        """Return the completion of the client, or of who plays by a script; raises `ModelError` for whatever
        else they raise.
        """
        try:
            with model_call():
                return await self._who_plays(request.player).complete(request)
        except BoundaryError:
            raise
        except Exception as error:
            raise ModelError(describe_fault(error, f"{name_of(self.client)}.complete")) from error

    def _who_plays(self, player: str | None) -> Client:
        return self.client if player is None else self.scripted.get(player, self.client)
