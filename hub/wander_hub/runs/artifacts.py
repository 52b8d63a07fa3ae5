"""Files that come with a run: which are taken, and how they are sent again."""

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
"""By suffix; none of these can run in a browser here."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")


@dataclass(frozen=True)
class PostedFile:
    """One artifact as it arrived."""

    name: str
    media_type: str
    body: BinaryIO
    size: int
    sha256: str


def check_file(name: str, body: BinaryIO, max_bytes: int) -> PostedFile:
    """Return a file that arrived, or refuse it."""
    media_type = media_type_of(name)
    sha256, size = digest_of(body)
    if size > max_bytes:
        raise HubProblem(413, "too_large", f"`{name}` is over {max_bytes:,} bytes")
    return PostedFile(name, media_type, body, size, sha256)


def require_apart(name: str, others: Iterable[str]) -> None:
    """Refuse a name that some file systems take for one of the others; the very same name is fine."""
    for other in others:
        if other != name and fold(other) == fold(name):
            raise HubProblem(422, "bad_artifact", f"`{name}` and `{other}` are one file on some systems")


def media_type_of(name: str) -> str:
    """Return what a file of that name is sent as, or refuse the name."""
    suffix = name.rpartition(".")[2].lower()
    if not _NAME.fullmatch(name) or suffix not in MEDIA_TYPES or is_device(name):
        hint = f"a plain name ending in one of {', '.join(f'.{one}' for one in MEDIA_TYPES)}"
        raise HubProblem(422, "bad_artifact", f"the hub takes no artifact `{name[:100]}`", hint=hint)
    return MEDIA_TYPES[suffix]
