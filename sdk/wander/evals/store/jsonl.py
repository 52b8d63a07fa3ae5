"""Files of one JSON object a line, plain or zstd, read as a stream; and files replaced in one step."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, TypeVar

import zstandard
from pydantic import BaseModel, ValidationError

from wander.errors import RunError

FULL = {errno.ENOSPC, errno.EDQUOT}
"""What file systems answer that have no room."""
_BLOCK = 1 << 20
_DAMAGED = "restore it from a copy, or play the run again into another folder"
_KEY_AT_START = re.compile(rb'^\{"example_id":"([^"\\]*)","index":(\d{1,9})[,}]')

Model = TypeVar("Model", bound=BaseModel)


def blocks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the plain bytes of a file in blocks, of a plain one from an offset; a `.zst` file is unpacked.

    A damaged or cut compressed file raises `RunError` where it breaks.
    """
    with path.open("rb") as source:
        if path.suffix == ".zst":
            yield from _unpack(path, source)
            return
        source.seek(offset)
        while block := source.read(_BLOCK):
            yield block


def lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield every line with its newline; the last one may lack it."""
    return split_lines(blocks(path, offset))


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading at any place, of a `.zst` file a plain copy that goes at the end."""
    if path.suffix != ".zst":
        with path.open("rb") as plain:
            yield plain
        return
    with tempfile.TemporaryFile() as copy:
        try:
            for block in blocks(path):
                copy.write(block)
            copy.seek(0)
        except OSError as error:
            if error.errno in FULL:
                error.filename = tempfile.gettempdir()
            raise
        yield copy


def split_lines(blocks: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """Yield every line with its newline, and nothing else ends one: JSON may hold a bare carriage return.

    Raises `RunError` for a line that has more than `longest` bytes, before it is held in memory.
    """
    rest: list[bytes] = []
    length = 0
    for block in blocks:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            rest.append(block[start : end + 1])
            yield b"".join(rest)
            rest.clear()
            start, length = end + 1, 0
        if start < len(block):
            rest.append(block[start:])
            length += len(block) - start
            if longest is not None and length > longest:
                raise RunError(f"a line has more than {longest:,} bytes")
    if rest:
        yield b"".join(rest)


def key_at_start(line: bytes) -> tuple[str, int] | None:
    """Return example and index of a rollout whose line begins with them, as those of `RunFolder` do.

    This needs no parse of the whole line; None where that has to find the key, or tell what is wrong.
    """
    found = _KEY_AT_START.match(line)
    try:
        return (found[1].decode(), int(found[2])) if found else None
    except UnicodeDecodeError:
        return None


def read_records(path: Path, kind: type[Model]) -> list[Model]:
    """Return a file's records, none where there is no such file.

    A last line that a kill cut short is left out; any other that is no such record raises `RunError`.
    """
    if not path.is_file():
        return []
    whole = (line for line in lines(path) if line.endswith(b"\n"))
    records = []
    for number, line in enumerate(whole, start=1):
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError as error:
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
        return kind.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        raise RunError(f"`{path}` is damaged: it is no {kind.__name__}") from error


def write_record(path: Path, record: BaseModel) -> None:
    """Replace a file's content by one record in one step."""
    write_whole(path, record.model_dump_json(indent=1).encode() + b"\n")


def tail_after_newline(path: Path) -> bytes:
    """Return what stands after the last newline of a plain file: empty in a sound one."""
    with path.open("rb") as source:
        position = source.seek(0, os.SEEK_END)
        tail = b""
        while position and b"\n" not in tail:
            step = min(_BLOCK, position)
            position = source.seek(position - step)
            tail = source.read(step) + tail
    return tail[tail.rfind(b"\n") + 1 :]


def compress(source: Path, target: Path) -> None:
    """Write `target` as the zstd form of `source`, complete or not at all."""
    with source.open("rb") as plain, replace_file(target) as out:
        zstandard.ZstdCompressor(level=6, write_checksum=True).copy_stream(plain, out)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside its place and move it there once it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def make_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that takes the target's name and place once the block has ended well, and else goes.

    Until then it lies in a locked one beside the target; those that killed processes left there go first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    stage = target.with_name(f".{target.name}.{token_hex(8)}.new")
    stage.mkdir()
    lock = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # It gets the name under which it may be removed once it is locked.
        with suppress(OSError):  # a file system without locks: nobody removes it either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stage = stage.rename(stage.with_suffix(".tmp"))
        place = stage / target.name
        place.mkdir()
        yield place
        place.rename(target)
    except RunError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or str(stage) not in str(error):
            raise  # it is not what is written here that could not be
        full = cause.errno in FULL
        raise RunError(
            f"the disk is full: cannot write `{target}`"
            if full
            else f"cannot write `{target}`: {cause.strerror}",
            hint=f"nothing of it was left; {'free space' if full else 'mend that'} and run the command again",
        ) from cause
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(lock)


def _remove_left(target: Path) -> None:
    """Remove what processes that were killed while they made a target have left beside it."""
    left = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for path in target.parent.iterdir():
        # Gone meanwhile, in use, no folder, or on a file system without locks.
        with suppress(OSError), ExitStack() as stack:
            if left.fullmatch(path.name):
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


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
    try:
        while data := source.read(_BLOCK):
            while data:
                begun = True
                if plain := frame.decompress(data):
                    yield plain
                data = b""
                if frame.eof:
                    data, begun, frame = frame.unused_data, False, context.decompressobj()
    except zstandard.ZstdError as error:
        raise RunError(f"`{path}` is damaged: {error}", hint=_DAMAGED) from error
    if begun:
        raise RunError(f"`{path}` is cut short", hint=_DAMAGED)
