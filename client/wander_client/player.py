"""A person as a model: reads what a model would read, types what a model would write."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ModelError

from wander_client.output import Output
from wander_client.reports import message_text


class PlayerClient(Client):
    """Shows the new messages of every turn and asks for the answer, one line.

    `wrap` turns what is typed into what the environment expects: `{}` stands for the typed text.
    """

    model = "human"

    def __init__(
        self, output: Output, *, wrap: str | None = None, read: Callable[[], str] | None = None
    ) -> None:
        self._output = output
        self._wrap = wrap
        self._read = read or _read_line
        self._shown = 0
        self.left = False
        """True once the person closed the input."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Print what is new and return the person's answer; raises `ModelError` at the end of the input."""
        for message in request.messages[self._shown :]:
            if message.get("role") != "assistant":
                self._output.line()
                self._output.line(f"-- {message.get('role')}", style="hint")
                self._output.line(message_text(message))
        self._shown = len(request.messages)
        self._output.line()
        typed = await asyncio.to_thread(self._read)
        if not typed:
            self.left = True
            raise ModelError("the player left")
        text = typed.rstrip("\r\n").replace("\\n", "\n")
        if self._wrap is not None:
            text = self._wrap.replace("{}", text)
            self._output.line(text, style="dim")
        return ModelResponse(message={"role": "assistant", "content": text})


def _read_line() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("you> ")
        sys.stderr.flush()
    return sys.stdin.readline()
