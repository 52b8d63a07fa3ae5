"""Settings of a training run as TOML: the client prints them before a run, the hub beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


def toml_lines(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as TOML, a table for each section; what is not set is left out."""
    sections = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    for name, value in settings.items():
        if name not in sections and value is not None:
            yield f"{_key(name)} = {_toml(value)}"
    for name, section in sections.items():
        known = {key: value for key, value in section.items() if value is not None}
        if known:
            yield f"\n[{_key(name)}]"
            yield from (f"{_key(key)} = {_toml(value)}" for key, value in known.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(one) for one in value if one is not None)}]"
    # Strings, numbers and truth values are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
