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
"""Longest `Retry-After` that a check waits for, in seconds."""


class OpenAIClient(Client):
    """Asks an OpenAI-compatible endpoint.

    - `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`; local servers need no key.
    - `timeout`: seconds that one attempt may take. `max_retries`: further attempts after lost connections,
      time-outs, errors of the server and answers that hold an error; `attempts` says more. A call that the
      endpoint refuses for its rate (429, 503, 529) waits as long as the endpoint takes calls.
    - `limiter`: bounds the calls in flight; clients that share one share the bound. None means the limiter of
      the evaluation in which the client is used, and one of its own outside of evaluations.
    - `max_connections`: most connections; None leaves it to the limiter and the caller.
    - `send_reasoning`: whether the reasoning of earlier turns goes back. DeepSeek, Kimi and others require it
      after a tool call. None: if the endpoint sent it. True: always. False: never.
    - `merge_system`: put the system prompt into the first user message if the model has no system role.

    What else endpoints want differently is learned from their refusals (`wander.clients.dialect`).
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
                # Other statuses were tried again already.
                if answer.status != 200 or not error.retryable or attempt == self.max_retries:
                    raise
            else:
                self.dialect.hear(response.message, answer.body)
                return response
            self.limiter.retries += 1
            await asyncio.sleep(self.attempts.pause(attempt))
            attempt += 1

    async def _answer(self, request: ModelRequest) -> Answer:
        """Return the answer to a request, written as the endpoint wants it."""
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
        """Return the error that a status other than 200 means."""
        error = error_of(answer, self.base_url, self.model)
        name = unsupported_parameter(answer, request.sampling.given()) if type(error) is ModelError else None
        if name is None:
            return error
        return UnsupportedParameter(str(error), parameter=name, hint=f"leave `{name}` out")

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
            request = ModelRequest(rollout_id="check", turn=0, messages=[])
            try:
                completion_of(answer, self.base_url, self.model, request)
            except ModelError as error:
                if not error.retryable:  # a rollout will try again
                    raise

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Raise `ModelError` for what no endpoint does, and for answers that this client does not read."""
        if sampling.compact_at is not None:
            raise ModelError(
                f"`compact_at` is for models in this process; `{self.model}` is behind an endpoint",
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
        """Return kind, model, address and how requests are written; never the key."""
        described = {"kind": type(self).__name__, "model": self.model, "base_url": self.base_url}
        return {**described, "requests": self.dialect.changes} if self.dialect.changes else described

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

    @property
    def merges_system(self) -> bool:
        """Whether a system prompt becomes part of the first user message."""
        ...


class ServedClient(OpenAIClient):
    """Asks a server whose address means nothing once it has ended; what it is made of stands in its place.

    `server` says engine, version and arguments; `weights_sha256` is the digest of a local checkpoint. What
    `turns` returns reads calls of tools and reasoning as for a model in this process; None leaves them to the
    server.
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
        """Return the server's completion, its calls of tools and its reasoning read."""
        reader = await self._load_reader(request)
        if reader is None:
            return await super().complete(request)
        if reader.merges_system:
            self.dialect.merge()
        # Marks of reasoning and of calls may be special tokens, and the prompt may have opened the reasoning.
        plain = {**request.sampling.given(), "skip_special_tokens": False}
        if request.tools:
            plain["tool_choice"] = "none"  # then vLLM shows the tools and leaves the text alone
        response = await super().complete(request.model_copy(update={"sampling": SamplingArgs(**plain)}))
        text = response.message["content"]
        if not isinstance(text, str):
            return response
        read = reader.read_text(text, request.messages, request.tools, request.turn)
        return response.model_copy(update={"message": {**response.message, **read}})

    async def _load_reader(self, request: ModelRequest) -> TurnText | None:
        """Return what reads the turns; None if the server does, or there is no tokenizer and no tool."""
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
            **({"requests": self.dialect.changes} if self.dialect.changes else {}),
        }
