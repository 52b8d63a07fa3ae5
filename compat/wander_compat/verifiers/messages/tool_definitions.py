"""From Python functions to the tools that a model is shown, and from results to tool messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wander.envs.tool.schema import FunctionTool

from wander_compat.verifiers.messages.models import Tool

VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


def convert_func_to_tool_def(func: Callable[..., Any], args_to_skip: Iterable[str] = ()) -> Tool:
    """Return the definition of a function; `args_to_skip` are neither shown to the model nor taken from it.

    Raises `wander.errors.ConfigError` for a function whose parameters no JSON object can fill.
    """
    made = FunctionTool(func, args_to_skip=args_to_skip)
    return Tool(name=made.name, description=made.description, parameters=made.parameters)


def convert_func_to_oai_tool(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the definition of a function in OpenAI's form."""
    return convert_func_to_tool_def(func).openai()


def is_valid_tool_content_parts(value: Any) -> bool:
    """Tell whether a tool's result is a list of content parts that a tool message may hold."""
    if not isinstance(value, list):
        return False
    return all(
        isinstance(part, Mapping) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES for part in value
    )
