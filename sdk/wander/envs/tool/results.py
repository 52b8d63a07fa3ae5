"""What a tool returned, as the content of the message that the model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from wander.types import canonical_json


def tool_content(value: Any, name: str) -> str | list[Any]:
    """Return a tool's result as the content of a message.

    Text and content parts pass as they are; other values become JSON. Raises `TypeError` for a value that
    has neither a JSON form nor a text of its own.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list) and value and all(map(_is_content_part, value)):
        return list(value)
    return encodable(json.dumps(_plain(value, name), ensure_ascii=False))


def _is_content_part(value: Any) -> bool:
    """Tell whether a value is like `{"type": "text", "text": ...}`."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and isinstance(value.get(kind), str | dict)


def encodable(text: str) -> str:
    """Return the text with lone surrogates replaced, since no file or wire takes them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _plain(value: Any, name: str) -> Any:
    """Return a JSON value; sets are sorted, since their order differs from process to process."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(_plain(key, name)): _plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, name) for item in value), key=canonical_json)
    try:
        return _plain(to_jsonable_python(value), name)
    except (TypeError, ValueError) as error:
        classes = type(value).__mro__[:-1]
        if not any("__str__" in vars(each) or "__repr__" in vars(each) for each in classes):
            # A bare object prints its address, which no second run would print again.
            raise TypeError(
                f"`{name}` returned a `{type(value).__name__}`, which is not a JSON value"
            ) from error
        return str(value)
