"""Artifacts of runs: which files are accepted, and how they are sent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from wander.wire.fields import fold, is_device

from wander_hub.http.problems import HubProblem
from wander_hub.storage import digest_of

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "md": "text/plain; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "toml": "text/plain; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
}
"""Media types by suffix. None of them lets a file run scripts in a browser."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")


@dataclass(frozen=True)
class PostedFile:
    """An artifact that was received."""

    name: str
    media_type: str
    body: BinaryIO
    size: int
    sha256: str


def check_file(name: str, body: BinaryIO, max_bytes: int) -> PostedFile:
    """Return a received file; raise a problem if its name or size is invalid."""
    media_type = media_type_of(name)
    sha256, size = digest_of(body)
    if size > max_bytes:
        raise HubProblem(413, "too_large", f"`{name}` is larger than {max_bytes:,} bytes")
    return PostedFile(name, media_type, body, size, sha256)


def require_apart(name: str, others: Iterable[str]) -> None:
    """Raise if some file systems would treat a name and a different one of `others` as the same file."""
    for other in others:
        if other != name and fold(other) == fold(name):
            raise HubProblem(422, "bad_artifact", f"`{name}` and `{other}` are the same file on some systems")


def media_type_of(name: str) -> str:
    """Return the media type for a file name; raise if the name is invalid."""
    suffix = name.rpartition(".")[2].lower()
    if not _NAME.fullmatch(name) or suffix not in MEDIA_TYPES or is_device(name):
        hint = (
            f"use a plain name with one of the suffixes {', '.join(f'.{suffix}' for suffix in MEDIA_TYPES)}"
        )
        raise HubProblem(422, "bad_artifact", f"`{name[:100]}` is not a valid name of an artifact", hint=hint)
    return MEDIA_TYPES[suffix]
