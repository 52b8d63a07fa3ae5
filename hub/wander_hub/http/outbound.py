"""Questions that the hub asks other servers while somebody waits: one at a time, within a total deadline.

They are asked on the event loop, so a server that drips bytes holds no thread. Everybody who wants the same
answer waits for one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from wander.wire.gate import PROVIDER_ANSWER, Refused, read_json

from wander_hub.names import acceptable_address

Answer = TypeVar("Answer")
ANSWER_SECONDS = 5.0
"""From the connection to the last byte of an answer."""


class SharedQuestions(Generic[Answer]):
    """Questions under way, each of which is asked once for all who want its answer."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Task[Answer]] = {}

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer to a question, which is asked if it is not under way."""
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(question())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def is_asked(self, key: Hashable) -> bool:
        """Return whether a question is under way."""
        return key in self._asked

    def _forget(self, key: Hashable, done: asyncio.Task[Answer]) -> None:
        self._asked.pop(key, None)
        if not done.cancelled():
            done.exception()  # everybody who waited may have left


async def ask_json(
    url: str, form: Mapping[str, str] | None = None, credentials: tuple[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status and the object that an address answers with; the refusal of a form is an answer too.

    Raises `ValueError`, `TypeError` or `httpx.HTTPError` for any other answer, and for none in time.
    """
    if not acceptable_address(url):
        raise ValueError(f"`{url[:200]}` is not https")
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
        raise httpx.ReadTimeout(f"no whole answer within {ANSWER_SECONDS:g} s") from error
    try:
        found = read_json(bytes(body), PROVIDER_ANSWER)
    except Refused as error:
        raise ValueError(f"`{url[:200]}`: {error}") from error
    if not isinstance(found, dict):
        raise TypeError(f"`{url[:200]}` does not answer with an object")
    return answer.status_code, found
