"""Messages for the first two generations: dictionaries whose keys are also attributes.

Their code uses `message["content"]`, `isinstance(message, dict)` and `json.dumps(messages)`. The attributes
are for code that was updated later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar


class DictFields(dict[str, Any]):
    """A dictionary whose keys are attributes. A field in `absent` has a default value."""

    absent: ClassVar[dict[str, Any]] = {}

    def __missing__(self, name: str) -> Any:
        return self.absent[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dictionary, like the later generations' classes."""
        return dict(self)


class ToolFunctionDict(DictFields):
    """Name and arguments (JSON text) of a tool call."""


class ToolCallDict(DictFields):
    """A tool call in OpenAI's format. `name` and `arguments` are those of its function."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        inner = call.get("function") or call
        arguments = inner.get("arguments") or ""
        function = ToolFunctionDict(
            name=inner.get("name") or "",
            arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
        )
        super().__init__(id=call.get("id") or "", type="function", function=function)

    def __missing__(self, name: str) -> Any:
        return self["function"][name]


class MessageDict(DictFields):
    """A chat message."""

    absent: ClassVar[dict[str, Any]] = {
        "content": None,
        "tool_calls": None,
        "reasoning_content": None,
        "thinking_blocks": None,
    }
