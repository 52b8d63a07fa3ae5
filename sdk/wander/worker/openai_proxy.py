"""The host's OpenAI-compatible endpoint for worker code that has its own client.

It listens on loopback and makes the calls for the worker. The worker gets its address and a token that is
useless elsewhere. The host's key never enters the worker. Every answer is recorded with the rollout that
requested it. When a rollout is replayed, its responses come from the record, and no model is called.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from wander.clients.base import NOT_RECORDED
from wander.clients.rate_limit import CallLimiter
from wander.errors import RateLimited
from wander.rollout.outside_calls import HEADER, PUBLIC_KEY
from wander.types import Rollout, canonical_json

if TYPE_CHECKING:
    from aiohttp import web

    from wander.clients.retries import Attempts

BASE_VARIABLE, KEY_VARIABLE = "OPENAI_BASE_URL", "OPENAI_API_KEY"
USUAL_BASE = "https://api.openai.com/v1"
_SECONDS, _CONNECT_SECONDS = 600.0, 15.0
_COMPLETIONS = ("chat/completions", "completions")
_PATHS = (*_COMPLETIONS, "responses", "embeddings")
_AWAY = "`{}` cannot be reached: {}"
UNATTRIBUTED = "UnattributedCall"
"""Failure type of rollouts that are replayed while the environment calls a model outside of any rollout."""
Abandon = Callable[[str, str], None]
"""Callback that ends a rollout whose code gets no response. Takes the type of its failure and the reason."""
MOST_CONNECTIONS = 256
"""Maximum number of open connections of a sandbox."""


@dataclass
class CallCount:
    """Calls of a worker's code over all rollouts."""

    calls: int = 0
    failed: int = 0
    replayed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class _CallRecord:
    """Calls of one rollout: those made now, and the recorded ones if it is replayed."""

    abandon: Abandon
    made: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, list[dict[str, Any]]] | None = None
    limiter: CallLimiter | None = None
    """Limiter of the rollout's own model, which limits these calls together with those of the model."""


