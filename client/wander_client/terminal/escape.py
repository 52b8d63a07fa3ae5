"""Escape text from a hub or a model: it may contain terminal commands or bidirectional controls."""

from __future__ import annotations

import re

# C0 except tab and newline, DEL and C1, zero-width and bidirectional controls, line separators, BOM.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with control and bidirectional characters as escapes (`\\x1b`). Newlines are kept."""
    return _UNSAFE.sub(_spell, text.replace("\r\n", "\n"))


def escape_json(text: str) -> str:
    """Return an equivalent JSON text with these characters escaped."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def one_line(text: str) -> str:
    """Return the text for one table cell, without newlines, tabs and control characters."""
    return " ".join(visible(text).split())


def _spell(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
