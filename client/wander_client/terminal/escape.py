"""Make text that came from a hub or a model safe to print: it may hold terminal commands or bidi tricks."""

from __future__ import annotations

import re

# C0 but tab and newline, DEL and C1, zero-width and bidirectional controls, line separators, BOM.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with control and bidirectional characters spelled out (`\\x1b`); keeps newlines."""
    return _UNSAFE.sub(_spell, text.replace("\r\n", "\n"))


def escape_json(text: str) -> str:
    """Return a JSON text with the same characters as escapes of JSON; it means the same."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def one_line(text: str) -> str:
    """Return the text safe for one table cell: no newline, no tab, no control character."""
    return " ".join(visible(text).split())


def _spell(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
