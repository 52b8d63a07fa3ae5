"""Conversations as tokens: the model's chat template, applied without ever re-tokenising a completion.

Training must score the very ids that were sampled. So a conversation grows by appending: the sampled ids,
then the ids of only that text which the template puts after them (end of turn, environment messages, the
start of the next assistant turn). A template that rewrites what came before (some drop earlier reasoning) is
detected: the conversation then starts anew from what the template shows, and is learnt in several samples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from wander.errors import InvalidResponse
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
_UNCLOSED = "the model's chat template does not close an assistant turn"


class RewrittenHistory(InvalidResponse):
    """The chat template shows earlier messages differently than when they were sampled."""


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


class ChatFormat:
    """Renders messages with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        self.template: str = template or PLAIN_TEMPLATE
        self._ids_of = lru_cache(maxsize=_REMEMBERED)(self._tokenise)
        self._opened: tuple[list[Message], Conversation] | None = None
        """The conversation opened last, where all of it is text: the rollouts of a group open alike."""

    @property
    def digest(self) -> str:
        """SHA-256 of the chat template."""
        return hashlib.sha256(self.template.encode()).hexdigest()

    def render(
        self, messages: list[Message], *, prompt: bool = True, tools: list[dict[str, Any]] | None = None
    ) -> str:
        """Return the text of the messages, by default up to where the assistant's next turn starts."""
        plain = [{key: m[key] for key in TEMPLATE_KEYS if m.get(key) is not None} for m in messages]
        for message in plain:
            message["content"] = content_text(message.get("content", ""))
        try:
            text: str = self.tokenizer.apply_chat_template(
                plain, tools=tools, tokenize=False, add_generation_prompt=prompt, chat_template=self.template
            )
        except TemplateError as error:
            raise InvalidResponse(f"the model's chat template refuses these messages: {error}") from error
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
        made = Conversation(ids=ids, mask=[0] * len(ids), text=text, messages=len(messages), open_at=len(ids))
        if tools is None and all(isinstance(part, str) for message in messages for part in message.values()):
            kept = replace(made, ids=list(made.ids), mask=list(made.mask))
            self._opened = [dict(message) for message in messages], kept
        return made

    def append_completion(self, conversation: Conversation, ids: list[int]) -> None:
        """Add the sampled ids of one turn."""
        conversation.ids += ids
        conversation.mask += [1] * len(ids)

    def append_messages(
        self, conversation: Conversation, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> None:
        """Add what follows a completion: `messages` is the whole conversation, the completion included.

        Raises `RewrittenHistory`, and then leaves the conversation as it was.
        """
        whole = self.render(messages, tools=tools)
        after = self._after_completion(conversation, messages[conversation.messages], whole)
        ids = self.encode(after)
        ended = bool(conversation.mask and conversation.mask[-1] and conversation.ids[-1] in self.end_ids)
        if ended and ids and ids[0] in self.end_ids:
            ids = ids[1:]  # the end of the turn was sampled already
        conversation.ids += ids
        conversation.mask += [0] * len(ids)
        conversation.text, conversation.messages = whole, len(messages)
        conversation.open_at = len(conversation.ids)

    def transcripts(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> list[Conversation]:
        """Return a finished conversation as the samples that it is learnt in.

        That is one, as `transcript` returns it; where the template rewrites history, one for every
        assistant turn, each after the history as the model sees it then.
        """
        messages = self.spoken(messages, tools)
        try:
            return [self.transcript(messages, tools)]
        except RewrittenHistory:
            return [
                self._last_turn(messages[: place + 1], tools)
                for place, message in enumerate(messages)
                if message["role"] == "assistant" and place > 0
            ]

    def spoken(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[Message]:
        """Return the messages with calls of tools and separate reasoning put into the text of their turn.

        That is the text which the template gives them, and so what the model samples.
        """
        plain: list[Message] = []
        for message in messages:
            if message["role"] == "assistant" and (
                message.get("tool_calls") or message.get("reasoning_content")
            ):
                start = self.render(plain, tools=tools)
                whole = self.render([*plain, message], prompt=False, tools=tools)
                rest = whole.removeprefix(start)
                ends = [self.tokenizer.convert_ids_to_tokens(token) for token in self.end_ids]
                places = [rest.find(end) for end in ends if end in rest]
                if rest == whole or not places:
                    raise InvalidResponse(
                        "the model's chat template does not append an assistant turn with calls of tools"
                    )
                message = {"role": "assistant", "content": rest[: min(places)]}
            plain.append(message)
        return plain

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
        content = self.encode(content_text(messages[-1].get("content", "")))
        self.append_completion(conversation, [*content, ending[0]])
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
            self.append_completion(
                conversation, self.encode(content_text(messages[place].get("content", "")))
            )
            if following is None:
                whole = self.render(messages[: place + 1], prompt=False, tools=tools)
                ending = self.encode(self._after_completion(conversation, messages[place], whole))
                if not ending or ending[0] not in self.end_ids:
                    raise InvalidResponse(_UNCLOSED)
                self.append_completion(conversation, ending[:1])
            else:
                before = len(conversation.ids)
                self.append_messages(conversation, messages[:following], tools)
                if conversation.ids[before : before + 1] and conversation.ids[before] in self.end_ids:
                    conversation.mask[before] = 1
        return conversation

    def _after_completion(self, conversation: Conversation, assistant: Message, whole: str) -> str:
        """Return what `whole` has after the assistant's content."""
        content = content_text(assistant.get("content", ""))
        if whole.startswith(conversation.text):
            rest = whole[len(conversation.text) :]
            for form in (content, content.strip()):
                if rest.startswith(form):
                    return rest[len(form) :]
        raise RewrittenHistory(
            "the model's chat template rewrites earlier messages: a conversation cannot grow token by token",
            hint="use a model whose template keeps the history as it was",
        )


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
