"""Plays a rollout: the model and the environment take turns until a stop condition holds."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from wander_compat.verifiers.async_calls import maybe_await
from wander_compat.verifiers.decorators import cleanup, stop
from wander_compat.verifiers.envs.environment import Environment
from wander_compat.verifiers.errors import Error, OverlongPromptError
from wander_compat.verifiers.messages.conversion import AnyMessage, as_message, field_of
from wander_compat.verifiers.messages.models import Response
from wander_compat.verifiers.rubrics.tool_rubric import MultiTurnMonitorRubric
from wander_compat.verifiers.timing import time_block, time_call, timing_of
from wander_compat.verifiers.types import SamplingArgs, State, TrajectoryStep, completion_fields


class MultiTurnEnv(Environment):
    """An environment that answers the model. `max_turns=-1` means no limit.

    `timeout_seconds` limits the time of a rollout. A rollout that takes longer stops, and keeps its progress.
    """

    def __init__(self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self.max_total_completion_tokens = -1
        self.add_rubric(MultiTurnMonitorRubric())

    @abstractmethod
    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Return the messages that answer the conversation so far."""

    # what an environment may override

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        """Prepare the state of a rollout. Override it if needed. A returned state replaces the original."""
        return state

    async def get_prompt_messages(self, state: State) -> list[AnyMessage]:
        """Return the next messages for the model: the prompt, or the conversation and the environment's
        answer.
        """
        if not state["trajectory"]:
            return self.own_messages(state["prompt"])
        conversation = self._conversation_so_far(state)
        answer = await self._ask_env_response(conversation, state)
        return [*conversation, *answer]

    async def add_model_response(self, state: State, prompt_messages: Any, response: Response) -> None:
        """Record a completion as the next step of the trajectory."""
        message = response.message
        tokens: Any = None
        if message.tokens is not None:
            tokens = {**dict(message.tokens), "overlong_prompt": False, "is_truncated": False}
        completion = as_message(completion_fields(response), self.generation.form)
        step = TrajectoryStep(
            prompt=prompt_messages,
            completion=[cast(Any, completion)],
            response=response,
            tokens=tokens,
            reward=None,
            advantage=None,
            is_truncated=bool(message.is_truncated),
            trajectory_id=state.get("trajectory_id", ""),
            extras={},
        )
        await self.add_trajectory_step(state, step)

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Append a step to the trajectory."""
        state["trajectory"].append(trajectory_step)

    async def render_completion(self, state: State) -> None:
        """Set `completion` to everything after the prompt."""
        if not state["trajectory"]:
            state["completion"] = self.own_messages(state.get("final_env_response"))
            return
        conversation = self._conversation_so_far(state)
        final = self.own_messages(state.get("final_env_response"))
        state["completion"] = [*conversation[len(self.own_messages(state["prompt"])) :], *final]

    @cleanup(priority=100)
    async def render_state(self, state: State) -> None:
        """Set the values that the rubric and the record read: completion and truncation."""
        await self.render_completion(state)
        steps = state["trajectory"]
        cut = any(step.get("is_truncated") for step in steps) or state.get("prompt_too_long", False)
        state["is_truncated"] = bool(state.get("is_truncated") or cut)

    # Conditions that end the rollout.

    @stop(priority=100)
    async def has_error(self, state: State, **kwargs: Any) -> bool:
        """Hold if the rollout has failed."""
        return state.get("error") is not None

    @stop
    async def prompt_too_long(self, state: State) -> bool:
        """Hold if the prompt is too long for the model."""
        return bool(state.get("prompt_too_long", False))

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        """Hold if the rollout has used all of its turns."""
        return self.max_turns > 0 and len(state["trajectory"]) >= self.max_turns

    @stop
    async def max_total_completion_tokens_reached(self, state: State) -> bool:
        """Hold if the rollout has used all of its tokens."""
        limit = self.max_total_completion_tokens
        usages = [field_of(step.get("response"), "usage") for step in state["trajectory"]]
        return limit > 0 and sum(field_of(usage, "completion_tokens", 0) for usage in usages) >= limit

    @stop
    async def has_final_env_response(self, state: State) -> bool:
        """Hold if the environment has given its final answer."""
        return state.get("final_env_response") is not None

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        """Set the maximum number of tokens of all completions in a rollout. -1 means no limit."""
        self.max_total_completion_tokens = max_total_completion_tokens

    def mark_timed_out(self, state: State) -> None:
        """Record that the rollout took too long."""
        state["timed_out"] = True
        state["is_completed"] = True
        state["is_truncated"] = True
        state["stop_condition"] = "timeout_reached"

    # playing

    async def rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        **kwargs: Any,
    ) -> Any:
        """Play a row to its end and return its state, unscored.

        If called in the format of the first generation, `(client, model, prompt, answer, ...)`, it returns
        `(completion, state)`. `vf.Error`s are stored in `state["error"]`. All other exceptions are raised.
        """
        if not isinstance(input, Mapping):
            return await self._rollout_of_columns(input, client, model, sampling_args, **kwargs)
        state = await self.init_state(input, client, model, sampling_args)
        return await self._play_fresh_state(state)

    async def _rollout_of_columns(
        self,
        client: Any,
        model: Any,
        prompt: Any,
        answer: Any = "",
        task: str = "default",
        info: Any = None,
        sampling_args: SamplingArgs | None = None,
        **kwargs: Any,
    ) -> tuple[Any, State]:
        row = {"prompt": prompt, "answer": answer or "", "task": task, "info": info or {}, "example_id": 0}
        state = await self._play_fresh_state(await self.init_state(row, client, model, sampling_args))
        return state["completion"], state

    async def _play_fresh_state(self, state: State) -> State:
        """Play a new state to its end."""
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            with time_block(state["timing"].generation):
                async with limit:
                    state = await self._play_all_turns(state)
        except TimeoutError:
            if not limit.expired():
                raise
            self.mark_timed_out(state)
        finally:
            await self.cleanup(state)
        return state

    async def _play_all_turns(self, state: State) -> State:
        try:
            state = await self._run_setup_state(state)
        except Error as error:
            state["error"] = error
        while not await self._ask_whether_over(state):
            try:
                prompt = await self.get_prompt_messages(state)
                if state.get("final_env_response") is not None:
                    continue
                response = await self.get_model_response(state, self.own_messages(prompt))
                await self.add_model_response(state, self.own_messages(prompt), response)
                if self.generation.first:  # keys that only the first generation reads
                    state["turn"] = len(state["trajectory"])
                    state["responses"] = [*state["responses"], response]
                    completion = state["trajectory"][-1]["completion"]
                    state["completion"] = [*(state["completion"] or []), *completion]
            except OverlongPromptError:
                state["prompt_too_long"] = True
                state["is_truncated"] = True
            except Error as error:
                state["error"] = error
        return state

    async def _run_setup_state(self, state: State) -> State:
        timing = state["timing"]
        with time_block(timing.setup):
            returned = await maybe_await(self.setup_state, state)
        if isinstance(returned, State):
            return returned
        if isinstance(returned, Mapping):
            state.update(returned)
        return state

    async def _ask_whether_over(self, state: State) -> bool:
        """Return whether the rollout is over.

        An environment with its own rule still has to obey `max_turns`.
        """
        if not self.generation.own_completion:
            return bool(await self.is_completed(state))
        if state.get("error") is not None or state.get("prompt_too_long"):
            return bool(await Environment.is_completed(self, state))
        if state["trajectory"]:
            leading_arguments = [self._conversation_so_far(state)] if self.generation.messages_first else []
            if await maybe_await(self.is_completed, *leading_arguments, state):
                state["is_completed"] = True
                return True
        if await self.max_turns_reached(state) or await self.has_final_env_response(state):
            return bool(await Environment.is_completed(self, state))
        return False

    async def _ask_env_response(self, conversation: list[AnyMessage], state: State) -> list[AnyMessage]:
        """Return the environment's answer, which may have the format of any generation."""
        with time_call(timing_of(state).env):
            answer = await maybe_await(self.env_response, conversation, state)
        if isinstance(answer, tuple) and len(answer) == 2:
            answer, changed = answer
            if isinstance(changed, Mapping) and changed is not state:
                state.update(changed)
        messages = self.own_messages(answer)
        if self.generation.first and isinstance(state.get("completion"), list):
            state["completion"].extend(messages)
        return messages

    def _conversation_so_far(self, state: State) -> list[AnyMessage]:
        """Return the messages up to and including the last completion."""
        last = state["trajectory"][-1]
        return [*self.own_messages(last["prompt"]), *self.own_messages(last["completion"])]


class SingleTurnEnv(MultiTurnEnv):
    """One question and one completion."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=1, **{key: value for key, value in kwargs.items() if key != "max_turns"})

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Never called, because the rollout ends before."""
        never = NotImplementedError("a single-turn environment has no answer to the model")
        raise never
