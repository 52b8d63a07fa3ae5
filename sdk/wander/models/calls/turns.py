"""Detection of a model's turn format, and parsing of its turns into text, reasoning and attempted calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wander.errors import InvalidResponse
from wander.models.calls.json_calls import in_blocks, scan_bare, scan_mistral
from wander.models.calls.tagged import LFM2_ENDS, LFM2_OPENS, scan_python, scan_tags
from wander.models.calls.written import Scan, Tools, WrittenCall
from wander.reasoning import read_channels, read_reasoning
from wander.types import CallAttempt, Message


@dataclass(frozen=True)
class CallFormat:
    """A format for writing calls.

    A model's format is the one that can parse the calls that its chat template writes. If the template does
    not write calls, it is the format whose marks occur in the template or among the tokenizer's special
    tokens.
    """

    name: str
    marks: tuple[str, ...]
    """Texts in chat templates or special tokens of models with this format."""
    opens: tuple[str, ...]
    """Texts that start a call, and so end reasoning that was not closed; empty for bare JSON."""
    scan: Scan
    write: Callable[[str, dict[str, Any]], str]
    """Function that writes a call, for templates that do not show calls."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_tags(name: str, arguments: dict[str, Any]) -> str:
    values = (value if isinstance(value, str) else _json(value) for value in arguments.values())
    inside = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in zip(arguments, values, strict=True)
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _write_python(name: str, arguments: dict[str, Any]) -> str:
    inside = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{LFM2_OPENS}[{name}({inside})]{LFM2_ENDS}"


def _write_hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{_json({'name': name, 'arguments': arguments})}\n</tool_call>"


FORMATS = (
    CallFormat("qwen3_coder", ("<function=",), ("<tool_call>", "<function="), scan_tags, _write_tags),
    CallFormat(
        "hermes", ("<tool_call>",), ("<tool_call>",), in_blocks("<tool_call>", "</tool_call>"), _write_hermes
    ),
    CallFormat("lfm2", (LFM2_OPENS,), (LFM2_OPENS,), scan_python, _write_python),
    CallFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        scan_mistral,
        lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}",
    ),
    # Used by Llama 3, and by templates that ask for a JSON object.
    CallFormat(
        "json",
        ("<|python_tag|>", '{"name":'),
        ("<|python_tag|>",),
        scan_bare,
        lambda name, arguments: _json({"name": name, "parameters": arguments}),
    ),
)
"""Formats in order of preference. Qwen2.5, Qwen3 and SmolLM3 use `hermes`. The last format also parses calls
of other formats, so it is tried last."""


THINKING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
)
"""Pairs of markers around reasoning."""
_CHANNEL = "<|channel|>"

PREAMBLE = (
    "{%- set turns = namespace(said=[]) %}"
    "{%- if tools %}"
    "{%- set turns.told = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{%- set turns.told = turns.told + 'You can call these functions:\n<tools>\n' %}"
    "{%- for tool in tools %}{%- set turns.told = turns.told + (tool | tojson) + '\n' %}{%- endfor %}"
    "{%- set turns.told = turns.told + '</tools>\nTo call one, write\n<tool_call>\n"
    '{"name": NAME, "arguments": {...}}\n</tool_call>\' %}'
    "{%- set turns.said = [{'role': 'system', 'content': turns.told}] %}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if tools and loop.first and message.role == 'system' %}"
    "{%- elif message.role == 'tool' %}"
    "{%- set text = '<tool_response>\n' + message.content + '\n</tool_response>' %}"
    "{%- if turns.said and turns.said[-1].results %}"
    "{%- set text = turns.said[-1].content + '\n' + text %}"
    "{%- set turns.said = turns.said[:-1] %}{%- endif %}"
    "{%- set turns.said = turns.said + [{'role': 'user', 'content': text, 'results': true}] %}"
    "{%- elif message.tool_calls %}"
    "{%- set turns.text = message.content or '' %}"
    "{%- for call in message.tool_calls %}"
    "{%- set turns.text = turns.text + ('\n' if turns.text else '') + '<tool_call>\n{\"name\": \"'"
    ' + call.function.name + \'", "arguments": \' + (call.function.arguments | tojson)'
    " + '}\n</tool_call>' %}"
    "{%- endfor %}"
    "{%- set turns.said = turns.said + [{'role': 'assistant', 'content': turns.text}] %}"
    "{%- else %}{%- set turns.said = turns.said + [message] %}{%- endif %}"
    "{%- endfor %}"
    "{%- set messages = turns.said %}"
)
"""Start of a chat template that adds tools: it converts them to messages of other roles."""

