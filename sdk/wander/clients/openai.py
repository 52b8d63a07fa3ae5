"""Any endpoint that speaks the OpenAI chat-completions protocol: vLLM, OpenAI, OpenRouter, llama.cpp...

Requests go over aiohttp, which on an instant endpoint carries some 15 times more requests a second than the
`openai` package's default transport; `OpenAIClient.from_sdk` goes through that package where its sign-in is
needed (Azure, custom authentication).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.http_errors import completion_of, error_of, lacks_model, list_models, refuse_unlisted
from wander.clients.rate_limit import REFUSALS, CallLimiter
from wander.clients.retries import Attempts
from wander.clients.transport import (
    AiohttpTransport,
    Answer,
    SdkTransport,
    Transport,
    TransportError,
    retry_after,
)
from wander.errors import ConfigError, EndpointUnreachable, InvalidResponse, ModelError
from wander.seeding import derived_seed
from wander.types import Message, SamplingArgs

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_DEFAULT_URL = "https://api.openai.com/v1"
_COMPLETIONS = "/chat/completions"
_REASONING = ("</think>", "[/THINK]")
_LONGEST_CHECK = 5.0
"""Longest `Retry-After` that a check waits for, in seconds."""


class OpenAIClient(Client):
    """Asks an OpenAI-compatible endpoint.

    - `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`; local servers need no key.
    - `timeout`: seconds one attempt may take. `max_retries`: further attempts after lost connections,
      time-outs and errors of the server; `attempts` has more of it. A call that the endpoint refuses because
      it is asked too much (429, 503, 529) waits, with all others, as long as the endpoint takes calls.
    - `limiter`: bounds the calls in flight; clients that share one share the bound. None makes a new one.
    - `max_connections`: most connections; None leaves it to the limiter and the caller.
    - `send_reasoning`: send the reasoning of earlier turns back. Off, since OpenAI's own endpoint refuses it.

    A sampling seed is mixed with the request's own, so that the rollouts of one group differ and each can
    still be asked for again. Raises only `ModelError` and its subclasses.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        connect_timeout: float = 15.0,
        max_retries: int = 5,
        max_connections: int | None = None,
        headers: Mapping[str, str] | None = None,
        send_reasoning: bool = False,
        limiter: CallLimiter | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.model = model
        self.send_reasoning = send_reasoning
        self.limiter: CallLimiter = limiter or CallLimiter()
        if transport is None:
            url = base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConfigError(
                    f"`{url}` is not the address of an endpoint", hint="give it as `http://HOST:PORT/v1`"
                )
            key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
            transport = AiohttpTransport(
                url,
                {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})},
                timeout=timeout,
                connect_timeout=connect_timeout,
                max_connections=max_connections,
            )
        self._transport = transport
        self.attempts = Attempts(self._transport, max_retries=max_retries)

    @classmethod
    def from_sdk(cls, sdk: AsyncOpenAI, model: str, **options: Any) -> OpenAIClient:
        """Return a client that sends through a ready-made `openai.AsyncOpenAI` (Azure, custom sign-in)."""
        return cls(model, transport=SdkTransport(sdk), **options)

    @property
    def base_url(self) -> str:
        """The endpoint's address, without credentials."""
        return self._transport.base_url

    @property
    def max_retries(self) -> int:
        """Further attempts after a fault."""
        return self.attempts.max_retries

    @max_retries.setter
    def max_retries(self, retries: int) -> None:
        self.attempts.max_retries = retries

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the endpoint's completion."""
        self.check_sampling(request.sampling)
        unsent = {"attempts"} if self.send_reasoning else {"attempts", "reasoning_content"}
        messages = [
            {name: value for name, value in message.items() if name not in unsent}
            if not unsent.isdisjoint(message)
            else message
            for message in request.messages
        ]
        payload: dict[str, Any] = {"model": self.model, "messages": messages, **request.sampling.given()}
        if request.tools:
            payload["tools"] = request.tools
        if "seed" in payload:
            payload["seed"] = derived_seed(payload["seed"], request.seed) >> 33
        try:
            answer = await self.attempts.answer(self.limiter, _COMPLETIONS, payload, request.rollout_id)
        except TransportError as error:
            raise self._unreachable(error) from error
        except TypeError as error:
            raise ModelError(f"the request cannot be written as JSON: {error}") from error
        if answer.status != 200:
            raise error_of(answer, self.base_url, self.model)
        return completion_of(answer, self.base_url)

    def begin(self, rollout_id: str) -> None:
        """Learn that a rollout begins; where calls wait, those of older rollouts go first."""
        self.limiter.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        self.limiter.end(rollout_id)

    async def check(self) -> None:
        """Find out cheaply whether the endpoint answers and takes the key; raises the `ModelError` otherwise.

        Asks for the list of models, and where the model is not on it, since some endpoints list not all or
        none, for one token. An endpoint that is asked too much at the moment (429) passes: a rollout waits
        for it. Raises `ModelNotFound` with the names that were meant when the endpoint has no such model.
        """
        answer = await self._ask_twice(None)
        if answer.status in (401, 403):
            raise error_of(answer, self.base_url, self.model)
        listed = list_models(answer)
        answers = answer.status == 200 and answer.body.lstrip().startswith(b"{")
        if self.model in listed or (answers and not listed):
            return
        payload = {"model": self.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        answer = await self._ask_twice(payload)
        if listed and lacks_model(answer, self.model):
            raise refuse_unlisted(self.model, listed, self.base_url)
        # Endpoints refuse odd requests (400, 422) for many reasons; a rollout will tell. These are certain.
        if answer.status in (401, 403, 404, 405) or 300 <= answer.status < 400 or answer.status >= 500:
            raise error_of(answer, self.base_url, self.model)
        if answer.status == 200:
            completion_of(answer, self.base_url)

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Raise `ModelError` for what no endpoint does: it does not leave turns out."""
        if sampling.compact_at is not None:
            raise ModelError(
                f"`compact_at` is for models in this process; `{self.model}` is behind an endpoint",
                hint="leave it out, or name a checkpoint's folder without `-b` and `--serve`",
            )

    def describe(self) -> dict[str, Any]:
        """Return kind, model and address; never the key."""
        return {"kind": type(self).__name__, "model": self.model, "base_url": self.base_url}

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        await self._transport.close()

    async def _ask_twice(self, payload: dict[str, Any] | None) -> Answer:
        """Ask for the models, or for a completion, and once more where that may help."""
        pause = self.attempts.pause(0)
        for last in (False, True):
            try:
                if payload is None:
                    answer = await self._transport.get("/models")
                else:
                    answer = await self._transport.post(_COMPLETIONS, payload)
            except TransportError as error:
                if last or error.is_final or not self.max_retries:
                    raise self._unreachable(error) from error
            else:
                if last or not (answer.status in REFUSALS or answer.status >= 500):
                    return answer
                pause = min(retry_after(answer.headers) or pause, _LONGEST_CHECK)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: TransportError) -> ModelError:
        if error.kind == "garbled":
            return InvalidResponse(
                f"`{self.base_url}` gave no readable answer: {error}",
                hint="look whether the base URL is that of an OpenAI-compatible endpoint, `https` or `http`",
            )
        if error.kind == "untrusted":
            return EndpointUnreachable(
                f"no trusted connection to `{self.base_url}`: {error}",
                hint="use `http://` where the server has no TLS, or name its certificate in `SSL_CERT_FILE`",
            )
        if error.kind == "timed out":
            return ModelError(
                f"`{self.base_url}` gave no answer in time",
                hint="raise `timeout`, lower the concurrency, or look whether the server still works",
                retryable=True,
            )
        return EndpointUnreachable(
            f"no answer from `{self.base_url}`: {error}",
            hint="start the server, or correct the base URL (it usually ends in `/v1`)",
            retryable=True,
        )


class TurnText(Protocol):
    """What reads a model's turns where its server gives them as text (`wander.models.chat.ChatFormat`)."""

    def read_text(
        self, text: str, messages: list[Message], tools: list[dict[str, Any]] | None, turn: int
    ) -> Message:
        """Return the assistant's message that a text is, after these messages."""
        ...

    def check_tools(self) -> None:
        """Raise `InvalidResponse` where the model is not told of tools, or its calls cannot be read."""
        ...


class ServedClient(OpenAIClient):
    """Asks a server whose address means nothing once it has ended; what it is made of stands in its place.

    `server` says engine, version and arguments; `weights_sha256` is the digest of a local checkpoint. What
    `turns` returns, which is asked where it is needed, reads calls of tools and reasoning as it does those of
    a model in this process; None leaves them to the server.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        server: dict[str, Any],
        weights_sha256: str | None = None,
        timeout: float | None = None,
        turns: Callable[[], TurnText] | None = None,
    ) -> None:
        super().__init__(model, base_url, "", timeout=timeout or 600.0, send_reasoning=turns is not None)
        self._server = server
        self._weights_sha256 = weights_sha256
        self._turns = turns

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the server's completion, its calls of tools and its reasoning read."""
        if self._turns is None:
            return await super().complete(request)
        if request.tools:
            # With this choice vLLM shows the tools and leaves the text alone.
            plain = {**request.sampling.given(), "tool_choice": "none", "skip_special_tokens": False}
            request = request.model_copy(update={"sampling": SamplingArgs(**plain)})
        response = await super().complete(request)
        text = response.message["content"]
        if not isinstance(text, str) or not (request.tools or any(mark in text for mark in _REASONING)):
            return response
        turns = await asyncio.to_thread(self._turns)
        read = turns.read_text(text, request.messages, request.tools, request.turn)
        return response.model_copy(update={"message": {**response.message, **read}})

    def check_tools(self) -> None:
        """Find out whether the model can be offered tools."""
        if self._turns is not None:
            self._turns().check_tools()

    def describe(self) -> dict[str, Any]:
        """Return model, weights and server; the kind is that of any endpoint."""
        return {
            "kind": OpenAIClient.__name__,
            "model": self.model,
            "weights_sha256": self._weights_sha256,
            "server": self._server,
        }
