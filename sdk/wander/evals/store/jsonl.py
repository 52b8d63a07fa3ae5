"""Files of one JSON object a line, plain or zstd, read as a stream; and files replaced in one step.

Somebody else may have made these files: every reader opens plain files only, follows no link, and bounds what
it holds in memory. A file that breaks these rules raises `RunError`.
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
from wander.system.plain_files import open_plain_file, read_plain_file
from wander.wire.postings import MAX_CHUNK_BYTES

FULL = {errno.ENOSPC, errno.EDQUOT}
"""What file systems answer that have no room."""
LONGEST_LINE = MAX_CHUNK_BYTES
"""Bytes of a line: a hub takes no longer one."""
MOST_RECORD_BYTES = 64 << 20
"""Bytes of a file that is one JSON object: the manifest of a million examples with long names has 60 MB."""
MOST_LIST_BYTES = 256 << 20
"""Bytes of a file whose records are held in memory together."""
LEFT_FREE = 256 << 20
"""Bytes of a disk that unpacking leaves to other programs."""
_MOST_NODES = 2_000_000
"""Objects, lists and keys of one JSON text. Three bytes (`[],`) become a hundred in memory."""
_MOST_RATIO = 1000
_FREE_RATIO = 256 << 20
"""Bytes that may be unpacked from any size; transcripts shrink to a tenth, records of games to 1 %."""
_PACKED_STEP = 4096
"""Bytes that are unpacked together. Each four may become 128 KiB, so a larger step could fill the memory."""
_BLOCK = 1 << 20
_DAMAGED = "restore it from a copy, or play the run again into another folder"
_KEY_AT_START = re.compile(rb'^\{"example_id":"([^"\\]*)","index":(\d{1,9})[,}]')

Model = TypeVar("Model", bound=BaseModel)


def blocks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the plain bytes of a file in blocks, of a plain one from an offset; a `.zst` file is unpacked.

    A damaged or cut compressed file raises `RunError` where it breaks.
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
    """Open a file of a run; raises `RunError` for what is not a plain file, or cannot be read."""
    with ExitStack() as stack:
        with refuse_unsafe():
            source = stack.enter_context(open_plain_file(path))
        yield source


@contextmanager
def refuse_unsafe() -> Iterator[None]:
    """Raise `RunError` for a file that is there and cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(
            f"cannot read `{error.filename}`: {error.strerror}",
            hint="a run holds plain files only: remove it, or get the run from its author again",
        ) from error


def read_whole(path: Path, most: int = MOST_RECORD_BYTES) -> bytes:
    """Return the content of a file of a run; raises `RunError` for what is not a plain file, or too large."""
    with refuse_unsafe():
        return read_plain_file(path, most)