_PROBE = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Look somewhere.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer", "description": "where"}}},
    },
}
_ARGUMENTS = {"at": 7}

Render = Callable[[list[Message], "Tools | None", bool], str]
"""Function that renders messages with tools. The flag chooses whether to add the start of an answer.

Raises `InvalidResponse`.
"""
Span = Callable[[int, int], "tuple[int, int] | None"]
"""Function that returns the range of tokens for a range of a turn's text."""


@dataclass(frozen=True)
class ReadTurn:
    """A turn, separated into its parts."""

    text: str
    content: str
    reasoning: str = ""
    calls: tuple[WrittenCall, ...] = ()

    def message(self, turn: int, span: Span = lambda start, end: None) -> Message:
        """Return the assistant's message.

        Every attempted call is included in `tool_calls`, because the environment answers each of them. A call
        that could not be parsed has its raw text as arguments. Ids have nine letters and digits, as Mistral's
        templates require.
        """
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if not self.calls:
            return message
        message["tool_calls"], message["attempts"] = [], []
        for number, call in enumerate(self.calls):
            raw = self.text[call.start : call.end]
            arguments = json.dumps(call.arguments, ensure_ascii=False) if call.is_valid else raw
            message["tool_calls"].append(
                {
                    "id": f"c{1000 * turn + number:08d}",
                    "type": "function",
                    "function": {"name": call.name or "", "arguments": arguments},
                }
            )
            message["attempts"].append(
                CallAttempt(
                    raw=raw,
                    name=call.name,
                    arguments=call.arguments,
                    span=span(call.start, call.end),
                    problem=call.problem,
                ).model_dump(mode="json")
            )
        return message


@dataclass(frozen=True)
class TurnReader:
    """Parses the turns of a model, for every engine."""

    calls: CallFormat | None
    takes_tools: bool
    """Whether the chat template shows the available tools to the model."""
    shows_calls: bool
    """Whether the template writes calls. If not, `write` puts them into the content."""
    thinking: tuple[str, str] | None
    """Markers around reasoning, if the template supports it."""
    separates: bool
    """Whether reasoning is a separate field of the message. If not, it stays in the content."""
    special: tuple[str, ...] = ()
    """Special tokens, which are removed from the content."""
    channels: bool = False
    """Whether the model uses gpt-oss's channels for reasoning."""

    @property
    def is_plain(self) -> bool:
        """Whether a turn without tool calls consists only of its text."""
        return self.thinking is None and not self.channels

    def require_tools(self, *, read: bool = True) -> None:
        """Raise `InvalidResponse` if the template does not show tools, or the model's calls cannot be parsed.

        `read=False` checks only the template, which is enough to learn from calls of another model.
        """
        if self.takes_tools and (self.calls is not None or not read):
            return
        fault = "writes calls in an unknown format" if self.takes_tools else "does not support tools"
        raise InvalidResponse(
            f"the environment offers tools, but the model's chat template {fault}",
            hint="add tools to it: `wander model tools MODEL --out models/with-tools`",
        )

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends with the start of the model's reasoning."""
        return self.thinking is not None and prompt.rstrip().endswith(self.thinking[0])

    def read(self, text: str, *, opened: bool = False, tools: Tools | None = None) -> ReadTurn:
        """Return the parts of a turn; `opened` means that the prompt already opened its reasoning.

        Calls are recognized only if tools are offered, and never inside reasoning.
        """
        if self.channels and (channels := read_channels(text)):
            thoughts = [content.strip() for name, content in channels if name != "final"]
            return ReadTurn(text, read_reasoning(text).answer, "\n".join(thoughts))
        thought, after = self._reasoning(text, opened)
        calls: list[WrittenCall] = []
        if tools and self.calls is not None:
            calls = [
                replace(call, start=call.start + after, end=call.end + after)
                for call in self.calls.scan(text[after:], tools)
            ]
        kept = after if self.separates else 0
        ends = [kept, *(call.end for call in calls)]
        starts = [*(call.start for call in calls), len(text)]
        pieces = [text[a:b] for a, b in zip(ends, starts, strict=True)]
        thoughts = [thought] if self.separates and thought.strip() else []
        if self.separates and self.thinking:
            opening, closing = map(re.escape, self.thinking)
            again = re.compile(f"{opening}(.*?){closing}", re.DOTALL)
            thoughts += [inner for piece in pieces for inner in again.findall(piece) if inner.strip()]
            pieces = [again.sub("", piece) for piece in pieces]
        for token in self.special:
            pieces = [piece.replace(token, "") for piece in pieces]
        content = pieces[0]
        if calls or kept:
            content = "\n".join(piece.strip() for piece in pieces if piece.strip())
        return ReadTurn(text, content, "\n".join(thought.strip() for thought in thoughts), tuple(calls))

    def _reasoning(self, text: str, opened: bool) -> tuple[str, int]:
        """Return the reasoning at the start of a turn, and the position after it."""
        if self.thinking is None:
            return "", 0
        opening, closing = self.thinking
        start = len(text) - len(text.lstrip())
        if text.startswith(opening, start):
            start += len(opening)
        elif not opened:
            return "", 0
        end = text.find(closing, start)
        if end >= 0:
            return text[start:end], end + len(closing)
        # The reasoning is not closed, but a call ends it.
        marks = self.calls.opens if self.calls else ()
        end = min((at for mark in marks if (at := text.find(mark, start)) >= 0), default=len(text))
        return text[start:end], end

    def write(self, message: Message) -> str:
        """Return an assistant's content with the reasoning and the calls that its template would not show."""
        text = str(message.get("content") or "")
        if message.get("reasoning_content") and self.thinking and not self.separates:
            opening, closing = self.thinking
            text = f"{opening}\n{message['reasoning_content']}\n{closing}\n\n{text}"
        if self.calls is not None:
            written = [self.calls.write(*call) for call in calls_in(message)]
            text = "\n".join([*([text] if text else []), *written])
        return text


