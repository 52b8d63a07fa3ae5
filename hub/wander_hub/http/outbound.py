"""Requests that the hub sends to other servers while a client waits, within a total deadline.

They run on the event loop, so a slow server does not occupy a thread. Clients that need the same response
share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from wander.wire.untrusted_text import PROVIDER_ANSWER, RefusedText, read_json

from wander_hub.names import acceptable_address

Answer = TypeVar("Answer")
ANSWER_SECONDS = 5.0
"""Maximum seconds from the connection to the last byte of the response."""


class SharedQuestions(Generic[Answer]):
    """Pending requests; each is sent once for all clients that need its response."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Task[Answer]] = {}

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the response to a request; the request is sent only if it is not pending already."""
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(question())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def is_asked(self, key: Hashable) -> bool:
        """Return whether a question is pending."""
        return key in self._asked

    def _forget(self, key: Hashable, done: asyncio.Task[Answer]) -> None:
        self._asked.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark the exception as retrieved, because all clients may have left


async def ask_json(
    url: str, form: Mapping[str, str] | None = None, credentials: tuple[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of a response; for a form, also of a response with a 4xx status.

    Raises `ValueError`, `TypeError` or `httpx.HTTPError` for any other response, and if no response arrives
    in time.
    """
    if not acceptable_address(url):
        raise ValueError(f"`{url[:200]}` is not an https address")
    import httpx

    method, body = "GET" if form is None else "POST", bytearray()
    try:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            httpx.AsyncClient(timeout=ANSWER_SECONDS) as client,
            client.stream(method, url, data=form, auth=credentials) as answer,
        ):
            if form is None or not answer.is_client_error:
                answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                body += piece
                PROVIDER_ANSWER.check_size(len(body))
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no complete response within {ANSWER_SECONDS:g} s") from error
    try:
        content = read_json(bytes(body), PROVIDER_ANSWER)
    except RefusedText as error:
        raise ValueError(f"`{url[:200]}`: {error}") from error
    if not isinstance(content, dict):
        raise TypeError(f"`{url[:200]}` does not respond with a JSON object")
    return answer.status_code, content
