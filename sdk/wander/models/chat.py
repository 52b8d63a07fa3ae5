"""Conversations as tokens: the model's chat template, applied without ever re-tokenising a completion.

Training must score the very ids that were sampled. So a conversation grows by appending: the sampled ids,
then the ids of only that text which the template puts after them (end of turn, environment messages, the
start of the next assistant turn). A template that rewrites what came before (some drop earlier reasoning) is
detected: the conversation then starts anew from what the template shows, and is learnt in several samples.
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
from wander.models.calls.turns import TurnReader, calls_in, recognise, token_span
from wander.types import Message

TEMPLATE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""For models that bring no chat template."""

_REMEMBERED = 1024
"""So many texts are kept with their ids, none longer than this: the replies of games come again and again."""
_GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")
"""The tag around what the assistant generates, which transformers adds to Jinja; it shows nothing."""
_MARK = "\0content\0"
"""Stands for a message's content; no template has it."""
_UNCLOSED = "the model's chat template does not close an assistant turn"


_CLOCK = "strftime_now"
"""The function by which templates write today's date (Llama 3.2, SmolLM3, Granite, gpt-oss)."""
_CLOCK_CALL = re.compile(rf"{_CLOCK}\(\s*(?P<quote>['\"])(?P<form>.*?)(?P=quote)\s*\)")
_DEFINED = re.compile(rf"{_CLOCK}\s+is\s+(?:not\s+)?defined")
UNPINNED = "warning: the template shows the date of the clock in a form that cannot be pinned"
"""What a manifest says in place of a date."""
_SYSTEM_PROBE = "probe-of-the-system-role"


@dataclass(frozen=True)
class ChatOptions:
    """How conversations are written beside what the chat template says."""

    date: date | None = None
    """The date that the template shows; None means the day on which the model is loaded."""
    merge_system: bool = True
    """Put the system prompt into the first user message if the template shows no system message."""


class RewrittenHistory(InvalidResponse):
    """The chat template or the environment shows earlier messages differently than when they were sampled."""


@dataclass(slots=True)
class Conversation:
    """The exact ids of one conversation and who produced each."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for a token of the assistant, 0 for one of the prompt or the environment."""
    text: str = ""
    """What the template rendered up to where the next completion starts."""
    messages: int = 0
    """How many messages the text covers."""
    open_at: int = 0
    """How many ids the text covers: where the next completion starts."""
    said: Message | None = None
    """The message that the environment was given for what was sampled last."""
    left_out: tuple[int, int] | None = None
    """Which messages of the rollout the model is not shown (`wander.models.compaction`)."""
    opening: int = 0
    """How many messages come before the first turn, where turns may be left out."""


