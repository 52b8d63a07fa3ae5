"""Functions on messages that packages take from the classic API's own modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wander_compat.verifiers.messages.conversion import AnyMessage, as_message, as_messages, plain


def concat_messages(messages_list: Iterable[Any]) -> list[AnyMessage]:
    """Return several lists of messages as one."""
    return [message for messages in messages_list for message in as_messages(messages)]


def normalize_messages(value: Any, *, field_name: str = "messages") -> list[AnyMessage]:
    """Return messages of any form as ours; raises `ValueError` naming the field."""
    try:
        return as_messages(value)
    except ValueError as error:
        raise ValueError(f"`{field_name}`: {error}") from error


maybe_normalize_messages = normalize_messages


def from_raw_message(message: Any) -> AnyMessage:
    """Return one message of any form as ours."""
    return as_message(message)


def message_to_printable(message: Any) -> Any:
    """Return a message with its parts as text, images by their name."""
    found = plain(as_message(message, "dict"))
    content = found.get("content")
    if isinstance(content, list):
        texts = [part.get("text") or f"[{part.get('type', 'part')}]" for part in content]
        found["content"] = "\n\n".join(texts)
    return found


def messages_to_printable(messages: Any) -> Any:
    """Return messages with their parts as text."""
    return messages if isinstance(messages, str) else [message_to_printable(each) for each in messages]


def cleanup_message(message: Any) -> Any:
    """Return a message as a plain dictionary without empty keys."""
    return {name: value for name, value in plain(as_message(message, "dict")).items() if value is not None}


def cleanup_messages(messages: Any) -> Any:
    """Return messages as plain dictionaries without empty keys."""
    return messages if isinstance(messages, str) else [cleanup_message(each) for each in messages]


sanitize_tool_calls = cleanup_messages
