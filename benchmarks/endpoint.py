"""Measure what the endpoint of a box adds to a model call, next to a bare aiohttp server in the same run.

    python benchmarks/endpoint.py [--quick]

Both servers answer immediately. The request is a coding agent's: a system prompt, tools and 40 turns, which
are read and translated in both directions. The times are the first decile of the calls, because other
programs on the machine only make calls slower.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import time
from typing import Any

import aiohttp
from aiohttp import web
from wander.endpoint.server import ModelEndpoint
from wander.endpoint.values import EndpointReply

TURNS = 40
TARGET_MS = 3.0
PARAMETERS = {"type": "object", "properties": {name: {"type": "string"} for name in "abcdef"}}


def bodies(stream: bool) -> dict[str, dict[str, Any]]:
    """Return the same conversation in each dialect."""
    command, output = json.dumps({"a": "ls -la"}), "line of output\n" * 60
    chat: list[dict[str, Any]] = [{"role": "user", "content": "repair it"}]
    items, messages = list(chat), list(chat)
    for turn in range(TURNS):
        function = {"name": "tool_1", "arguments": command}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        chat.append({"role": "assistant", "content": "I look", "tool_calls": [call]})
        chat.append({"role": "tool", "tool_call_id": f"c{turn}", "content": output})
        items.append({"type": "function_call", "call_id": f"c{turn}", **function})
        items.append({"type": "function_call_output", "call_id": f"c{turn}", "output": output})
        use = {"type": "tool_use", "id": f"c{turn}", "name": "tool_1", "input": {"a": "ls -la"}}
        result = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": output}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "I look"}, use]})
        messages.append({"role": "user", "content": [result]})
    tools = [{"name": f"tool_{index}", "description": "word " * 200} for index in range(20)]
    system, common = "word " * 3000, {"model": "policy", "stream": stream}
    return {
        "/v1/chat/completions": {
            **common,
            "messages": [{"role": "system", "content": system}, *chat],
            "tools": [{"type": "function", "function": {**tool, "parameters": PARAMETERS}} for tool in tools],
        },
        "/v1/responses": {
            **common,
            "instructions": system,
            "input": items,
            "tools": [{"type": "function", **tool, "parameters": PARAMETERS} for tool in tools],
        },
        "/v1/messages": {
            **common,
            "max_tokens": 1000,
            "system": system,
            "messages": messages,
            "tools": [{**tool, "input_schema": PARAMETERS} for tool in tools],
        },
    }


async def bare(request: web.BaseRequest) -> web.Response:
    json.loads(await request.read())
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": "done"}}]})


async def answer_calls(endpoint: ModelEndpoint) -> None:
    while True:
        call = await endpoint.next_call()
        message = {"role": "assistant", "content": "done"}
        endpoint.answer(EndpointReply(call_id=call.call_id, message=message))


async def time_call(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    started = time.perf_counter()
    async with session.post(url, data=body) as response:
        response.raise_for_status()
        await response.read()
    return (time.perf_counter() - started) * 1000


async def measure(calls: int) -> float:
    """Print a table and return the largest difference in ms."""
    bare_socket, socket_ = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    runner = web.ServerRunner(web.Server(bare, access_log=None))
    await runner.setup()
    await web.SockSite(runner, bare_socket).start()
    endpoint = ModelEndpoint()
    await endpoint.serve([socket_])
    answering = asyncio.create_task(answer_calls(endpoint))
    worst = 0.0
    print("| path | stream | request | bare aiohttp, ms | endpoint, ms | difference, ms |")
    print("|---|---|---:|---:|---:|---:|")
    async with aiohttp.ClientSession() as session:
        for stream in (False, True):
            for path, body in bodies(stream).items():
                text = json.dumps(body).encode()
                times: tuple[list[float], list[float]] = ([], [])
                for _ in range(calls):  # in turn, so that other work on the machine meets both
                    for listening, taken in zip((bare_socket, socket_), times, strict=True):
                        port = listening.getsockname()[1]
                        taken.append(await time_call(session, f"http://127.0.0.1:{port}{path}", text))
                plain, ours = (statistics.quantiles(taken, n=10)[0] for taken in times)
                worst = max(worst, ours - plain)
                row = f"| `{path}` | {'yes' if stream else 'no'} | {len(text) // 1024} KiB "
                print(f"{row}| {plain:.2f} | {ours:.2f} | {ours - plain:.2f} |")
    answering.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await answering
    await endpoint.close()
    await runner.cleanup()
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    worst = asyncio.run(measure(20 if parser.parse_args().quick else 200))
    print(f"\nlargest difference: {worst:.2f} ms (target: below {TARGET_MS:.0f} ms)")
    return int(worst >= TARGET_MS)


if __name__ == "__main__":
    raise SystemExit(main())
