"""RECORD: names exactly the files of the wheel, each with its digest and its size.

Neither pip nor uv compares these digests, so an index is the only place that can.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wander_hub.upload.archives.members import shown
from wander_hub.upload.schemas import refusal

_EXEMPT = ("RECORD", "RECORD.jws", "RECORD.p7s")
_STRONGER = ("sha384", "sha512")


@dataclass(frozen=True, slots=True)
class Row:
    """One line."""

    digest: str
    size: str
    line: int


def check(
    text: bytes, folder: str, files: Mapping[str, tuple[str, int]], content: Callable[[str], Iterator[bytes]]
) -> None:
    """Compare RECORD of the dist-info `folder` with SHA-256 (as RECORD writes it) and size of every file.

    `content` reads a file once more, for the rare RECORD with a longer digest.
    """
    exempt = {f"{folder}/{name}" for name in _EXEMPT}
    rows = _rows(text, files)
    for path, (digest, size) in files.items():
        given = rows.get(path)
        if path in exempt and (given is None or not given.digest):
            continue
        if given is None:
            raise refusal("record_missing", f"RECORD does not name `{shown(path)}`")
        _compare(path, given, digest, size, content)


def _compare(path: str, row: Row, digest: str, size: int, content: Callable[[str], Iterator[bytes]]) -> None:
    algorithm, _, expected = row.digest.partition("=")
    where = f"line {row.line} of RECORD"
    if algorithm in _STRONGER:
        digest = as_recorded(content(path), algorithm)
    elif algorithm != "sha256":
        detail = f"{where} gives `{shown(algorithm) or 'no digest'}` for `{shown(path)}`"
        raise refusal("record_weak_digest", detail)
    if expected != digest:
        detail = f"{where} gives {algorithm} `{shown(expected)}` for `{shown(path)}`, which has `{digest}`"
        raise refusal("record_digest", detail)
    if row.size != str(size):
        detail = f"{where} gives `{shown(row.size)}` bytes for `{shown(path)}`, which has {size}"
        raise refusal("record_size", detail)


def as_recorded(chunks: Iterator[bytes], algorithm: str) -> str:
    """Return a digest in RECORD's spelling: urlsafe base64 without padding."""
    digest = hashlib.new(algorithm)
    for chunk in chunks:
        digest.update(chunk)
    return spelt(digest.digest())


def spelt(digest: bytes) -> str:
    """Return a digest in RECORD's spelling."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _rows(text: bytes, files: Mapping[str, tuple[str, int]]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    try:
        reader = csv.reader(io.StringIO(text.decode(), newline=""), strict=True)
        for row in reader:
            if len(row) != 3:
                raise refusal(
                    "bad_record", f"line {reader.line_num} of RECORD has {len(row)} columns and not 3"
                )
            if row[0] in rows:
                detail = f"line {reader.line_num} of RECORD names `{shown(row[0])}` again"
                raise refusal("bad_record", detail)
            if row[0] not in files:
                detail = f"line {reader.line_num} of RECORD names `{shown(row[0])}`, which is not there"
                raise refusal("record_extra", detail)
            rows[row[0]] = Row(row[1], row[2], reader.line_num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal("bad_record", f"RECORD cannot be read: {error!s:.300}") from error
    return rows
