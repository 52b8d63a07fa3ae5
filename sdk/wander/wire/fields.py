"""The kinds of text and numbers in wire models.

Every field of every wire model has one of these, or a bound of its own (a test walks them all). So an answer
holds nothing that its reader does not expect: what becomes the name of a file is checked before it is used,
and no text or number is longer than a program can handle.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from pydantic import Field

_VERSION = (
    r"([1-9][0-9]*!)?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?"
    r"(\.post(0|[1-9][0-9]*))?(\.dev(0|[1-9][0-9]*))?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)
"""Normal form of PEP 440."""
_OWNER, _PROJECT = r"[a-z0-9]([a-z0-9-]{0,37}[a-z0-9])?", r"[a-z0-9]([a-z0-9-]{0,198}[a-z0-9])?"

PROJECT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
"""In any spelling."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
OwnerName = Annotated[str, Field(pattern=f"^{_OWNER}$")]
ProjectName = Annotated[str, Field(pattern=f"^{_PROJECT}$")]
"""Name of an environment, a model or a distribution, in the normal form of PEP 503."""
Target = Annotated[str, Field(pattern=f"^{_OWNER}(/{_PROJECT})?$")]
"""`owner` or `owner/name`."""
Release = Annotated[str, Field(pattern=f"^{_VERSION}$", max_length=100)]
"""A version in the normal form of PEP 440."""
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}$")]
"""One part of a path, never hidden and never `..`."""
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_~-]{1,64}$")]
Address = Annotated[str, Field(pattern=r"^[!-~]*$", max_length=4000)]
"""A URL, or the part of one, without spaces or characters beyond ASCII."""
Word = Annotated[str, Field(pattern=r"^[!-~]*$", max_length=200)]
"""A code, a media type, a version of a program, the name of a field."""
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=5000)]
"""A name or a sentence, in one line."""
RunName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$", max_length=100)]
"""The name that somebody gave a run, in one line."""
Text = Annotated[str, Field(max_length=100_000)]
"""What somebody wrote, or a program printed."""
LongText = Annotated[str, Field(max_length=16_000_000)]
"""A whole document."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things, bytes or seconds, or a position."""
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Integer = Annotated[int, Field(ge=-(2**127), lt=2**127)]
"""A number that may be negative, or a seed."""

Values = Annotated[dict[Text, Any], Field(max_length=10_000)]
"""JSON of an author or a program, by name; whoever reads a value of it checks that."""

_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"}
)


def is_device(name: str) -> bool:
    """Return whether Windows takes a part of a path for a device, whatever its suffix."""
    return name.split(".")[0].rstrip(" ").casefold() in _DEVICES


def fold(path: str) -> str:
    """Return one spelling for all that case-blind or Unicode-normalising file systems take for one."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold())
