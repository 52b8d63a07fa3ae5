"""A model's response as messages and tokens, in the forms of all generations."""

from __future__ import annotations

from typing import Any

from wander_compat.verifiers.messages.conversion import as_messages, field_of
from wander_compat.verifiers.messages.models import AssistantMessage
from wander_compat.verifiers.types import response_of


def completion_fields(response: Any) -> dict[str, Any]:
    """Return the fields of the message that a response holds."""
    message = response_of(response).message
    return {name: getattr(message, name) for name in AssistantMessage.model_fields}


async def parse_response_message(response: Any) -> list[Any]:
    """Return the completion of a response as messages."""
    return list(as_messages([completion_fields(response)]))


async def parse_response_messages(response: Any, message_type: str = "chat") -> Any:
    """Return the completion of a response as the earlier releases do; text for those that complete text."""
    messages = as_messages([completion_fields(response)], "dict")
    return messages if message_type == "chat" else field_of(messages[0], "content", "")


async def parse_response_tokens(response: Any, *_: Any, **__: Any) -> Any:
    """Return the token ids of a response, or None when the endpoint gave none."""
    return response_of(response).message.tokens