def calls_in(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Return name and arguments of a message's calls; arguments that are not a JSON object are empty."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = {}
        calls.append((str(function.get("name")), arguments if isinstance(arguments, dict) else {}))
    return calls


def recognize(render: Render, template: str, special: Collection[str]) -> TurnReader:
    """Detect a model's turn format from the way its chat template renders a tool, a call and reasoning."""
    asked: list[Message] = [{"role": "user", "content": "Hello"}]
    function = {"name": "probe_tool", "arguments": _ARGUMENTS}
    call: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c00000000", "type": "function", "function": function}],
    }
    prompt = _tried(render, asked, [_PROBE], True)
    shown = _tried(render, [*asked, call], [_PROBE], False)
    plain = template.replace("\\", "")
    written = [form for form in FORMATS if _reads_back(form, shown)]
    marked = [form for form in FORMATS if any(mark in plain or mark in special for mark in form.marks)]
    thinking = next((pair for pair in THINKING if pair[1] in plain or pair[1] in special), None)
    reader = TurnReader(
        calls=next(iter([*written, *marked]), None),
        takes_tools="probe_tool" in prompt,
        shows_calls=bool(written),
        thinking=thinking,
        separates=thinking is not None and "reasoning_content" in plain,
        special=tuple(sorted(set(special) - set(thinking or ()), key=len, reverse=True)),
        channels=_CHANNEL in plain or _CHANNEL in special,
    )
    opened = reader.opens_reasoning(_tried(render, asked, None, True))
    return replace(reader, separates=reader.separates or opened)


def _tried(render: Render, messages: list[Message], tools: Tools | None, prompt: bool) -> str:
    """Return the rendered messages; empty if the template rejects them."""
    try:
        return render(messages, tools, prompt)
    except InvalidResponse:
        return ""


def _reads_back(form: CallFormat, text: str) -> bool:
    return any(
        call.name == "probe_tool" and call.arguments == _ARGUMENTS for call in form.scan(text, [_PROBE])
    )


def token_span(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> Span:
    """Return a function that finds the tokens of a part of the text of `ids` by decoding prefixes."""

    def covering(length: int) -> int:
        """Return the token that extends the text to this length."""
        low, high = 0, len(ids) - 1
        while low < high:
            middle = (low + high) // 2
            if len(decode(ids[: middle + 1])) < length:
                low = middle + 1
            else:
                high = middle
        return low

    def span(start: int, end: int) -> tuple[int, int]:
        return covering(start + 1), covering(end) + 1

    return span
