"""Script that runs in an environment's virtual environment and answers model requests with a function.

It must not import wander_client, which is not installed there. The function's output goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any


def main() -> int:
    """Import the function, and answer requests from stdin until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host handles Ctrl-C in the terminal
    spec, *folders = sys.argv[1:]
    sys.path[:1] = folders  # replaces the folder of this script
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        from wander.clients.scripted import scripted_client_from_spec

        client = scripted_client_from_spec(spec)
    except Exception as error:  # noqa: BLE001 - the host reports it
        _write(
            answers, {"error": str(error), "type": type(error).__name__, "hint": getattr(error, "hint", None)}
        )
        return 1
    _write(answers, {"ready": True})
    asyncio.run(_serve(client, answers))
    return 0


async def _serve(client: Any, answers: Any) -> None:
    from wander.clients.base import ModelRequest

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        try:
            response = await client.complete(ModelRequest.model_validate(message["request"]))
            _write(answers, {"id": message["id"], "response": response.model_dump(mode="json")})
        except Exception as error:  # noqa: BLE001 - becomes the rollout's failure
            _write(answers, {"id": message["id"], "error": str(error)})


def _write(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
