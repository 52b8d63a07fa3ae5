"""A scripted model in its own process. The function is in the environment's package, so it runs with the
environment's interpreter, without access to this process and its keys. Requests and responses are JSON lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ModelError
from wander.system.child_environ import LOCALE, child_environ

from wander_client.environments.location import Location
from wander_client.errors import NotFound, UsageError
from wander_client.models import scripted_host

_LINE_LIMIT = 64 * 1024 * 1024
"""Maximum bytes of a message. Every turn sends the whole conversation again."""


class ScriptedProcessClient(Client):
    """Client that calls a function for every completion (see `wander.clients.scripted`)."""

    def __init__(self, spec: str, location: Location) -> None:
        self.model = spec
        self._location = location
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the function's response."""
        await self.check()
        process = self._process
        if process is None or process.stdin is None:
            raise ModelError(f"the scripted model `{self.model}` is closed")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            line = json.dumps({"id": number, "request": request.model_dump(mode="json")})
            with contextlib.suppress(ConnectionError):  # the reader reports why the process ended
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
            reply = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            raise ModelError(str(reply["error"]))
        try:
            return ModelResponse.model_validate(reply["response"])
        except (KeyError, ValidationError) as error:
            raise ModelError(f"the scripted model `{self.model}` did not return a completion") from error

    def describe(self) -> dict[str, Any]:
        """Return the manifest's fields: the same as for a scripted client in this process."""
        return {"kind": "ScriptedClient", "model": self.model}

    async def check(self) -> None:
        """Start the process and import the function. Raises `NotFound` if it cannot be imported."""
        async with self._starting:
            if self._process is None:
                await self._start()

    async def close(self) -> None:
        """Stop the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reader is not None:
            await self._reader

    async def _start(self) -> None:
        folder = self._location.folder
        modules = () if folder is None else (folder, folder / "src")
        self._process = await asyncio.create_subprocess_exec(
            str(self._location.python),
            str(Path(scripted_host.__file__)),
            self.model,
            *(str(path) for path in modules if path.is_dir()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environ(*LOCALE, PYTHONUNBUFFERED="1"),
            limit=_LINE_LIMIT,
        )
        first = await self._line() or {}
        if "ready" not in first:
            await self.close()
            kind = UsageError if first.get("type") == "ConfigError" else NotFound
            hint = "pass a function in the environment's package: `scripted:module:function`"
            raise kind(
                f"cannot use `{self.model}`: {first.get('error', 'its process exited immediately')}",
                hint=first.get("hint") or hint,
                code="model_not_found",
            )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (message := await self._line()) is not None:
            waiting = self._waiting.get(message.get("id", -1))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"error": f"the process of `{self.model}` exited"})

    async def _line(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of the stream."""
        if self._process is None or self._process.stdout is None:
            return None
        while line := await self._process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                return message
        return None
