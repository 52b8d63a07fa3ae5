"""Converts messages of any format to the dictionaries or models of one generation."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from wander_compat.verifiers.messages.dicts import MessageDict, ToolCallDict
from wander_compat.verifiers.messages.models import (
    ROLE_MODELS,
    CustomBaseModel,
    GenericContentPart,
    ImageUrlContentPart,
    InputAudioContentPart,
    OtherMessage,
    TextContentPart,
    Tool,
)

Form = Literal["dict", "model"]
"""Format of an environment's messages: dictionaries until 0.1.10, models from 0.1.11 on."""
AnyMessage = MessageDict | CustomBaseModel


def __getattr__(name: str) -> Any:
    """Import OpenAI's class, which packages import from here, when it is first used."""
    if name != "ChatCompletionMessage":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return importlib.import_module("openai.types.chat").ChatCompletionMessage


PART_MODELS: dict[str, type[CustomBaseModel]] = {
    "text": TextContentPart,
    "image_url": ImageUrlContentPart,
    "input_audio": InputAudioContentPart,
}


def as_mapping(value: Any) -> dict[str, Any] | None:
    """Return a mapping, a model or an SDK object as a dictionary of its fields, or None for other values."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, CustomBaseModel):
        return dict(value)
    if hasattr(value, "model_dump"):
        dumped: dict[str, Any] = value.model_dump()
        return dumped
    return None


def field_of(message: Any, name: str, default: Any = None) -> Any:
    """Return a field of a message of any format, or the default if the field is missing or None."""
    value = message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
    return default if value is None else value


def as_message(message: Any, form: Form = "model") -> AnyMessage:
    """Convert a value to a message. Raises `ValueError` if it is not a message."""
    if isinstance(message, MessageDict if form == "dict" else CustomBaseModel):
        return message
    if isinstance(message, str):
        message = {"role": "text", "content": message}
    fields = as_mapping(message)
    if fields is None or not isinstance(fields.get("role"), str):
        raise ValueError(f"a message needs a `role`, got {str(message)[:200]}")
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields.get("content") is None:
        fields["content"] = None if fields["role"] == "assistant" else ""
    content = fields["content"]
    if "tool_calls" in fields:
        calls = [as_tool_call(call) for call in fields.pop("tool_calls")]
        if calls or form == "model":
            fields["tool_calls"] = calls or None
    if form == "dict":
        if isinstance(content, list | tuple):  # Arrow adds empty keys to parts
            parts = map(_without_empty, content)
            fields["content"] = [plain(part) if as_mapping(part) is not None else part for part in parts]
        return MessageDict(fields)
    model = ROLE_MODELS.get(fields["role"], OtherMessage)
    if isinstance(content, list | tuple):
        fields["content"] = [_model_part(part) for part in content]
    elif content is not None and not isinstance(content, str) and model is not OtherMessage:
        fields["content"] = str(content)
    return model(**fields)


def _model_part(part: Any) -> Any:
    fields = _without_empty(part)
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        return part
    made = PART_MODELS.get(fields["type"], GenericContentPart)
    try:
        return made(**fields)
    except ValueError:
        return GenericContentPart(**fields)


def _without_empty(part: Any) -> Any:
    fields = as_mapping(part)
    return part if fields is None else {name: value for name, value in fields.items() if value is not None}


def as_tool_call(call: Any) -> ToolCallDict:
    """Convert a tool call of any format to OpenAI's. The first generation stored them as JSON text."""
    if isinstance(call, ToolCallDict):
        return call
    if isinstance(call, str):
        call = json.loads(call)
    return ToolCallDict(as_mapping(call) or {})


def as_tool(tool: Any) -> Tool:
    """Convert a tool definition in OpenAI's or the later format."""
    return tool if isinstance(tool, Tool) else Tool.model_validate(as_mapping(tool))


def as_messages(messages: Any, form: Form = "model") -> list[AnyMessage]:
    """Convert messages of any format: a list, a single message, or text."""
    if messages is None:
        return []
    if isinstance(messages, str | Mapping | CustomBaseModel):
        return [as_message(messages, form)]
    return [as_message(message, form) for message in messages]


def text_of(content: Any) -> str:
    """Return the text of a message's content. If the content is a list, join its text parts with spaces."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return "" if content is None else str(content)
    parts = (as_mapping(part) or {} for part in content)
    return " ".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def wire_message(message: Any) -> dict[str, Any]:
    """Return a message as endpoints and records store it: plain, in OpenAI's format.

    Text becomes a user message.
    """
    fields: dict[str, Any] = plain(as_message(message, "dict"))
    fields.pop("thinking_blocks", None)
    if fields["role"] == "text":
        fields["role"] = "user"
    return fields


def wire_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages as endpoints and records store them."""
    return [wire_message(message) for message in as_messages(messages, "dict")]


def plain(value: Any) -> Any:
    """Return a value with plain dictionaries and lists. Values that JSON cannot represent become text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "tolist"):  # numpy
        return plain(value.tolist())
    return str(value)


# Other names that packages import from `verifiers.utils.message_utils`.


def concat_messages(messages_list: Iterable[Any]) -> list[AnyMessage]:
    """Concatenate several lists of messages."""
    return [message for messages in messages_list for message in as_messages(messages)]


def normalize_messages(value: Any, *, field_name: str = "messages") -> list[AnyMessage]:
    """Convert messages of any format. Raises `ValueError` with the name of the field."""
    try:
        return as_messages(value)
    except ValueError as error:
        raise ValueError(f"`{field_name}`: {error}") from error


maybe_normalize_messages = normalize_messages
from_raw_message = as_message


def message_to_printable(message: Any) -> Any:
    """Return a message with its parts as text. Images are replaced by their name."""
    fields = plain(as_message(message, "dict"))
    content = fields.get("content")
    if isinstance(content, list):
        texts = [part.get("text") or f"[{part.get('type', 'part')}]" for part in content]
        fields["content"] = "\n\n".join(texts)
    return fields


def messages_to_printable(messages: Any) -> Any:
    """Return messages with their parts as text."""
    return messages if isinstance(messages, str) else [message_to_printable(message) for message in messages]


def cleanup_message(message: Any) -> Any:
    """Return a message as a plain dictionary without empty keys."""
    return {name: value for name, value in plain(as_message(message, "dict")).items() if value is not None}


def cleanup_messages(messages: Any) -> Any:
    """Return messages as plain dictionaries without empty keys."""
    return messages if isinstance(messages, str) else [cleanup_message(message) for message in messages]


sanitize_tool_calls = cleanup_messages