class OpenAIProxy:
    """Serves one worker until `close`. The web server starts when it is first needed."""

    def __init__(self) -> None:
        """Listen on a free loopback port. Must be called inside a running event loop."""
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(128)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._start_serving)
        # The calls go to the endpoint in the host's own variables.
        self._base_url = os.environ.get(BASE_VARIABLE) or USUAL_BASE
        self._key = os.environ.get(KEY_VARIABLE)
        self._token = f"wander-{secrets.token_hex(16)}"
        self._records: dict[str, _CallRecord] = {}
        self._replays = False
        """Whether a rollout was replayed. From then on no model is called."""
        self._runner: web.ServerRunner | None = None
        self._starting: asyncio.Task[None] | None = None
        self._taking: set[asyncio.Task[None]] = set()
        self._limiter = CallLimiter()
        """Limiter for calls without a known rollout, or if the rollout's model has no limiter."""
        self._attempts: Attempts | None = None
        self.count = CallCount()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._socket.getsockname()
        return host, port

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that point the worker's clients to this endpoint."""
        host, port = self.address
        return {BASE_VARIABLE: f"http://{host}:{port}/v1", KEY_VARIABLE: self._token}

    def take(self, connection: socket.socket) -> None:
        """Also serve a connected socket, for a worker that cannot reach any address."""
        if self._starting is None:
            self._start_serving()
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    def begin(
        self,
        rollout_id: str,
        recorded: list[dict[str, Any]] | None,
        abandon: Abandon,
        limiter: CallLimiter | None = None,
    ) -> None:
        """Register a rollout, with its recorded calls if it is replayed."""
        record = self._records[rollout_id] = _CallRecord(abandon, limiter=limiter)
        if recorded is not None:
            self._replays = True
            record.known = defaultdict(list)
            for call in recorded:
                record.known[str(call.get("digest"))].append(call)

    def end(self, rollout_id: str, rollout: Rollout | None) -> None:
        """Add the calls of a rollout to its record."""
        record = self._records.pop(rollout_id, None)
        if record is not None and rollout is not None and record.made:
            rollout.info[PUBLIC_KEY] = record.made

    async def close(self) -> None:
        """Stop the server and close its connections. May be called repeatedly."""
        if self._socket.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._starting is not None:
            await asyncio.gather(self._starting, *self._taking, return_exceptions=True)
        if self._attempts is not None:
            await self._attempts.transport.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._socket.close()

    def _start_serving(self) -> None:
        """Start the web server, which accepts the waiting connection."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._starting = loop.create_task(self._start())

    async def _start(self) -> None:
        from aiohttp import web

        self._runner = web.ServerRunner(web.Server(self._handle_request), shutdown_timeout=0.5)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def _serve(self, connection: socket.socket) -> None:
        assert self._starting is not None
        await self._starting
        server = None if self._runner is None else self._runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            connection.close()
            return
        await asyncio.get_running_loop().connect_accepted_socket(server, connection)

    async def _handle_request(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        status, response = await self._answer(request)
        # The host has already waited as long as it makes sense. OpenAI's clients read this header.
        headers = {"x-should-retry": "false"} if status == 429 else None
        return web.json_response(response, status=status, headers=headers)

    async def _answer(self, request: web.BaseRequest) -> tuple[int, Any]:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 401, _error("the token is wrong for this endpoint")
        path = request.path.removeprefix("/v1/").strip("/")
        if request.method != "POST" or path not in _PATHS:
            return 404, _error(f"the host accepts only POST {', '.join(_PATHS)}")
        try:
            body = json.loads(await request.read())
        except ValueError:
            return 400, _error("the request is not JSON")
        if not isinstance(body, dict) or body.get("stream"):
            return 400, _error("the host records whole responses: send the request without `stream`")
        return await self._call(path, body, request.headers.get(HEADER, ""))

    async def _call(self, path: str, body: dict[str, Any], rollout_id: str) -> tuple[int, Any]:
        """Handle a call from the record or from upstream, and record the response."""
        from wander.clients.completions import usage_of

        record = self._records.get(rollout_id)
        digest = hashlib.sha256(canonical_json([path, body]).encode()).hexdigest()
        self.count.calls += 1
        if record is not None and record.known is not None:
            recorded = record.known.get(digest)
            if not recorded:
                record.abandon(NOT_RECORDED, "the record has no response to this request by another model")
                return await _wait_for_the_end()
            self.count.replayed += 1
            call = recorded.pop(0) if len(recorded) > 1 else recorded[0]
        elif self._replays:
            for open_record in list(self._records.values()):
                open_record.abandon(
                    UNATTRIBUTED, "its code called a model outside of any rollout, which is not recorded"
                )
            return await _wait_for_the_end()
        else:
            limiter = record.limiter if record is not None else None
            status, response = await self._ask_upstream(path, body, limiter or self._limiter, rollout_id)
            call = {"digest": digest, "path": path, "request": body, "status": status, "response": response}
        if record is not None:
            record.made.append(call)
        status, response = int(call["status"]), call["response"]
        usage = response.get("usage") if isinstance(response, dict) else None
        if status >= 400:
            self.count.failed += 1
        elif counted := usage_of(usage):
            self.count.prompt_tokens += counted.prompt_tokens
            self.count.completion_tokens += counted.completion_tokens
        return status, response

    async def _ask_upstream(
        self, path: str, body: dict[str, Any], limiter: CallLimiter, rollout_id: str
    ) -> tuple[int, Any]:
        """Forward the request to the upstream endpoint. Returns status 502 if it is unreachable."""
        from wander.clients.completions import failure_in
        from wander.clients.http_errors import one_line
        from wander.clients.retries import Attempts
        from wander.clients.transport import AiohttpTransport, TransportError

        if self._key is None and self._base_url == USUAL_BASE:
            return 401, _error(f"the host has no API key: set `{KEY_VARIABLE}` (or `{BASE_VARIABLE}`)")
        if self._attempts is None:
            transport = AiohttpTransport(
                self._base_url,
                {"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=_SECONDS,
                connect_timeout=_CONNECT_SECONDS,
                max_connections=None,
            )
            # The client in the worker's code retries after faults itself.
            self._attempts = Attempts(transport, max_retries=0)
        attempts = self._attempts
        try:
            answer = await attempts.answer(limiter, f"/{path}", body, rollout_id)
        except RateLimited as error:
            return 429, _error(str(error))
        except TransportError as error:
            return 502, _error(_AWAY.format(attempts.transport.base_url, error))
        try:
            data = json.loads(answer.body)
        except ValueError:
            fault = f"returned invalid JSON with status {answer.status}"
            return 502, _error(f"`{attempts.transport.base_url}` {fault}")
        # Otherwise a failed judge would look like a judge with an empty response.
        if answer.status == 200 and path in _COMPLETIONS and (failure := failure_in(data)) is not None:
            return 502, _error(f"`{attempts.transport.base_url}` failed: {one_line(failure)}")
        return answer.status, data


async def _wait_for_the_end() -> NoReturn:
    """Leave a caller without a response until it hangs up or the worker ends."""
    await asyncio.Future()
    raise AssertionError("unreachable")


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "wander_host", "code": None}}
