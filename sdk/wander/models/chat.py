"""Conversations as tokens: the model's chat template, applied without ever re-tokenizing a completion.

Training must score exactly the ids that were sampled. A conversation therefore grows by appending: first the
sampled ids, then the ids of the text that the template adds after them (end of turn, environment messages,
the start of the next assistant turn). Some templates rewrite earlier messages, for example by dropping
earlier reasoning. In that case, the conversation starts again from the template's text, and training learns
it as several samples.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from functools import cached_property, lru_cache
from typing import Any

from wander.errors import ConfigError, InvalidResponse, require_extra

with require_extra("transformers", needed_for="a model in this process"):
    from jinja2 import Environment, TemplateError, TemplateSyntaxError, meta, nodes

from wander.clients.dialect import MERGED_SYSTEM, without_system_role
from wander.models.calls.turns import TurnReader, calls_in, recognize, token_span
from wander.types import Message

TEMPLATE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""Chat template for models without one."""

_REMEMBERED = 1024
"""Maximum number of cached texts with their ids, and their maximum length. The cache helps because games
repeat their replies."""
_GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")
"""Tag around the assistant's text that transformers adds to Jinja. It produces no output."""
_MARK = "\0content\0"
"""Placeholder for a message's content that no template contains."""
_UNCLOSED = "the model's chat template does not close an assistant turn"


_CLOCK = "strftime_now"
"""Function that templates call for the current date (Llama 3.2, SmolLM3, Granite, gpt-oss)."""
_CLOCK_CALL = re.compile(rf"{_CLOCK}\(\s*(?P<quote>['\"])(?P<form>.*?)(?P=quote)\s*\)")
_DEFINED = re.compile(rf"{_CLOCK}\s+is\s+(?:not\s+)?defined")
UNPINNED = "warning: the template shows the date of the clock in a form that cannot be pinned"
"""Text in a manifest in place of a date."""
_SYSTEM_PROBE = "probe-of-the-system-role"


@dataclass(frozen=True)
class ChatOptions:
    """Options for formatting conversations, in addition to the chat template."""

    date: date | None = None
    """Date that the template shows; None means the day when the model is loaded."""
    merge_system: bool = True
    """Whether to merge the system prompt into the first user message if the template has no system role."""


class RewrittenHistory(InvalidResponse):
    """Raised if the chat template or the environment changed earlier messages after they were sampled."""


