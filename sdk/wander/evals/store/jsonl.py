"""Reads files with one JSON object per line as a stream, plain or zstd, and replaces files atomically.

The files are not trusted: every reader opens only plain files, follows no link, and limits its memory. A file
that violates these rules raises `RunError`.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, TypeVar

import zstandard
from pydantic import BaseModel
from pydantic_core import from_json

from wander.errors import RunError
from wander.system.locked_folders import LockedFolder
from wander.system.plain_files import open_plain_file, read_plain_file, require_replaceable
from wander.wire.postings import MAX_CHUNK_BYTES

FULL = {errno.ENOSPC, errno.EDQUOT}
"""Error codes of full file systems."""
LONGEST_LINE = MAX_CHUNK_BYTES
"""Maximum length of a line in bytes. A hub accepts no longer lines."""
MOST_RECORD_BYTES = 64 << 20
"""Maximum size of a file with one JSON object. The manifest of a million examples with long names has 60
MB."""
MOST_LIST_BYTES = 256 << 20
"""Maximum size of a file whose records are held in memory together."""
LEFT_FREE = 256 << 20
"""Disk space in bytes that unpacking leaves for other programs."""
_MOST_NODES = 2_000_000
"""Maximum number of objects, lists and keys in one JSON text. Three bytes (`[],`) take a hundred in
memory."""
_MOST_RATIO = 1000
_FREE_RATIO = 256 << 20
"""Bytes that any file may unpack to. Transcripts compress to a tenth, records of games to 1%."""
_PACKED_STEP = 4096
"""Compressed bytes per step. Four bytes may unpack to 128 KiB, so a larger step could fill the memory."""
_BLOCK = 1 << 20
_DAMAGED = "restore this file from a copy, or run the evaluation again in another folder"
_KEY_AT_START = re.compile(rb'^\{"example_id":"([^"\\]*)","index":(\d{1,9})[,}]')

Model = TypeVar("Model", bound=BaseModel)


def blocks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the plain bytes of a file in blocks. A `.zst` file is unpacked, a plain file is read from
    `offset`.

    Raises `RunError` at the point where a compressed file is damaged or cut short.
    """
    with open_record(path) as source:
        if path.suffix == ".zst":
            yield from _unpack(path, source)
            return
        source.seek(offset)
        while block := source.read(_BLOCK):
            yield block


