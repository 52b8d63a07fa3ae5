"""Types for the text and the numbers in wire models.

Every field of every wire model uses one of these types or declares its own bound; a test checks all models.
The receiver of an answer can rely on them: text that becomes a file name is checked before it is used, and
no text or number is larger than a program can handle.
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
"""Pattern of a version in the normal form of PEP 440."""
_OWNER, _PROJECT = r"[a-z0-9]([a-z0-9-]{0,37}[a-z0-9])?", r"[a-z0-9]([a-z0-9-]{0,198}[a-z0-9])?"

PROJECT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
"""Pattern of a project name before it is normalized: any case, and dots, dashes or underscores."""

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
"""A URL or part of a URL, without spaces or non-ASCII characters."""
Word = Annotated[str, Field(pattern=r"^[!-~]*$", max_length=200)]
"""A short text without spaces: a code, a media type, the version of a program, the name of a field."""
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=5000)]
"""A name or a sentence on a single line."""
RunName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$", max_length=100)]
"""The name that a user gave a run, on a single line."""
Text = Annotated[str, Field(max_length=100_000)]
"""Text that a user wrote or a program printed."""
LongText = Annotated[str, Field(max_length=16_000_000)]
"""A whole document."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things, bytes or seconds, or a position."""
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Integer = Annotated[int, Field(ge=-(2**127), lt=2**127)]
"""A number that may be negative, or a seed."""

Values = Annotated[dict[Text, Any], Field(max_length=10_000)]
"""Arbitrary JSON values by name. Code that reads a value must validate it."""

_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"}
)


def is_device(name: str) -> bool:
    """Return whether Windows treats this path component as a device, such as `con` or `con.txt`."""
    return name.split(".")[0].rstrip(" ").casefold() in _DEVICES


def fold(path: str) -> str:
    """Return a form of the path that is equal for all paths that some file system treats as the same file.

    Such file systems ignore case or normalize Unicode.
    """
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold())
