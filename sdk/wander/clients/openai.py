"""Client for endpoints with the OpenAI chat-completions protocol: vLLM, OpenAI, OpenRouter, llama.cpp...

Requests are sent over aiohttp. With an instant endpoint, it sends about 15 times more requests per second
than the default transport of the `openai` package. `OpenAIClient.from_sdk` uses that package if its
authentication is needed (Azure, custom sign-in).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.completions import completion_of
from wander.clients.dialect import Dialect, unsupported_parameter
from wander.clients.http_errors import error_of, lacks_model, list_models, refuse_unlisted
from wander.clients.rate_limit import REFUSALS, SHARED_LIMITER, CallLimiter
from wander.clients.retries import Attempts
from wander.clients.transport import (
    AiohttpTransport,
    Answer,
    SdkTransport,
    Transport,
    TransportError,
    retry_after,
)
from wander.errors import (
    ConfigError,
    ContentFiltered,
    EndpointUnreachable,
    InvalidResponse,
    ModelError,
    UnsupportedParameter,
    WanderError,
    name_option,
)
from wander.types import FILTERED, Message, SamplingArgs

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_DEFAULT_URL = "https://api.openai.com/v1"
_COMPLETIONS = "/chat/completions"
_LONGEST_CHECK = 5.0
"""Maximum `Retry-After` that a check waits for, in seconds."""


class OpenAIClient(Client):
    """Calls an OpenAI-compatible endpoint.

    - `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`. Local servers do not need
      a key.
    - `timeout`: seconds for a single attempt. `max_retries`: number of retries after lost connections,
      timeouts, server errors and responses that contain an error; see `attempts`. A call that exceeds the
      endpoint's rate limit (429, 503, 529) is retried as long as the endpoint accepts other calls.
    - `limiter`: limit of the calls in flight, which several clients can share. None uses the limiter of the
      evaluation that the client is used in, or a new limiter outside of evaluations.
    - `max_connections`: maximum number of connections; None leaves it to the limiter and the caller.
    - `send_reasoning`: whether the reasoning of earlier turns is sent back. DeepSeek, Kimi and others require
      it after a tool call. None sends it if the endpoint produced it, True always, False never.
    - `merge_system`: whether to merge the system prompt into the first user message if the model has no
      system role.

    Other differences between endpoints are learned from their refusals (`wander.clients.dialect`). A sampling
    seed is mixed with the seed of each request, so that the rollouts of a group differ and each can be
    repeated. Raises only `ModelError` and its subclasses.
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
        send_reasoning: bool | None = None,
        merge_system: bool = True,
        limiter: CallLimiter | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.model = model
        self.dialect = Dialect(send_reasoning, merge_system)
        self.limiter: CallLimiter = limiter or CallLimiter()
        self._joins = limiter is None
        if transport is None:
            url = base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConfigError(
                    f"`{url}` is not the URL of an endpoint", hint="for example: `http://HOST:PORT/v1`"
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
        """Address of the endpoint, without credentials."""
        return self._transport.base_url

    @property
    def max_retries(self) -> int:
        """Number of retries after a fault."""
        return self.attempts.max_retries

    @max_retries.setter
    def max_retries(self, retries: int) -> None:
        self.attempts.max_retries = retries

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the endpoint's completion."""
        self.check_sampling(request.sampling)
        attempt = 0
        while True:
            answer = await self._answer(request)
            try:
                if answer.status != 200:
                    raise self._refusal(answer, request)
                response = completion_of(answer, self.base_url, self.model, request)
            except ContentFiltered:
                message: Message = {"role": "assistant", "content": ""}
                return ModelResponse(message=message, finish_reason=FILTERED)
            except ModelError as error:
                # Calls with other statuses were already retried.
                if answer.status != 200 or not error.retryable or attempt == self.max_retries:
                    raise
            else:
                self.dialect.note_reasoning_field(response.message, answer.body)
                return response
            self.limiter.retries += 1
            await asyncio.sleep(self.attempts.pause(attempt))
            attempt += 1

    async def _answer(self, request: ModelRequest) -> Answer:
        """Return the response to a request that is written in the endpoint's dialect."""
        while True:
            payload = self.dialect.payload(self.model, request)
            try:
                limiter = (SHARED_LIMITER.get() if self._joins else None) or self.limiter
                answer = await self.attempts.answer(limiter, _COMPLETIONS, payload, request.rollout_id)
            except TransportError as error:
                raise self._unreachable(error) from error
            except TypeError as error:
                raise ModelError(f"the request cannot be written as JSON: {error}") from error
            if answer.status == 200 or not self.dialect.learn(answer, payload):
                return answer
            if self.dialect.payload(self.model, request) == payload:
                return answer

    def _refusal(self, answer: Answer, request: ModelRequest) -> ModelError:
        """Return the error for a response with a status other than 200."""
        error = error_of(answer, self.base_url, self.model)
        name = unsupported_parameter(answer, request.sampling.given()) if type(error) is ModelError else None
        if name is None:
            return error
        return UnsupportedParameter(str(error), parameter=name, hint=f"leave `{name}` out")

    def begin(self, rollout_id: str) -> None:
        """Note that a rollout starts; if calls have to wait, those of older rollouts go first."""
        self.limiter.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Note that a rollout ended."""
        self.limiter.end(rollout_id)

    async def check(self) -> None:
        """Check cheaply whether the endpoint responds and accepts the key; raises `ModelError` if not.

        Fetches the list of models. Some endpoints list only some models, or none, so a missing model is asked
        for a single token. A rate-limited endpoint (429) passes the check, because rollouts wait for it.
        Raises `ModelNotFound` with suggestions if the endpoint does not have the model.
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
        # Endpoints reject unusual requests (400, 422) for many reasons, which rollouts will report. These
        # statuses are certain failures.
        if answer.status in (401, 403, 404, 405) or 300 <= answer.status < 400 or answer.status >= 500:
            raise error_of(answer, self.base_url, self.model)
        if answer.status == 200:
            request = ModelRequest(rollout_id="check", turn=0, messages=[])
            try:
                completion_of(answer, self.base_url, self.model, request)
            except ModelError as error:
                if not error.retryable:  # a rollout will retry
                    raise

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Raise `ModelError` for arguments that no endpoint supports or whose responses this client cannot
        read."""
        if sampling.compact_at is not None:
            raise ModelError(
                f"`compact_at` is only for models in this process, and `{self.model}` is behind an endpoint",
                hint="leave it out, or name a checkpoint's folder without "
                + name_option("base_url", word="-b"),
            )
        given = sampling.given()
        if given.get("stream") or given.get("n") not in (None, 1):
            raise ModelError(
                "`stream` and `n` are not sampling arguments: each call reads one whole completion",
                hint="leave them out; " + name_option("rollouts") + " asks for several completions",
            )

    def describe(self) -> dict[str, Any]:
        """Return kind, model, address and dialect; never the key."""
        described = {"kind": type(self).__name__, "model": self.model, "base_url": self.base_url}
        return {**described, "requests": self.dialect.changes} if self.dialect.changes else described

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        await self._transport.close()

    async def _ask_twice(self, payload: dict[str, Any] | None) -> Answer:
        """Fetch the models, or a completion, and retry once if that may help."""
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
                f"`{self.base_url}` sent an unreadable response: {error}",
                hint="check that the base URL is an OpenAI-compatible endpoint, and its `https` or `http`",
            )
        if error.kind == "untrusted":
            return EndpointUnreachable(
                f"cannot establish a TLS connection to `{self.base_url}`: {error}",
                hint="use `http://` if the server has no TLS, or set `SSL_CERT_FILE` to its certificate",
            )
        if error.kind == "timed out":
            return ModelError(
                f"`{self.base_url}` did not respond in time",
                hint="raise `timeout`, lower the concurrency, or check whether the server still works",
                retryable=True,
            )
        return EndpointUnreachable(
            f"no response from `{self.base_url}`: {error}",
            hint="start the server, or correct the base URL (it usually ends in `/v1`)",
            retryable=True,
        )


class TurnText(Protocol):
    """Parser of a model's turns for servers that return them as text (`wander.models.chat.ChatFormat`)."""

    def read_text(
        self, text: str, messages: list[Message], tools: list[dict[str, Any]] | None, turn: int
    ) -> Message:
        """Parse a text as the assistant's message that follows these messages."""
        ...

    def check_tools(self) -> None:
        """Raise `InvalidResponse` if the chat template has no tools, or the model's calls cannot be
        parsed."""
        ...

    @property
    def merges_system(self) -> bool:
        """Whether a system prompt becomes part of the first user message."""
        ...


class ServedClient(OpenAIClient):
    """Calls a server that Wander started. Manifests describe the server instead of its temporary address.

    `server` contains engine, version and arguments; `weights_sha256` is the digest of a local checkpoint.
    `turns` returns a parser of tool calls and reasoning, as for a model in this process; None leaves parsing
    to the server.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        server: dict[str, Any],
        weights_sha256: str | None = None,
        timeout: float | None = None,
        turns: Callable[[], TurnText] | None = None,
        *,
        send_reasoning: bool | None = None,
        merge_system: bool = True,
    ) -> None:
        if send_reasoning is None and turns is not None:
            send_reasoning = True  # the chat template decides
        super().__init__(
            *(model, base_url, ""),
            timeout=timeout or 600.0,
            send_reasoning=send_reasoning,
            merge_system=merge_system,
        )
        self._server = server
        self._weights_sha256 = weights_sha256
        self._turns = turns
        self._reader: TurnText | None = None
        self._loading = asyncio.Lock()
        self._has_reader = turns is not None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the server's completion with parsed tool calls and reasoning."""
        reader = await self._load_reader(request)
        if reader is None:
            return await super().complete(request)
        if reader.merges_system:
            self.dialect.merge()
        # Markers of reasoning and calls may be special tokens, and the prompt may already have opened the
        # reasoning.
        plain = {**request.sampling.given(), "skip_special_tokens": False}
        if request.tools:
            # vLLM then shows the tools to the model, but does not parse the text
            plain["tool_choice"] = "none"
        response = await super().complete(request.model_copy(update={"sampling": SamplingArgs(**plain)}))
        text = response.message["content"]
        if not isinstance(text, str):
            return response
        read = reader.read_text(text, request.messages, request.tools, request.turn)
        return response.model_copy(update={"message": {**response.message, **read}})

    async def _load_reader(self, request: ModelRequest) -> TurnText | None:
        """Return the parser of turns; None if the server parses, or without both a tokenizer and tools."""
        async with self._loading:
            if self._reader is None and self._turns is not None and (self._has_reader or request.tools):
                try:
                    self._reader = await asyncio.to_thread(self._turns)
                except WanderError:
                    self._has_reader = False
                    if request.tools:
                        raise
        return self._reader

    def check_tools(self) -> None:
        """Check whether the model accepts tools."""
        if self._turns is not None:
            self._turns().check_tools()

    def describe(self) -> dict[str, Any]:
        """Return model, weights and server; the kind is that of an ordinary endpoint."""
        return {
            "kind": OpenAIClient.__name__,
            "model": self.model,
            "weights_sha256": self._weights_sha256,
            "server": self._server,
            **({"requests": self.dialect.changes} if self.dialect.changes else {}),
        }
