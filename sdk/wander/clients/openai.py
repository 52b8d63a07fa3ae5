"""Any endpoint that speaks the OpenAI chat-completions protocol: vLLM, OpenAI, OpenRouter, llama.cpp...

Requests go over aiohttp, which on an instant endpoint carries some 15 times more requests a second than the
`openai` package's default transport; `OpenAIClient.from_sdk` goes through that package where its sign-in is
needed (Azure, custom authentication).
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wander.clients.answers import completion_of, error_of
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.transport import AiohttpTransport, Answer, SdkTransport, Transport, TransportError
from wander.errors import ConfigError, EndpointUnreachable, ModelError
from wander.seeding import derived_seed
from wander.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_DEFAULT_URL = "https://api.openai.com/v1"
_COMPLETIONS = "/chat/completions"
_RETRIED = frozenset({408, 409, 425, 429})
_CHECK_RETRIES = 1


class OpenAIClient(Client):
    """Asks an OpenAI-compatible endpoint.

    - `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`; local servers need no key.
    - `timeout`: seconds one attempt may take. `max_retries`: further attempts after lost connections,
      time-outs and the statuses 408, 409, 425, 429 and 5xx, with exponential backoff and jitter;
      `Retry-After` is honoured, and after a 429 it holds back every request of this client.
    - `max_connections`: most connections; None leaves it to the caller's concurrency.
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
        transport: Transport | None = None,
    ) -> None:
        self.model = model
        self.max_retries = max_retries
        self.send_reasoning = send_reasoning
        self.retry_seconds = 0.5
        """Pause before the first retry; doubles with each."""
        self.longest_pause = 60.0
        """Longest pause before a retry, and longest `Retry-After` that is waited for."""
        self._held_until = 0.0
        self._jitter = random.Random()  # noqa: S311 - spreads retries, decides no result
        self._transport = transport or _over_aiohttp(
            base_url, api_key, headers, timeout, connect_timeout, max_connections
        )

    @classmethod
    def from_sdk(cls, sdk: AsyncOpenAI, model: str, **options: Any) -> OpenAIClient:
        """Return a client that sends through a ready-made `openai.AsyncOpenAI` (Azure, custom sign-in)."""
        return cls(model, transport=SdkTransport(sdk), **options)

    @property
    def base_url(self) -> str:
        """The endpoint's address, without credentials."""
        return self._transport.base_url

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the endpoint's completion."""
        answer = await self._answer("POST", _COMPLETIONS, self._payload(request), self.max_retries)
        if answer.status != 200:
            raise error_of(answer, self.base_url, self.model)
        return completion_of(answer, self.base_url)

    async def check(self) -> None:
        """Find out cheaply whether the endpoint answers and takes the key; raises the `ModelError` otherwise.

        Asks for the list of models, and where the endpoint has none, for one token.
        """
        answer = await self._answer("GET", "/models", None, min(_CHECK_RETRIES, self.max_retries))
        if answer.status == 200 and answer.body.lstrip().startswith(b"{"):
            return
        if answer.status in (401, 403):
            raise error_of(answer, self.base_url, self.model)
        await self._probe()

    async def _probe(self) -> None:
        payload = {"model": self.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        answer = await self._answer("POST", _COMPLETIONS, payload, min(_CHECK_RETRIES, self.max_retries))
        # Endpoints refuse odd requests (400, 422) for many reasons; a rollout will tell. These are certain.
        if answer.status in (401, 403, 404, 405) or answer.status >= 500:
            raise error_of(answer, self.base_url, self.model)
        if answer.status == 200:
            completion_of(answer, self.base_url)

    def describe(self) -> dict[str, Any]:
        """Return kind, model and address; never the key."""
        return {"kind": type(self).__name__, "model": self.model, "base_url": self.base_url}

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        await self._transport.close()

    def _payload(self, request: ModelRequest) -> dict[str, Any]:
        messages = request.messages
        if not self.send_reasoning:
            messages = [_without_reasoning(message) for message in messages]
        payload: dict[str, Any] = {"model": self.model, "messages": messages, **request.sampling.given()}
        if request.tools:
            payload["tools"] = request.tools
        if "seed" in payload:
            payload["seed"] = derived_seed(payload["seed"], request.seed) >> 33
        return payload

    async def _answer(
        self, method: str, path: str, payload: dict[str, Any] | None, max_retries: int
    ) -> Answer:
        """Send until an answer comes that is worth having, or the retries run out."""
        for attempt in range(max_retries + 1):
            if self._held_until > time.monotonic():
                await asyncio.sleep(self._held_until - time.monotonic() + self._jitter.uniform(0, 0.2))
            last = attempt == max_retries
            try:
                answer = await self._sent(method, path, payload)
            except TransportError as error:
                if last:
                    raise self._unreachable(error) from error
                await asyncio.sleep(self._pause(attempt))
                continue
            if last or not (answer.status in _RETRIED or answer.status >= 500):
                return answer
            await self._hold(answer, attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _sent(self, method: str, path: str, payload: dict[str, Any] | None) -> Answer:
        if payload is None:
            return await self._transport.get(path)
        try:
            return await self._transport.post(path, payload)
        except TypeError as error:
            raise ModelError(f"the request cannot be written as JSON: {error}") from error

    async def _hold(self, answer: Answer, attempt: int) -> None:
        """Wait before the next attempt, as long as the endpoint asks; a 429 holds the siblings back too."""
        asked = retry_after(answer.headers)
        pause = self._pause(attempt) if asked is None else min(asked, self.longest_pause)
        if answer.status == 429 and asked is not None:
            self._held_until = max(self._held_until, time.monotonic() + pause)
        else:
            await asyncio.sleep(pause)

    def _pause(self, attempt: int) -> float:
        pause = min(self.retry_seconds * 2.0**attempt, self.longest_pause)
        return pause * self._jitter.uniform(0.5, 1.5)

    def _unreachable(self, error: TransportError) -> ModelError:
        if error.timed_out:
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` (a number or a date) or `retry-after-ms` asks for, if any."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        if (value := headers.get("retry-after")) is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _over_aiohttp(
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    timeout: float,
    connect_timeout: float,
    max_connections: int | None,
) -> Transport:
    url = base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"`{url}` is not the address of an endpoint", hint="give it as `http://HOST:PORT/v1`"
        )
    key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
    return AiohttpTransport(
        url,
        {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})},
        timeout=timeout,
        connect_timeout=connect_timeout,
        max_connections=max_connections,
    )


def _without_reasoning(message: Message) -> Message:
    if "reasoning_content" not in message:
        return message
    return {name: value for name, value in message.items() if name != "reasoning_content"}