class ChatFormat:
    """Renders messages with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], options: ChatOptions | None = None) -> None:
        """Raises `ConfigError` for a template that cannot be parsed."""
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        self.original: str = template or PLAIN_TEMPLATE
        """The chat template with its calls of the clock."""
        options = options or ChatOptions()
        self.date = options.date or datetime.now().date()
        self.template = pin_date(self.original, self.date)
        self._merges_system = options.merge_system
        self._ids_of = lru_cache(maxsize=_REMEMBERED)(self._tokenise)
        self._piece_of = lru_cache(maxsize=_REMEMBERED)(self._render_piece)
        self._around = lru_cache(maxsize=_REMEMBERED)(self._find_around)
        self._opened: tuple[list[Message], Conversation] | None = None
        """The conversation opened last, where all of it is text: the rollouts of a group open alike."""
        with contextlib.suppress(InvalidResponse):  # it may not take this message, and parse
            self._render_piece("user", "?")

    @property
    def digest(self) -> str:
        """SHA-256 of the chat template, whatever the date."""
        return hashlib.sha256(self.original.encode()).hexdigest()

    @property
    def shows_date(self) -> bool:
        """Whether the template shows a date."""
        return _CLOCK in self.original

    @property
    def pins_date(self) -> bool:
        """Whether the template asks no clock once its date is pinned; a computed format cannot be."""
        return _CLOCK not in _DEFINED.sub("", self.template)

    @cached_property
    def shows_system(self) -> bool:
        """Whether the template shows what a system message says."""
        asked = [{"role": "system", "content": _SYSTEM_PROBE}, {"role": "user", "content": "?"}]
        try:
            return _SYSTEM_PROBE in self._apply(asked, None, True)
        except InvalidResponse:
            return False

    @property
    def merges_system(self) -> bool:
        """Whether a system prompt becomes part of the first user message."""
        return self._merges_system and not self.shows_system

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records about how conversations are written."""
        described: dict[str, Any] = {"chat_template_sha256": self.digest}
        if self.shows_date:
            described["template_date"] = self.date.isoformat() if self.pins_date else UNPINNED
        if self.merges_system:
            described["requests"] = [MERGED_SYSTEM]
        return described

    def render(
        self, messages: list[Message], *, prompt: bool = True, tools: list[dict[str, Any]] | None = None
    ) -> str:
        """Return the text of the messages, by default up to where the assistant's next turn starts."""
        if any(message["role"] in ("system", "developer") for message in messages) and self.merges_system:
            messages = without_system_role(messages)
        if not tools and self._joins and all(map(_is_plain, messages)):
            pieces = [self._piece_of(message["role"], message["content"]) for message in messages]
            return "".join([*pieces, self._opening] if prompt else pieces)
        try:
            return self._apply(self._plain(messages, as_text=False), tools, prompt)
        except InvalidResponse:
            # Some templates take a single call a turn, or none: then their text is what they take.
            if not any(message.get("tool_calls") for message in messages):
                raise
            return self._apply(self._plain(messages, as_text=True), tools, prompt)

    def _plain(self, messages: list[Message], *, as_text: bool) -> list[Message]:
        """Return messages as templates take them, calls with their arguments as objects."""
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
        """True when a conversation's text is that of its messages, one after the other, and the opening.

        Rendering it anew at every turn was half of what the host does in rollouts of games.
        """
        probe: Message = {"role": "user", "content": "?"}
        # A template that only loops over messages writes two as it writes one, twice.
        return renders_each_alone(self.template) and self._apply([probe, probe], None, False) == 2 * (
            self._render_piece("user", "?")
        )

    @cached_property
    def _opening(self) -> str:
        """What follows the messages where `_joins` holds: the start of the assistant's turn."""
        probe: Message = {"role": "user", "content": "?"}
        return self._apply([probe], None, True).removeprefix(self._render_piece("user", "?"))

    def _render_piece(self, role: str, content: str) -> str:
        around = self._around(role) if self._copies else ()
        return content.join(around) or self._apply([{"role": role, "content": content}], None, False)

    @cached_property
    def _copies(self) -> bool:
        return copies_content(self.template)

    def _find_around(self, role: str) -> tuple[str, ...]:
        """Return what stands before and after such a message's content; nothing where it is not shown."""
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
                hint="mend `chat_template.jinja` in the model's folder, or `chat_template` in its "
                "tokenizer_config.json",
            ) from error
        except (TemplateError, TypeError) as error:
            raise InvalidResponse(f"the model's chat template refuses these messages: {error}") from error
        return text

    @cached_property
    def turns(self) -> TurnReader:
        """How the model writes its turns: calls of tools, reasoning."""
        added = self.tokenizer.added_tokens_decoder.values()
        special = {*self.tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return recognise(self._apply, self.template, special)

    def read(
        self, prompt_ids: list[int], ids: list[int], stop: tuple[str, ...], tools: Any, turn: int
    ) -> Message:
        """Return the assistant's message that sampled ids are, as turn number `turn` of its rollout."""
        if not tools and self.turns.is_plain:
            return {"role": "assistant", "content": _cut(self.decode(ids), stop)}
        spoken = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        opened = self.turns.opens_reasoning(self._decode_all(prompt_ids[-8:]))
        parts = self.turns.read(_cut(self._decode_all(spoken), stop), opened=opened, tools=tools)
        return parts.message(turn, token_span(self._decode_all, spoken))

    def read_text(self, text: str, messages: list[Message], tools: Any, turn: int) -> Message:
        """Return the assistant's message that a text is, which a server sampled after these messages."""
        if not tools and self.turns.is_plain:
            for token in self.turns.special:
                text = text.replace(token, "")
            return {"role": "assistant", "content": text}
        opened = self.turns.thinking is not None and self.turns.opens_reasoning(
            self.render(messages, tools=tools)
        )
        return self.turns.read(text, opened=opened, tools=tools).message(turn)

    def check_tools(self) -> None:
        """Raise `InvalidResponse` where the model is not told of tools, or its calls cannot be read."""
        self.turns.require_tools()

    def _decode_all(self, ids: Any) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that already holds its special tokens."""
        return list(self._ids_of(text) if len(text) <= _REMEMBERED else self._tokenise(text))

    def _tokenise(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        """Return the text of sampled ids, without end-of-turn and other special tokens."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def start(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Conversation:
        """Open a conversation that ends where the first completion starts."""
        if tools is None and self._opened is not None and self._opened[0] == messages:
            alike = self._opened[1]
            return replace(alike, ids=list(alike.ids), mask=list(alike.mask))
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
        """Add the sampled ids of one turn."""
        conversation.ids += ids
        conversation.mask += [1] * len(ids)

    def _append_learnt(self, conversation: Conversation, ids: list[int], message: Message) -> None:
        """Add ids of a finished turn; a call that nobody could read is context, and not learnt."""
        self.append_completion(conversation, ids)
        if unreadable(message) and ids:
            conversation.mask[-len(ids) :] = [0] * len(ids)

    def append_messages(
        self, conversation: Conversation, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> None:
        """Add what follows a completion: `messages` is the whole conversation, the completion included.

        Raises `RewrittenHistory`, and then leaves the conversation as it was.
        """
        whole = self.render(messages, tools=tools)
        after = self._after_completion(conversation, messages[conversation.messages], whole, tools)
        ids = self.encode(after)
        ended = bool(conversation.mask and conversation.mask[-1] and conversation.ids[-1] in self.end_ids)
        if ended and ids and ids[0] in self.end_ids:
            ids = ids[1:]  # the end of the turn was sampled already
        conversation.ids += ids
        conversation.mask += [0] * len(ids)
        conversation.text, conversation.messages = whole, len(messages)
        conversation.open_at = len(conversation.ids)

    def go_on(
        self,
        conversation: Conversation | None,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
    ) -> tuple[Conversation, bool]:
        """Return a rollout's conversation brought up to its messages, and whether it is another than before.

        One whose history was rewritten, or whose messages the environment took back, starts anew from what
        the template shows; so does one that is asked again from the same place.
        """
        if conversation is not None and len(messages) > conversation.messages:
            with contextlib.suppress(RewrittenHistory):
                self.append_messages(conversation, messages, tools)
                return conversation, False
        return self.start(messages, tools), conversation is not None

    def transcripts(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> list[Conversation]:
        """Return a finished conversation as the samples that it is learnt in.

        That is one, as `transcript` returns it; where the template rewrites history, one for every
        assistant turn, each after the history as the model sees it then.
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
        """Return the text of the last message, an assistant's, with its calls of tools and its reasoning.

        That is the text which the template gives it, and so what the model samples.
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
        """Return the sample in which only the last message, the assistant's, is learnt."""
        conversation = self.start(messages[:-1], tools)
        probe = "The answer."
        shown = self.render(
            [*messages[:-1], {"role": "assistant", "content": probe}], prompt=False, tools=tools
        )
        ending = self.encode(shown.rpartition(probe)[2])
        if not ending or ending[0] not in self.end_ids:
            raise InvalidResponse(_UNCLOSED)
        content = self.encode(self.spoken(messages, tools))
        self._append_learnt(conversation, [*content, ending[0]], messages[-1])
        return conversation

    def transcript(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Conversation:
        """Return a finished conversation, the way sampling it turn by turn would have built it.

        Assistant messages are tokenised on their own, as they follow the start of their turn; the last
        message must be an assistant's.
        """
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        places = [place for place in places if place > 0]
        if not places:
            raise InvalidResponse("a transcript without an assistant message has nothing to learn from")
        conversation = self.start(messages[: places[0]], tools)
        for place, following in zip(places, [*places[1:], None], strict=True):
            spoken = self.encode(self.spoken(messages[: place + 1], tools))
            self._append_learnt(conversation, spoken, messages[place])
            if following is None:
                whole = self.render(messages[: place + 1], prompt=False, tools=tools)
                ending = self.encode(self._after_completion(conversation, messages[place], whole, tools))
                if not ending or ending[0] not in self.end_ids:
                    raise InvalidResponse(_UNCLOSED)
                self._append_learnt(conversation, ending[:1], messages[place])
            else:
                before = len(conversation.ids)
                self.append_messages(conversation, messages[:following], tools)
                if conversation.ids[before : before + 1] and conversation.ids[before] in self.end_ids:
                    conversation.mask[before] = int(not unreadable(messages[place]))
        return conversation

    def _after_completion(
        self, conversation: Conversation, assistant: Message, whole: str, tools: list[dict[str, Any]] | None
    ) -> str:
        """Return what `whole` has after the assistant's turn, which it must show as the message has it."""
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
            hint="use a model whose template keeps the history as it was",
        )

    def _turn_of(self, rest: str) -> str | None:
        """Return the assistant's turn that a rendered text begins with; None where nothing ends it."""
        ends = [self.tokenizer.convert_ids_to_tokens(token) for token in self.end_ids]
        places = [place for end in ends if (place := rest.find(end)) >= 0]
        return rest[: min(places)] if places else None

    def _shows(self, turn: str, before: str, assistant: Message, tools: list[dict[str, Any]] | None) -> bool:
        """Tell whether a rendered turn has the words, the reasoning and the calls of a message.

        Spaces may differ, and how JSON is laid out: what was sampled stands in the conversation already.
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
    """Return a chat template that shows this date in place of the clock's."""
    at = datetime.combine(day, time())
    return _CLOCK_CALL.sub(lambda call: json.dumps(at.strftime(call["form"])), template)


def renders_each_alone(template: str) -> bool:
    """Tell whether a chat template is one loop over the messages, whose body knows only the message it is at.

    Then what a message renders to depends on nothing else in the conversation.
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
    """Tell whether all that a chat template does with a message's content is to put it out as it is."""
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
    """Tell whether a part of a template has the content of `message` only where it is put out."""
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


def _parse(template: str) -> nodes.Template | None:
    """Return a chat template as its parts, to be read only; None for one that cannot be parsed."""
    try:
        return Environment(autoescape=False).parse(_GENERATION.sub("", template))  # noqa: S701 - only read
    except TemplateError:
        return None


def _is_plain(message: Message) -> bool:
    """Tell whether a message is a role and a text, and nothing else that templates read."""
    return isinstance(message.get("content"), str) and not any(map(message.get, TEMPLATE_KEYS[2:]))


def unreadable(message: Message) -> bool:
    """Tell whether a message has a call that could not be read."""
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
            raise InvalidResponse(f"this model reads text only, not content of type `{part.get('type')}`")
        parts.append(part["text"])
    return "".join(parts)