def parse_record(kind: type[Model], text: bytes) -> Model:
    """Return the record in a JSON text; raises `ValueError` for one that is wrong or has too many parts."""
    require_few_parts(text)
    return kind.model_validate_json(text)


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object in a JSON text; raises `ValueError` for anything else, or one with too many parts."""
    require_few_parts(text)
    found = from_json(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def require_few_parts(text: bytes) -> None:
    """Raise `ValueError` for a JSON text that would fill the memory."""
    nodes = text.count(b"[") + text.count(b"{") + text.count(b'":')
    if nodes > _MOST_NODES:
        raise ValueError(f"it has more than {_MOST_NODES:,} parts")


def lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield every line with its newline; the last one may lack it.

    A line longer than `LONGEST_LINE` raises `RunError`.
    """
    try:
        yield from split_lines(blocks(path, offset), LONGEST_LINE)
    except OverflowError:
        raise RunError(f"`{path}` has a line of more than {LONGEST_LINE:,} bytes", hint=_DAMAGED) from None


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading at any place, of a `.zst` file a plain copy that goes at the end."""
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
    """Return the plain bytes of a `.zst` file; raises `RunError` for more than `most` of them."""
    content = bytearray()
    for block in blocks(path):
        content += block
        if len(content) > most:
            raise RunError(f"`{path}` unpacks to more than {most:,} bytes", hint=_DAMAGED)
    return bytes(content)


def unpack(path: Path, out: IO[bytes]) -> None:
    """Write the plain bytes of a file; raises `OSError` (ENOSPC) before they fill the disk."""
    unseen = 0
    for block in blocks(path):
        unseen += out.write(block)
        if unseen > LEFT_FREE // 4:
            unseen, disk = 0, os.fstatvfs(out.fileno())
            if disk.f_bavail * disk.f_frsize < LEFT_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def split_lines(blocks: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """Yield every line with its newline, and nothing else ends one: JSON may hold a bare carriage return.

    Raises `OverflowError` for a line of more than `longest` bytes.
    """
    rest: list[bytes] = []
    held = 0
    for block in blocks:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            rest.append(block[start : end + 1])
            yield b"".join(rest)
            rest.clear()
            held, start = 0, end + 1
        if start < len(block):
            rest.append(block[start:])
            held += len(block) - start
            if longest is not None and held > longest:
                raise OverflowError
    if rest:
        yield b"".join(rest)


def numbered_lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the bytes of every line of an open file that is not blank.

    Raises `OverflowError` that names a line of more than `LONGEST_LINE` bytes.
    """
    number = 0
    try:
        for number, line in enumerate(split_lines(iter(partial(file.read, _BLOCK), b""), LONGEST_LINE), 1):
            if line.strip():
                yield number, line
    except OverflowError:
        raise OverflowError(f"line {number + 1} of `{path}` has over {LONGEST_LINE:,} bytes") from None


def key_at_start(line: bytes) -> tuple[str, int] | None:
    """Return example and index of a rollout whose line begins with them, as those of `RunFolder` do.

    This needs no parse of the whole line; None where that has to find the key, or tell what is wrong.
    """
    found = _KEY_AT_START.match(line)
    try:
        return (found[1].decode(), int(found[2])) if found else None
    except UnicodeDecodeError:
        return None


def read_records(path: Path, kind: type[Model], most: int = MOST_LIST_BYTES) -> list[Model]:
    """Return a file's records, none where there is no such file.

    A last line that a kill cut short is left out; any other that is no such record raises `RunError`.
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
        raise RunError(f"`{path}` is damaged: line {number} is no {kind.__name__}") from error
    return records


def write_records(path: Path, records: Iterable[BaseModel]) -> None:
    """Replace a file's records in one step."""
    text = "".join(record.model_dump_json() + "\n" for record in records)
    write_whole(path, text.encode("utf-8", "replace"))


def read_record(path: Path, kind: type[Model]) -> Model | None:
    """Return the record that is a file's whole content, None where there is no such file.

    Raises `RunError` for a file that is no such record.
    """
    try:
        return parse_record(kind, read_whole(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(f"`{path}` is damaged: it is no {kind.__name__}") from error


def write_record(path: Path, record: BaseModel) -> None:
    """Replace a file's content by one record in one step."""
    write_whole(path, record.model_dump_json(indent=1).encode() + b"\n")


def tail_after_newline(path: Path) -> bytes:
    """Return what stands after the last newline of a plain file: empty in a sound one."""
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
    """Write `target` as the zstd form of `source`, complete or not at all."""
    with open_record(source) as plain, replace_file(target) as out:
        zstandard.ZstdCompressor(level=6, write_checksum=True).copy_stream(plain, out)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside its place and move it there once it is complete and on the disk."""
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
    """Yield a folder that takes the target's name and place once the block has ended well, and else goes."""
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
            raise  # it is not what is written here that could not be
        full = cause.errno in FULL
        raise RunError(
            f"the disk is full: cannot write `{target}`"
            if full
            else f"cannot write `{target}`: {cause.strerror}",
            hint=f"nothing of it was left; {'free space' if full else 'mend that'} and run the command again",
        ) from cause
    finally:
        stage.close()


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file's content in one step."""
    with replace_file(path) as out:
        out.write(data)


def write_all(file: int, data: bytes) -> None:
    """Write to a descriptor until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _unpack(path: Path, source: IO[bytes]) -> Iterator[bytes]:
    """Unpack every frame of a zstd file; unlike the library's stream reader, notice a cut last frame."""
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