@contextmanager
def open_record(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of a run. Raises `RunError` if it is not a plain file or cannot be read."""
    with ExitStack() as stack:
        with refuse_unsafe():
            source = stack.enter_context(open_plain_file(path))
        yield source


@contextmanager
def refuse_unsafe() -> Iterator[None]:
    """Raise `RunError` for a file that exists but cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(
            f"cannot read `{error.filename}`: {error.strerror}",
            hint="a run contains only plain files: remove this one, or get the run from its author again",
        ) from error


def read_whole(path: Path, most: int = MOST_RECORD_BYTES) -> bytes:
    """Return the content of a run's file. Raises `RunError` if it is too large or not a plain file."""
    with refuse_unsafe():
        return read_plain_file(path, most)


def parse_record(kind: type[Model], text: bytes) -> Model:
    """Parse a record from JSON text. Raises `ValueError` if the text is invalid or has too many parts."""
    require_few_parts(text)
    return kind.model_validate_json(text)


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse an object from JSON text. Raises `ValueError` for other values, or if it has too many parts."""
    require_few_parts(text)
    parsed = from_json(text)
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    return parsed


def require_few_parts(text: bytes) -> None:
    """Raise `ValueError` for a JSON text that would fill the memory."""
    nodes = text.count(b"[") + text.count(b"{") + text.count(b'":')
    if nodes > _MOST_NODES:
        raise ValueError(f"it has more than {_MOST_NODES:,} parts")


def lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield every line including its newline, which the last line may lack.

    Raises `RunError` for a line longer than `LONGEST_LINE`.
    """
    try:
        yield from split_lines(blocks(path, offset), LONGEST_LINE)
    except OverflowError:
        raise RunError(f"`{path}` has a line of more than {LONGEST_LINE:,} bytes", hint=_DAMAGED) from None


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for random access. A `.zst` file is unpacked to a temporary copy."""
    if path.suffix != ".zst":
        with open_record(path) as plain:
            yield plain
        return
    with tempfile.TemporaryFile() as copy:
        try:
            unpack(path, copy)
            copy.seek(0)
        except OSError as error:
            if error.errno in FULL:
                error.filename = tempfile.gettempdir()
            raise
        yield copy


def read_packed(path: Path, most: int = MOST_LIST_BYTES) -> bytes:
    """Return the unpacked bytes of a `.zst` file. Raises `RunError` for more than `most` bytes."""
    content = bytearray()
    for block in blocks(path):
        content += block
        if len(content) > most:
            raise RunError(f"`{path}` unpacks to more than {most:,} bytes", hint=_DAMAGED)
    return bytes(content)


def unpack(path: Path, out: IO[bytes]) -> None:
    """Write the unpacked bytes of a file. Raises `OSError` (ENOSPC) before they fill the disk."""
    unseen = 0
    for block in blocks(path):
        unseen += out.write(block)
        if unseen > LEFT_FREE // 4:
            unseen, disk = 0, os.fstatvfs(out.fileno())
            if disk.f_bavail * disk.f_frsize < LEFT_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def split_lines(blocks: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """Yield every line including its newline. Only newlines end a line: JSON may contain a bare carriage
    return.

    Raises `OverflowError` for a line longer than `longest` bytes.
    """
    partial_line: list[bytes] = []
    held = 0
    for block in blocks:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            partial_line.append(block[start : end + 1])
            yield b"".join(partial_line)
            partial_line.clear()
            held, start = 0, end + 1
        if start < len(block):
            partial_line.append(block[start:])
            held += len(block) - start
            if longest is not None and held > longest:
                raise OverflowError
    if partial_line:
        yield b"".join(partial_line)


def numbered_lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of every line of an open file, without blank lines.

    Raises `OverflowError` naming the line if it is longer than `LONGEST_LINE` bytes.
    """
    number = 0
    try:
        for number, line in enumerate(split_lines(iter(partial(file.read, _BLOCK), b""), LONGEST_LINE), 1):
            if line.strip():
                yield number, line
    except OverflowError:
        raise OverflowError(f"line {number + 1} of `{path}` has over {LONGEST_LINE:,} bytes") from None


def key_at_start(line: bytes) -> tuple[str, int] | None:
    """Return the example and index of a rollout whose line begins with them, as in lines from `RunFolder`.

    This avoids parsing the whole line. Returns None if only a full parse can find the key or explain the
    problem.
    """
    match = _KEY_AT_START.match(line)
    try:
        return (match[1].decode(), int(match[2])) if match else None
    except UnicodeDecodeError:
        return None


def read_records(path: Path, kind: type[Model], most: int = MOST_LIST_BYTES) -> list[Model]:
    """Return the records of a file, or an empty list if the file is missing.

    A last line that was cut short is left out. Raises `RunError` for any other invalid line.
    """
    records: list[Model] = []
    held = 0
    try:
        for line in lines(path):
            held += len(line)
            if held > most:
                raise RunError(f"`{path}` has more than {most:,} bytes", hint=_DAMAGED)
            if line.endswith(b"\n"):
                records.append(parse_record(kind, line))
    except FileNotFoundError:
        return []
    except ValueError as error:
        number = len(records) + 1
        raise RunError(f"`{path}` is damaged: line {number} is not a {kind.__name__}") from error
    return records


def write_records(path: Path, records: Iterable[BaseModel]) -> None:
    """Replace the records of a file atomically."""
    text = "".join(record.model_dump_json() + "\n" for record in records)
    write_whole(path, text.encode("utf-8", "replace"))


def read_record(path: Path, kind: type[Model]) -> Model | None:
    """Return the record in a file, or None if the file is missing.

    Raises `RunError` if the file does not contain such a record.
    """
    try:
        return parse_record(kind, read_whole(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(f"`{path}` is damaged: it is not a {kind.__name__}") from error


def write_record(path: Path, record: BaseModel) -> None:
    """Replace the content of a file with one record atomically."""
    write_whole(path, record.model_dump_json(indent=1).encode() + b"\n")


def tail_after_newline(path: Path) -> bytes:
    """Return the bytes after the last newline of a plain file. They are empty if the file is intact."""
    with open_record(path) as source:
        position = source.seek(0, os.SEEK_END)
        parts: list[bytes] = []
        while position and not (parts and b"\n" in parts[-1]):
            if len(parts) * _BLOCK > LONGEST_LINE:
                raise RunError(f"`{path}` has a line of more than {LONGEST_LINE:,} bytes", hint=_DAMAGED)
            step = min(_BLOCK, position)
            position = source.seek(position - step)
            parts.append(source.read(step))
    tail = b"".join(reversed(parts))
    return tail[tail.rfind(b"\n") + 1 :]


def compress(source: Path, target: Path) -> None:
    """Compress `source` to `target` with zstd, completely or not at all."""
    with open_record(source) as plain, replace_file(target) as out:
        zstandard.ZstdCompressor(level=6, write_checksum=True).copy_stream(plain, out)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a temporary file, and move it to its path when it is complete and on disk."""
    if not path.parent.is_dir():  # an error that named the temporary file would confuse
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    require_replaceable(path)
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def make_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder. It is moved to the target if the block succeeds, and removed otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = LockedFolder.make(target.parent, f".{target.name}.")
    try:
        place = stage.path / target.name
        place.mkdir()
        yield place
        place.rename(target)
    except RunError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or str(stage.path) not in str(error):
            raise  # the error is about another folder
        full = cause.errno in FULL
        raise RunError(
            f"the disk is full: cannot write `{target}`"
            if full
            else f"cannot write `{target}`: {cause.strerror}",
            hint=f"nothing was left behind; {'free space' if full else 'fix this'} and run the command again",
        ) from cause
    finally:
        stage.close()


def write_whole(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically."""
    with replace_file(path) as out:
        out.write(data)


def write_all(file: int, data: bytes) -> None:
    """Write all of the data to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _unpack(path: Path, source: IO[bytes]) -> Iterator[bytes]:
    """Unpack every frame of a zstd file.

    Unlike the library's stream reader, this detects a cut last frame.
    """
    context = zstandard.ZstdDecompressor()
    frame = context.decompressobj()
    begun = False
    packed = unpacked = 0
    try:
        while data := source.read(_PACKED_STEP):
            packed += len(data)
            while data:
                begun = True
                if plain := frame.decompress(data):
                    unpacked += len(plain)
                    if unpacked > max(_FREE_RATIO, _MOST_RATIO * packed):
                        raise RunError(
                            f"`{path}` unpacks to more than {_MOST_RATIO:,} times its size", hint=_DAMAGED
                        )
                    yield plain
                data = b""
                if frame.eof:
                    data, begun, frame = frame.unused_data, False, context.decompressobj()
    except zstandard.ZstdError as error:
        raise RunError(f"`{path}` is damaged: {error}", hint=_DAMAGED) from error
    if begun:
        raise RunError(f"`{path}` is cut short", hint=_DAMAGED)
