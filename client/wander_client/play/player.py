"""A person as the model: reads the prompts that a model would read, and types the answers."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ModelError
from wander.types import Message

from wander_client.errors import UsageError
from wander_client.play.typed_calls import describe_tool, example_call, parse_call
from wander_client.runs.text import message_text
from wander_client.terminal.output import Output

COMMANDS = "`/undo` takes back your last answer, `/hint` asks a model, `/quit` leaves the game"


class PlayerClient(Client):
    """Shows the new messages of each turn, and reads the answer from one typed line.

    `wrap` is a template for the answer, in which `{}` is replaced by the typed text. If the environment has
    tools, they are listed first, and `/call NAME key=value` calls a tool. `/hint` shows the answer of the
    client `hints`. `/undo` ends the rollout and sets `undone`. When the rollout is then replayed, all answers
    except the last one are repeated automatically.
    """

    model = "human"

    def __init__(
        self,
        output: Output,
        *,
        wrap: str | None = None,
        hints: Client | None = None,
    ) -> None:
        self._output = output
        self._wrap = wrap
        self._hints = hints
        self._given: list[Message] = []
        """Answers so far, which are repeated when the rollout is replayed."""
        self.undone = False
        self._seen: list[Message] = []
        self._tools: list[dict[str, Any]] = []
        self.left = False
        """Whether the person closed the input."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Print the new messages and return the person's answer; raises `ModelError` at the end of input."""
        if request.turn < len(self._given):
            return _response(self._given[request.turn])
        # Show only messages that were not shown before; after a change of conversation, that is all of them.
        pairs = zip(self._seen, request.messages, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._seen = list(request.messages)
        for message in request.messages[same:]:
            if message.get("role") != "assistant":
                show_message(message, self._output)
        tools = request.tools or []
        if tools != self._tools:
            self._tools = tools
            self._show_tools()
        self._output.line()
        while True:
            typed = await asyncio.to_thread(read_line)
            if not typed or typed.strip() == "/quit":
                self.left = True
                raise ModelError("the player left")
            if typed.strip() == "/hint":
                await self._hint(request)
                continue
            if typed.strip() == "/undo":
                if self._given:  # ends the rollout, which is then replayed without the last answer
                    self._given.pop()
                    self.undone = True
                    raise ModelError("an answer was taken back")
                self._output.line("there is no answer to take back", style="dim")
                continue
            answer = self._answer(typed.rstrip("\r\n"), call_id=f"call_{request.turn}")
            if answer is not None:
                self._given.append(answer)
                return _response(answer)

    async def _hint(self, request: ModelRequest) -> None:
        """Print the answer of the client for hints."""
        if self._hints is None:
            self._output.line("no model gives hints: start with `--hints MODEL`", style="dim")
            return
        try:
            response = await self._hints.complete(request)
        except ModelError as error:
            self._output.line(str(error), style="error")
            return
        self._output.line(f"hint: {message_text(response.message)}", style="dim")

    def again(self) -> None:
        """Restart the rollout after an `/undo`; only the last messages are shown again."""
        self.undone = False
        self._output.line()
        self._output.line("-- taken back", style="hint")
        answers = [place for place, message in enumerate(self._seen) if message.get("role") == "assistant"]
        self._seen = self._seen[: answers[-2] + 1] if len(answers) > 1 else []

    def _answer(self, line: str, call_id: str) -> Message | None:
        """Return the message for an input line; None for a line that was a command such as `/help`."""
        word, _, rest = line.strip().partition(" ")
        if word in ("/tools", "/help"):
            self._show_tools()
            return None
        if word == "/call":
            try:
                return parse_call(rest, self._tools).as_message(call_id)
            except UsageError as error:
                # A typo does not cost a turn, unlike a call that the environment rejects.
                self._output.error(error)
                return None
        text = line.replace("\\n", "\n")
        if self._wrap is not None:
            text = self._wrap.replace("{}", text)
            self._output.line(text, style="dim")
        return {"role": "assistant", "content": text}

    def _show_tools(self) -> None:
        output = self._output
        output.line()
        if not self._tools:
            output.line(f"this environment offers no tools; each line is an answer, {COMMANDS}")
            return
        output.line("-- tools", style="hint")
        for tool in self._tools:
            first, *rest = describe_tool(tool)
            output.line(first, style="bold")
            for line in rest:
                output.line(line)
        output.line()
        output.line(
            f"call one with `{example_call(self._tools[0])}` (or a JSON object after the name); "
            f"any other line is your answer; `/tools` lists the tools again, {COMMANDS}",
            style="dim",
        )


def show_message(message: Message, output: Output) -> None:
    """Print one message as the environment sent it."""
    output.line()
    output.line(f"-- {message.get('role')}", style="hint")
    output.line(message_text(message))


def _response(answer: Message) -> ModelResponse:
    return ModelResponse(message=answer, finish_reason="tool_calls" if "tool_calls" in answer else "stop")


def read_line() -> str:
    """Return the next typed line; empty at the end of the input."""
    if sys.stdin.isatty():
        sys.stderr.write("you> ")
        sys.stderr.flush()
    return sys.stdin.readline()
