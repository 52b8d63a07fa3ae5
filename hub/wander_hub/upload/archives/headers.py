"""The lines of METADATA, PKG-INFO and WHEEL, before a parser is asked.

Readers of this e-mail-like format part ways at odd lines: one ends the header there, one skips the line,
one splits at a lone carriage return. So a header is refused unless all must read it alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from email.policy import compat32

from wander_hub.upload.schemas import refusal

_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]*:")
_MOST_LINES = 100_000
_MOST_FIELDS = 100
"""The standard knows 40. Parsers look each name up among all lines: their time is names times lines."""
_ODD = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def decode(text: bytes, what: str, code: str) -> str:
    """Return the text of a metadata file whose header lines are plain; `what` is the file's name."""
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        raise refusal(code, f"{what} is not UTF-8 at byte {error.start:,}") from error
    if "\x00" in whole:
        raise refusal(code, f"{what} holds a NUL at character {whole.index(chr(0)):,}")
    names: set[str] = set()
    for number, line in enumerate(_header_lines(whole), 1):
        if odd := _ODD.search(line):
            detail = f"line {number} of {what} holds the character U+{ord(odd[0]):04X}"
            raise refusal(code, detail)
        if field := _FIELD.match(line):
            names.add(field[0].lower())
        elif line[0] not in " \t" or number == 1:
            raise refusal(code, f"line {number} of {what} is no `Field: value`: `{line[:100]}`")
        if number > _MOST_LINES or len(names) > _MOST_FIELDS:
            most = f"{_MOST_LINES:,} lines or {_MOST_FIELDS} fields"
            raise refusal(code, f"the header of {what} goes on at line {number} over {most}")
    return whole


def _header_lines(text: str) -> Iterator[str]:
    """Yield the lines before the first empty one."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].removesuffix("\r")
        if not line:
            return
        yield line
        start = end + 1


def parse(text: bytes, what: str, code: str) -> Message:
    """Return the fields of a file that is all header, such as WHEEL."""
    return Parser(policy=compat32).parsestr(decode(text, what, code), headersonly=True)
