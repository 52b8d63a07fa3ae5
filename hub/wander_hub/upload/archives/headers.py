"""The header lines of METADATA, PKG-INFO and WHEEL, checked before they are parsed.

Parsers of this email-like format disagree about unusual lines: some end the header there, some skip the line,
some split it at a lone carriage return. So a header is refused unless every parser must read it the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from email.policy import compat32

from wander_hub.upload.findings import refusal

_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]*:")
_MOST_LINES = 100_000
_MOST_FIELDS = 100
"""The standard has 40 fields. Parsers search all lines for each field, so time grows with fields times
lines."""
_ODD = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def decode(text: bytes, what: str, code: str) -> str:
    """Return the text of a metadata file whose header lines are all plain; `what` is the file's name."""
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        raise refusal(code, f"{what} is not UTF-8 at byte {error.start:,}") from error
    if "\x00" in whole:
        raise refusal(code, f"{what} contains a NUL at character {whole.index(chr(0)):,}")
    names: set[str] = set()
    for number, line in enumerate(_header_lines(whole), 1):
        if odd := _ODD.search(line):
            detail = f"line {number} of {what} contains the character U+{ord(odd[0]):04X}"
            raise refusal(code, detail)
        if field := _FIELD.match(line):
            names.add(field[0].lower())
        elif line[0] not in " \t" or number == 1:
            raise refusal(
                code, f"line {number} of {what} does not have the form `Field: value`: `{line[:100]}`"
            )
        if number > _MOST_LINES or len(names) > _MOST_FIELDS:
            most = f"{_MOST_LINES:,} lines or {_MOST_FIELDS} fields"
            raise refusal(code, f"the header of {what} exceeds {most} at line {number}")
    return whole


def _header_lines(text: str) -> Iterator[str]:
    """Yield the lines up to the first empty line."""
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
    """Return the fields of a file that consists of a header only, such as WHEEL."""
    return Parser(policy=compat32).parsestr(decode(text, what, code), headersonly=True)
