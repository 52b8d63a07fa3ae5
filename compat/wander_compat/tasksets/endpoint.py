"""The model endpoint for programs of `verifiers.v1`: a server in the worker that calls the host.

The library sends every call of an episode through its interception server to an OpenAI-compatible endpoint,
with the trace's id in a header. This endpoint knows which rollout the trace belongs to, and gets the answer
from the host, which counts it, records it as a turn, and replays it.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any

from aiohttp import web
from wander.errors import AuthenticationFailed, EnvironmentFault, RateLimited

from wander_compat.adapters.host_client import HostClient
from wander_compat.verifiers.errors import ModelError as ClassicModelError
from wander_compat.verifiers.errors import OverlongPromptError
from wander_compat.verifiers.messages.conversion import wire_messages

SESSION_HEADER = "X-Session-ID"
"""The library's header for the trace's id."""
KEY_VARIABLE = "WANDER_TASKSET_KEY"
"""Environment variable with the endpoint's token for the library."""

_OVERLONG = "the prompt is longer than the maximum context length"


class HostModel:
    """Serves the chat completions of all rollouts in this process. Used as an async context manager."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.base_url = ""
        self._clients: dict[str, HostClient] = {}
        self._runner: web.ServerRunner | None = None

    def bind(self, trace_id: str, client: HostClient) -> None:
        """Attribute the calls of a trace to a rollout."""
        self._clients[trace_id] = client

    def release(self, trace_ids: list[str]) -> None:
        """Forget finished traces."""
        for trace_id in trace_ids:
            self._clients.pop(trace_id, None)

    async def __aenter__(self) -> HostModel:
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise EnvironmentFault(
                f"`verifiers.v1` needs a socket on 127.0.0.1, but cannot open one: {error}"
            ) from error
        self._runner = runner
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return _refusal(401, "the token is wrong for this endpoint")
        if request.method != "POST" or request.path != "/v1/chat/completions":
            return _refusal(404, "the host only answers chat completions")
        client = self._clients.get(request.headers.get(SESSION_HEADER, ""))
        if client is None:
            return _refusal(409, "the call does not belong to a running rollout")
        body = json.loads(await request.read())
        try:
            number, answer = await client.ask(
                wire_messages(body.get("messages")),
                {name: value for name, value in body.items() if name not in ("messages", "tools")},
                body.get("tools"),
            )
        except OverlongPromptError:
            return _refusal(400, _OVERLONG)
        except ClassicModelError as error:
            causes = ((RateLimited, 429), (AuthenticationFailed, 401))
            status = next((status for kind, status in causes if isinstance(client.failure, kind)), 502)
            return _refusal(status, str(error))
        completion = client.completion(number, answer)
        if body.get("stream"):
            return web.Response(body=_as_stream(completion), content_type="text/event-stream")
        return web.json_response(completion)


def _refusal(status: int, message: str) -> web.StreamResponse:
    error = {"message": message, "type": "wander_host", "code": None}
    return web.json_response({"error": error}, status=status)


def _as_stream(completion: dict[str, Any]) -> bytes:
    """Return a complete chat completion as the events of a stream."""
    choice = completion["choices"][0]
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    first = [{"index": 0, "delta": delta, "finish_reason": None}]
    last = [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]
    common = {**completion, "object": "chat.completion.chunk"}
    events = [
        {**common, "choices": choices, "usage": usage}
        for choices, usage in ((first, None), (last, None), ([], completion["usage"]))
    ]
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"
