"""Converts a tool's return value to the content of a message for the model."""

from __future__ import annotations

import json
from typing import Any

from wander.rollout.json_values import NotExact, as_json


def tool_content(value: Any, name: str) -> str | list[Any]:
    """Return a tool's result as the content of a message.

    Text and content parts are passed through. Other values become JSON without any loss
    (`wander.rollout.json_values`). Raises `TypeError` for a value that JSON cannot represent.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list) and value and all(map(_is_content_part, value)):
        return list(value)
    try:
        return encodable(json.dumps(as_json(value), ensure_ascii=False))
    except NotExact as error:
        raise TypeError(f"`{name}` returned what the model cannot be shown: {error}") from error


def _is_content_part(value: Any) -> bool:
    """Return whether a value looks like `{"type": "text", "text": ...}`."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and isinstance(value.get(kind), str | dict)


def encodable(text: str) -> str:
    """Return the text with lone surrogates replaced, because they cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