@dataclass(slots=True)
class Conversation:
    """The exact token ids of a conversation, and the author of each."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """Mask of the ids: 1 for a token of the assistant, 0 for a token of the prompt or the environment."""
    text: str = ""
    """Rendered text up to the start of the next completion."""
    messages: int = 0
    """Number of messages that the text covers."""
    open_at: int = 0
    """Number of ids that the text covers, which is the start of the next completion."""
    said: Message | None = None
    """Message that the environment received for the last sampled turn."""
    left_out: tuple[int, int] | None = None
    """Range of messages that the model is not shown, as start and end (`wander.models.compaction`)."""
    opening: int = 0
    """Number of messages before the first turn, if turns may be left out."""


class ChatFormat:
    """Renders messages with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], options: ChatOptions | None = None) -> None:
        """Create the format; raises `ConfigError` for a template that cannot be parsed."""
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        self.original: str = template or PLAIN_TEMPLATE
        """Chat template before its date was pinned."""
        options = options or ChatOptions()
        self.date = options.date or datetime.now().date()
        self.template = pin_date(self.original, self.date)
        self._merges_system = options.merge_system
        self._ids_of = lru_cache(maxsize=_REMEMBERED)(self._tokenise)
        self._piece_of = lru_cache(maxsize=_REMEMBERED)(self._render_piece)
        self._around = lru_cache(maxsize=_REMEMBERED)(self._find_around)
        self._opened: tuple[list[Message], Conversation] | None = None
        """Last opened conversation if it is plain text, because the rollouts of a group have the same
        opening."""
        with contextlib.suppress(InvalidResponse):  # the template may be valid but reject this message
            self._render_piece("user", "?")

    @property
    def digest(self) -> str:
        """SHA-256 of the chat template before its date was pinned."""
        return hashlib.sha256(self.original.encode()).hexdigest()

    @property
    def shows_date(self) -> bool:
        """Whether the template shows a date."""
        return _CLOCK in self.original

    @property
    def pins_date(self) -> bool:
        """Whether the pinned template never reads the clock; a date format that is computed cannot be
        pinned."""
        return _CLOCK not in _DEFINED.sub("", self.template)

    @cached_property
    def shows_system(self) -> bool:
        """Whether the template shows the content of a system message."""
        asked = [{"role": "system", "content": _SYSTEM_PROBE}, {"role": "user", "content": "?"}]
        try:
            return _SYSTEM_PROBE in self._apply(asked, None, True)
        except InvalidResponse:
            return False

    @property
    def merges_system(self) -> bool:
        """Whether to merge a system prompt into the first user message."""
        return self._merges_system and not self.shows_system

    def describe(self) -> dict[str, Any]:
        """Return the facts about the format that a manifest records."""
        described: dict[str, Any] = {"chat_template_sha256": self.digest}
        if self.shows_date:
            described["template_date"] = self.date.isoformat() if self.pins_date else UNPINNED
        if self.merges_system:
            described["requests"] = [MERGED_SYSTEM]
        return described

    def render(
        self, messages: list[Message], *, prompt: bool = True, tools: list[dict[str, Any]] | None = None
    ) -> str:
        """Return the text of the messages, by default up to the start of the assistant's next turn."""
        if any(message["role"] in ("system", "developer") for message in messages) and self.merges_system:
            messages = without_system_role(messages)
        if not tools and self._joins and all(map(_is_plain, messages)):
            pieces = [self._piece_of(message["role"], message["content"]) for message in messages]
            return "".join([*pieces, self._opening] if prompt else pieces)
        try:
            return self._apply(self._plain(messages, as_text=False), tools, prompt)
        except InvalidResponse:
            # Some templates accept only a single tool call per turn, or none. They get the calls as text.
            if not any(message.get("tool_calls") for message in messages):
                raise
            return self._apply(self._plain(messages, as_text=True), tools, prompt)

    def _plain(self, messages: list[Message], *, as_text: bool) -> list[Message]:
        """Return messages in the form that templates expect, with the arguments of calls as objects."""
        plain = []
        for message in messages:
            kept = {key: message[key] for key in TEMPLATE_KEYS if message.get(key) is not None}
            kept["content"] = content_text(kept.get("content", ""))
            calls, reasoning = kept.get("tool_calls"), kept.get("reasoning_content")
            if reasoning and not self.turns.separates:
                kept["content"] = self.turns.write({**kept, "tool_calls": None})
            if calls and (as_text or not self.turns.shows_calls):
                kept["content"] = self.turns.write({**kept, "reasoning_content": None})
                del kept["tool_calls"]
            elif calls:
                kept["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": arguments}}
                    for call, (_, arguments) in zip(calls, calls_in(kept), strict=True)
                ]
            plain.append(kept)
        return plain

    @cached_property
    def _joins(self) -> bool:
        """Whether the text of a conversation is the concatenation of its messages' texts and the opening.

        This avoids rendering the conversation at every turn, which took half of the host's time in rollouts
        of games.
        """
        probe: Message = {"role": "user", "content": "?"}
        # A template that only loops over messages renders two equal messages as twice the text of one.
        return renders_each_alone(self.template) and self._apply([probe, probe], None, False) == 2 * (
            self._render_piece("user", "?")
        )

    @cached_property
    def _opening(self) -> str:
        """Text after the messages if `_joins` is true: the start of the assistant's turn."""
        probe: Message = {"role": "user", "content": "?"}
        return self._apply([probe], None, True).removeprefix(self._render_piece("user", "?"))

    def _render_piece(self, role: str, content: str) -> str:
        around = self._around(role) if self._copies else ()
        return content.join(around) or self._apply([{"role": role, "content": content}], None, False)

    @cached_property
    def _copies(self) -> bool:
        return copies_content(self.template)

    def _find_around(self, role: str) -> tuple[str, ...]:
        """Return the text before and after a message's content; empty if the content is not shown exactly
        once."""
        parts = self._apply([{"role": role, "content": _MARK}], None, False).split(_MARK)
        return tuple(parts) if len(parts) == 2 else ()

    def _apply(self, messages: list[Message], tools: Any, prompt: bool) -> str:
        more = {"xml_tools": tools} if tools and "xml_tools" in self.template else {}  # SmolLM3's name
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=prompt,
                chat_template=self.template,
                **more,
            )
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template of `{self.tokenizer.name_or_path}` cannot be parsed: "
                f"{error.message}, line {error.lineno}",
                hint="fix `chat_template.jinja` in the model's folder, or `chat_template` in its "
                "tokenizer_config.json",
            ) from error
        except (TemplateError, TypeError) as error:
            raise InvalidResponse(f"the model's chat template rejects these messages: {error}") from error
        return text

    @cached_property
    def turns(self) -> TurnReader:
        """Reader of the model's turns: tool calls and reasoning."""
        added = self.tokenizer.added_tokens_decoder.values()
        special = {*self.tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return recognize(self._apply, self.template, special)

    def read(
        self, prompt_ids: list[int], ids: list[int], stop: tuple[str, ...], tools: Any, turn: int
    ) -> Message:
        """Return the assistant's message for sampled ids; `turn` is the number of the turn in its rollout."""
        if not tools and self.turns.is_plain:
            return {"role": "assistant", "content": _cut(self.decode(ids), stop)}
        spoken = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        opened = self.turns.opens_reasoning(self._decode_all(prompt_ids[-8:]))
        parts = self.turns.read(_cut(self._decode_all(spoken), stop), opened=opened, tools=tools)
        return parts.message(turn, token_span(self._decode_all, spoken))

    def read_text(self, text: str, messages: list[Message], tools: Any, turn: int) -> Message:
        """Return the assistant's message for a text that a server sampled after these messages."""
        if not tools and self.turns.is_plain:
            for token in self.turns.special:
                text = text.replace(token, "")
            return {"role": "assistant", "content": text}
        opened = self.turns.thinking is not None and self.turns.opens_reasoning(
            self.render(messages, tools=tools)
        )
        return self.turns.read(text, opened=opened, tools=tools).message(turn)

    def check_tools(self) -> None:
        """Raise `InvalidResponse` if the chat template does not show tools, or calls cannot be parsed."""
        self.turns.require_tools()

    def _decode_all(self, ids: Any) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that already contains its special tokens."""
        return list(self._ids_of(text) if len(text) <= _REMEMBERED else self._tokenise(text))

    def _tokenise(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        """Return the text of sampled ids, without end-of-turn and other special tokens."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def start(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Conversation:
        """Open a conversation that ends at the start of the first completion."""
        if tools is None and self._opened is not None and self._opened[0] == messages:
            cached = self._opened[1]
            return replace(cached, ids=list(cached.ids), mask=list(cached.mask))
        text = self.render(messages, tools=tools)
        ids = self.encode(text)
        conversation = Conversation(
            ids=ids, mask=[0] * len(ids), text=text, messages=len(messages), open_at=len(ids)
        )
        if tools is None and all(isinstance(part, str) for message in messages for part in message.values()):
            kept = replace(conversation, ids=list(conversation.ids), mask=list(conversation.mask))
            self._opened = [dict(message) for message in messages], kept
        return conversation

    def append_completion(self, conversation: Conversation, ids: list[int]) -> None:
        """Add the sampled ids of a turn."""
        conversation.ids += ids
        conversation.mask += [1] * len(ids)

    def _append_learned(self, conversation: Conversation, ids: list[int], message: Message) -> None:
        """Add ids of a finished turn; a call that could not be parsed becomes context and is not learned."""
        self.append_completion(conversation, ids)
        if unreadable(message) and ids:
            conversation.mask[-len(ids) :] = [0] * len(ids)

    def append_messages(
        self, conversation: Conversation, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> None:
        """Add the messages after a completion; `messages` is the whole conversation, including the
        completion.

        Raises `RewrittenHistory` without changing the conversation.
        """
        whole = self.render(messages, tools=tools)
        after = self._after_completion(conversation, messages[conversation.messages], whole, tools)
        ids = self.encode(after)
        ended = bool(conversation.mask and conversation.mask[-1] and conversation.ids[-1] in self.end_ids)
        if ended and ids and ids[0] in self.end_ids:
            ids = ids[1:]  # the end of the turn was already sampled
        conversation.ids += ids
        conversation.mask += [0] * len(ids)
        conversation.text, conversation.messages = whole, len(messages)
        conversation.open_at = len(conversation.ids)

    def continue_conversation(
        self,
        conversation: Conversation | None,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
    ) -> tuple[Conversation, bool]:
        """Return a rollout's conversation, extended by its new messages, and whether it was started again.

        A conversation starts again from the template's text if its history was rewritten, if the environment
        removed messages, or if the request repeats the last one.
        """
        if conversation is not None and len(messages) > conversation.messages:
            with contextlib.suppress(RewrittenHistory):
                self.append_messages(conversation, messages, tools)
                return conversation, False
        return self.start(messages, tools), conversation is not None

    def transcripts(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> list[Conversation]:
        """Return a finished conversation as the samples to learn from.

        Normally this is a single sample, as returned by `transcript`. If the template rewrites history, it is
        a sample for each assistant turn, with the history that the model sees at that turn.
        """
        if tools:
            self.turns.require_tools(read=False)
        try:
            return [self.transcript(messages, tools)]
        except RewrittenHistory:
            return [
                self._last_turn(messages[: place + 1], tools)
                for place, message in enumerate(messages)
                if message["role"] == "assistant" and place > 0
            ]

    def spoken(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
        """Return the text of the last message, an assistant's, including its tool calls and reasoning.

        It is the text that the template renders for the message, and so the text that the model would sample.
        """
        message = messages[-1]
        if not message.get("tool_calls") and not message.get("reasoning_content"):
            return content_text(message.get("content", ""))
        start = self.render(messages[:-1], tools=tools)
        whole = self.render(messages, prompt=False, tools=tools)
        turn = self._turn_of(whole.removeprefix(start))
        if turn is None or not whole.startswith(start):
            raise InvalidResponse(
                "the model's chat template does not append an assistant turn with calls of tools"
            )
        return turn

    def _last_turn(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> Conversation:
        """Return a sample that learns only the last message, which is the assistant's."""
        conversation = self.start(messages[:-1], tools)
        probe = "The answer."
        shown = self.render(
            [*messages[:-1], {"role": "assistant", "content": probe}], prompt=False, tools=tools
        )
        ending = self.encode(shown.rpartition(probe)[2])
        if not ending or ending[0] not in self.end_ids:
            raise InvalidResponse(_UNCLOSED)
        content = self.encode(self.spoken(messages, tools))
        self._append_learned(conversation, [*content, ending[0]], messages[-1])
        return conversation

    def transcript(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Conversation:
        """Return a finished conversation exactly as turn-by-turn sampling would have built it.

        Each assistant message is tokenized separately, as it follows the start of its turn. The last message
        must be an assistant's.
        """
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        places = [place for place in places if place > 0]
        if not places:
            raise InvalidResponse("a transcript needs at least one assistant message to learn from")
        conversation = self.start(messages[: places[0]], tools)
        for place, following in zip(places, [*places[1:], None], strict=True):
            spoken = self.encode(self.spoken(messages[: place + 1], tools))
            self._append_learned(conversation, spoken, messages[place])
            if following is None:
                whole = self.render(messages[: place + 1], prompt=False, tools=tools)
                ending = self.encode(self._after_completion(conversation, messages[place], whole, tools))
                if not ending or ending[0] not in self.end_ids:
                    raise InvalidResponse(_UNCLOSED)
                self._append_learned(conversation, ending[:1], messages[place])
            else:
                before = len(conversation.ids)
                self.append_messages(conversation, messages[:following], tools)
                if conversation.ids[before : before + 1] and conversation.ids[before] in self.end_ids:
                    conversation.mask[before] = int(not unreadable(messages[place]))
        return conversation

    def _after_completion(
        self, conversation: Conversation, assistant: Message, whole: str, tools: list[dict[str, Any]] | None
    ) -> str:
        """Return the text in `whole` after the assistant's turn, which must match the message."""
        known = conversation.said
        kept = known is None or all(
            (known.get(key) or "") == (assistant.get(key) or "") for key in ("content", "reasoning_content")
        )
        if kept and whole.startswith(conversation.text):
            rest = whole[len(conversation.text) :]
            if assistant.get("tool_calls") or assistant.get("reasoning_content"):
                turn = self._turn_of(rest)
                if turn is not None and self._shows(turn, conversation.text, assistant, tools):
                    return rest[len(turn) :]
            else:
                content = content_text(assistant.get("content", ""))
                for form in (content, content.strip()):
                    if rest.startswith(form):
                        return rest[len(form) :]
        raise RewrittenHistory(
            "the environment or the model's chat template rewrites earlier messages: "
            "a conversation cannot grow token by token",
            hint="use a model whose template does not change the history",
        )

    def _turn_of(self, rest: str) -> str | None:
        """Return the assistant's turn at the start of a rendered text; None if it does not end."""
        ends = [self.tokenizer.convert_ids_to_tokens(token) for token in self.end_ids]
        places = [place for end in ends if (place := rest.find(end)) >= 0]
        return rest[: min(places)] if places else None

    def _shows(self, turn: str, before: str, assistant: Message, tools: list[dict[str, Any]] | None) -> bool:
        """Return whether a rendered turn contains the words, the reasoning and the calls of a message.

        Whitespace and the layout of JSON may differ, because the sampled tokens are already in the
        conversation.
        """
        known = (tools or [{"function": {}}]) if assistant.get("tool_calls") else None
        opened = self.turns.opens_reasoning(before)
        shown = self.turns.read(turn, opened=opened, tools=known).message(0)
        meant = {**assistant, "content": content_text(assistant.get("content", ""))}
        if not self.turns.separates and meant.get("reasoning_content"):
            meant["content"] = self.turns.write({**meant, "tool_calls": None})
            del meant["reasoning_content"]
        return calls_in(shown) == calls_in(meant) and all(
            str(shown.get(key) or "").split() == str(meant.get(key) or "").split()
            for key in ("content", "reasoning_content")
        )


def pin_date(template: str, day: date) -> str:
    """Return the chat template with this date in place of calls of the clock."""
    at = datetime.combine(day, time())
    return _CLOCK_CALL.sub(lambda call: json.dumps(at.strftime(call["form"])), template)


def renders_each_alone(template: str) -> bool:
    """Return whether a chat template is a single loop over the messages that reads only the current message.

    If so, the text of a message does not depend on the other messages.
    """
    if (tree := _parse(template)) is None:
        return False
    loops = [
        node
        for node in tree.body
        if isinstance(node, nodes.For) and isinstance(node.iter, nodes.Name) and node.iter.name == "messages"
    ]
    if len(loops) != 1 or loops[0].test or loops[0].recursive or not isinstance(loops[0].target, nodes.Name):
        return False
    around = nodes.Template([*(node for node in tree.body if node is not loops[0]), *loops[0].else_])
    around.environment = tree.environment
    body = nodes.Template(loops[0].body)
    body.environment = tree.environment
    return meta.find_undeclared_variables(body) <= {loops[0].target.name, "eos_token", "bos_token"} and (
        "messages" not in meta.find_undeclared_variables(around)
    )


def copies_content(template: str) -> bool:
    """Return whether a chat template uses a message's content only by printing it unchanged."""
    tree = _parse(template)
    loops = list(tree.find_all(nodes.For)) if tree is not None else []
    return bool(loops) and all(
        _copies_in(part, loop.target.name, shown=True)
        for loop in loops
        if isinstance(loop.iter, nodes.Name) and loop.iter.name == "messages"
        for part in loop.body
        if isinstance(loop.target, nodes.Name)
    )


def _copies_in(node: nodes.Node, message: str, *, shown: bool) -> bool:
    """Return whether a part of a template uses the content of `message` only for output."""
    if isinstance(node, nodes.Getitem | nodes.Getattr) and isinstance(node.node, nodes.Name):
        key = getattr(node, "attr", None) or getattr(getattr(node, "arg", None), "value", None)
        if node.node.name == message and key is not None:
            return key != "content" or shown
    if isinstance(node, nodes.Name):
        return node.name != message
    passes = isinstance(node, nodes.Output | nodes.Concat | nodes.Add | nodes.If)
    return all(
        _copies_in(part, message, shown=shown and passes and field != "test")
        for field, held in node.iter_fields()
        for part in (held if isinstance(held, list) else [held])
        if isinstance(part, nodes.Node)
    )


@lru_cache(maxsize=8)  # each format of a model asks for it three times
def _parse(template: str) -> nodes.Template | None:
    """Return the syntax tree of a chat template, or None if it cannot be parsed."""
    try:
        return Environment(autoescape=False).parse(_GENERATION.sub("", template))  # noqa: S701 - only read
    except TemplateError:
        return None


def _is_plain(message: Message) -> bool:
    """Return whether a message has only a role and a text, as far as templates are concerned."""
    return isinstance(message.get("content"), str) and not any(map(message.get, TEMPLATE_KEYS[2:]))


def unreadable(message: Message) -> bool:
    """Return whether a message contains a call that could not be parsed."""
    return any(attempt.get("problem") for attempt in message.get("attempts") or ())


def _cut(text: str, stop: tuple[str, ...]) -> str:
    """Return the text before the first of the stop texts."""
    return text[: min((text.index(mark) for mark in stop if mark in text), default=len(text))]


def content_text(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of content parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = []
    for part in content:
        if part.get("type") != "text":
            raise InvalidResponse(f"this model supports only text, not content of type `{part.get('type')}`")
        parts.append(part["text"])
    return "".join(parts)
