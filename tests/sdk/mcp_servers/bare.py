"""A bare MCP server over stdio, in the standard library alone, with every fault a test wants.

`bare.py MODE [NAME]`: `ok`; `mute` (never answers), `refuses` (ends at once), `garbage` (answers no JSON),
`stubborn` (ignores the end of its input and SIGTERM), `pages` (a tool list without end). NAME prefixes what
its tools say.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

MODE, NAME = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "bare")
TOOLS = ["say", "where", "die", "hang", "refuse", "variable", "content"]
count = 0


def answer(message: dict) -> dict | None:
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        info = {"name": NAME, "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tools = [{"name": name, "description": f"{NAME} {name}", "inputSchema": schema} for name in TOOLS]
        if MODE == "pages":
            return {"tools": tools[:1], "nextCursor": "again"}
        return {"tools": tools}
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    return None


def called(name: str, arguments: dict) -> dict:
    global count
    count += 1
    if name == "die":
        print(f"{NAME} burns down", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "hang":
        time.sleep(600)
    if name == "refuse":
        return {"content": [], "isError": True}
    if name == "content":
        blocks = [
            {"type": "text", "text": "look"},
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "of a file"}},
            {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": "AAAA"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
        ]
        return {"content": blocks}
    variable = os.environ.get(arguments.get("text", ""))
    said = {"say": f"{NAME} {count}", "where": str(os.getpid()), "variable": variable}
    return {"content": [{"type": "text", "text": str(said[name])}]}


def main() -> None:
    if MODE == "refuses":
        print("not today", file=sys.stderr)
        sys.exit(1)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        if MODE == "mute" or "id" not in message:
            continue
        if MODE == "garbage":
            print("this is no JSON", flush=True)
            sys.exit(0)
        result = answer(message)
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "method not found"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)
    while MODE == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
