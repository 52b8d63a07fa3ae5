"""The formats in which models write calls of tools.

A model's format is the one that reads back what its chat template writes for a call; where the template
writes none, the one whose marks stand in the template or among the tokenizer's special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wander.models.calls.json_calls import in_blocks, scan_bare, scan_mistral
from wander.models.calls.tagged import LFM2_ENDS, LFM2_OPENS, scan_python, scan_tags
from wander.models.calls.written import Scan


@dataclass(frozen=True)
class CallFormat:
    """One way to write calls."""

    name: str
    marks: tuple[str, ...]
    """What a chat template, or a tokenizer's special tokens, hold where a model writes so."""
    opens: tuple[str, ...]
    """What begins a call, and so ends reasoning that was never closed; none where a call is bare JSON."""
    scan: Scan
    write: Callable[[str, dict[str, Any]], str]
    """Writes one call, for a template that shows none."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_tags(name: str, arguments: dict[str, Any]) -> str:
    values = (value if isinstance(value, str) else _json(value) for value in arguments.values())
    inside = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in zip(arguments, values, strict=True)
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _write_python(name: str, arguments: dict[str, Any]) -> str:
    inside = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{LFM2_OPENS}[{name}({inside})]{LFM2_ENDS}"


def _write_hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{_json({'name': name, 'arguments': arguments})}\n</tool_call>"


FORMATS = (
    CallFormat("qwen3_coder", ("<function=",), ("<tool_call>", "<function="), scan_tags, _write_tags),
    CallFormat(
        "hermes", ("<tool_call>",), ("<tool_call>",), in_blocks("<tool_call>", "</tool_call>"), _write_hermes
    ),
    CallFormat("lfm2", (LFM2_OPENS,), (LFM2_OPENS,), scan_python, _write_python),
    CallFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        scan_mistral,
        lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}",
    ),
    # Llama 3, and every template that asks for a JSON object.
    CallFormat(
        "json",
        ("<|python_tag|>", '{"name":'),
        ("<|python_tag|>",),
        scan_bare,
        lambda name, arguments: _json({"name": name, "parameters": arguments}),
    ),
)
"""Qwen2.5, Qwen3 and SmolLM3 write `hermes`. The last reads what others write, too: it is tried last."""
