"""The model for a classic environment: each call goes to the host, and is recorded as a turn of the rollout.

Wander's own environments use their own seeded generators. Published classic ones call `random.choice`.
Therefore, whenever the environment continues after a model call, the global generators are seeded from the
position in the rollout (`settle`). A rollout then draws the same numbers everywhere, no matter what else is
running, as long as it waits for nothing but the model.
"""

from __future__ import annotations

import random
import sys
import time
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
from wander.clients.base import ModelRequest, ModelResponse
from wander.errors import ContextOverflow, ModelError
from wander.rollout.calls import ModelCalls
from wander.seeding import Key, derived_seed
from wander.types import SamplingArgs, Turn

from wander_compat.verifiers.clients import Client
from wander_compat.verifiers.errors import ModelError as ClassicModelError
from wander_compat.verifiers.errors import OverlongPromptError
from wander_compat.verifiers.messages.conversion import wire_messages
from wander_compat.verifiers.messages.models import Response, ResponseMessage, ResponseTokens, Usage

_RENAMED = {"max_completion_tokens": "max_tokens"}
_DROPPED = ("n", "stream", "stream_options", "model", "messages", "tools", "extra_headers", "timeout")


def settle(*parts: Key) -> None:
    """Seed the global generators (`random`, and NumPy if it is loaded) from these parts."""
    seed = derived_seed("global-random", *parts)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed % 2**32)


class HostClient(Client):
    """The client of one rollout.

    It also offers `chat.completions.create`, for code that calls it directly.
    """

    def __init__(self, calls: ModelCalls) -> None:
        super().__init__(None)
        self._calls = calls
        self._asked = 0
        self._turns: dict[int, Turn] = {}
        self.failure: ModelError | None = None
        """First error of the host's client."""
        create = SimpleNamespace(create=self._create)
        self.chat = SimpleNamespace(completions=create)
        self.base_url = "http://wander.invalid/v1"
        self.api_key = "none"

    async def get_response(
        self, prompt: Any, model: str, sampling_args: dict[str, Any], tools: Any = None, **kwargs: Any
    ) -> Response:
        """Return the host's answer to a prompt. Raises the classic API's errors."""
        offered = [tool.openai() for tool in tools or []] or None
        number, answer = await self.ask(wire_messages(prompt), sampling_args, offered)
        return self._response(number, answer)

    async def ask(
        self, messages: list[dict[str, Any]], sampling: dict[str, Any], tools: list[dict[str, Any]] | None
    ) -> tuple[int, ModelResponse]:
        """Call the host and record the turn. Then seed the global generators for the code that follows.

        Returns the turn's number and the answer. Raises the classic API's errors.
        """
        state, number = self._calls.state, self._asked
        self._asked += 1
        started = time.perf_counter()
        try:
            request = ModelRequest.model_construct(
                rollout_id=self._calls.rollout_id,
                turn=number,
                messages=messages,
                sampling=merge_sampling(self._calls.sampling, sampling),
                tools=tools,
                seed=derived_seed(state.run_seed, state.example.seed, "completion", state["index"], number),
            )
            answer = await self._calls.answer(request)
        except ContextOverflow as error:
            self.failure = self.failure or error
            raise OverlongPromptError(str(error)) from error
        except ModelError as error:
            self.failure = self.failure or error
            raise ClassicModelError(str(error)) from error
        self._turns[number] = Turn.model_construct(
            message=answer.message,
            context_messages=len(messages),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            model_seconds=self._calls.time_answer(answer, time.perf_counter() - started),
            tokens=answer.tokens,
        )
        state["turns"] = [self._turns[turn] for turn in sorted(self._turns)]
        state["completion"] = [*messages[len(state.prompt) :], dict(answer.message)]
        settle(state.run_seed, state.example.seed, "turn", number)
        return number, answer

    def _response(self, number: int, answer: ModelResponse) -> Response:
        tokens = None
        if answer.tokens is not None:
            tokens = ResponseTokens(
                prompt_ids=answer.tokens.prompt_ids,
                prompt_mask=[0] * len(answer.tokens.prompt_ids),
                completion_ids=answer.tokens.completion_ids,
                completion_mask=[1] * len(answer.tokens.completion_ids),
                completion_logprobs=answer.tokens.logprobs,
            )
        return Response(
            id=f"{self._calls.rollout_id}/{number}",
            created=0,
            model=self._calls.client.model,
            usage=Usage(**_usage(answer), reasoning_tokens=answer.usage.reasoning_tokens),
            message=ResponseMessage(
                content=answer.message.get("content"),
                reasoning_content=answer.message.get("reasoning_content"),
                tool_calls=answer.message.get("tool_calls"),
                finish_reason=answer.finish_reason,
                is_truncated=answer.finish_reason == "length",
                tokens=tokens,
            ),
        )

    async def _create(self, *, messages: Any, tools: Any = None, **options: Any) -> Any:
        """Answer like `AsyncOpenAI().chat.completions.create`. The model is always the host's."""
        from openai.types.chat import ChatCompletion

        number, answer = await self.ask(wire_messages(messages), options, tools)
        return ChatCompletion.model_validate(self.completion(number, answer))

    def completion(self, number: int, answer: ModelResponse) -> dict[str, Any]:
        """Return the host's answer of a turn in the format of an endpoint's chat completion."""
        message = {**answer.message, "role": "assistant"}
        message.setdefault("content", None)
        return {
            "id": f"{self._calls.rollout_id}/{number}",
            "object": "chat.completion",
            "created": 0,
            "model": self._calls.client.model,
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": _usage(answer),
        }

    def with_options(self, **_: Any) -> HostClient:
        """Return the client itself, because the host controls time limits and retries."""
        return self

    async def close(self) -> None:
        """Do nothing, because the host closes its own client."""


def merge_sampling(host: SamplingArgs, environment: dict[str, Any]) -> SamplingArgs:
    """Merge the environment's sampling arguments with the host's, which take precedence.

    Raises `ModelError`.
    """
    arguments = {name: value for name, value in environment.items() if value is not None}
    arguments.update(arguments.pop("extra_body", None) or {})
    sampling = {_RENAMED.get(name, name): value for name, value in arguments.items() if name not in _DROPPED}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    try:
        return SamplingArgs.model_validate({**sampling, **host.given()})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ModelError(
            f"the environment samples with `{problem['loc'][0]}={problem['input']!r}`: {problem['msg']}"
        ) from error


def _usage(answer: ModelResponse) -> dict[str, int]:
    prompt, completion = answer.usage.prompt_tokens, answer.usage.completion_tokens
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
