"""The run folder: `run.json`, `rollouts.jsonl` (zstd when finished), `summary.json`.

What a crash can cost: each rollout is appended with one `write` of one full line, so a killed process loses
nothing that was appended, and a power failure loses at most the last second (`sync_seconds`). A line that was
cut short is detected when the folder is opened, and described in `RunFolder.torn`. Resuming moves it to
`rollouts.torn`, so that nothing is dropped silently.

A resumed run plays failed rollouts again and appends the results, so several lines may have the same key. The
last of them counts (`wander.evals.store.lines` implements this rule), and `RunFolder.rollouts` yields exactly
one rollout per key.

If both forms exist, `rollouts.jsonl` takes precedence: compressing and unpacking write the new form
completely (temporary file, then rename) before they remove the old one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Any

from pydantic import ValidationError

from wander.errors import RunError, did_you_mean, name_option
from wander.evals.store import jsonl
from wander.evals.store.examples import RolloutOrder
from wander.evals.store.lines import LineRule
from wander.evals.store.manifest import differences_in_words, find_differing_pins
from wander.system.plain_files import open_to_append, walk_plain
from wander.types import Failure, Rollout, first_fault
from wander.wire import RunManifest, RunSummary

MANIFEST = "run.json"
ROLLOUTS = "rollouts.jsonl"
COMPRESSED = "rollouts.jsonl.zst"
SUMMARY = "summary.json"
TORN = "rollouts.torn"
_MOST_PLACES = 10_000_000
"""Number of rollouts with memory reserved in advance, regardless of the manifest."""
_MOST_TOKENS = 2**53
"""Maximum number of tokens of a rollout. Sums of numbers with thousands of digits cannot be printed."""
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
"""Error codes of file systems without locks. A run there works without a lock."""


def run_to_resume(path: Path | None, *, resume: bool) -> RunFolder | None:
    """Return the run to resume, or None if `resume` is false or the folder does not contain a run."""
    return RunFolder.open(path) if resume and path is not None and (path / MANIFEST).exists() else None


def run_folder(path: Path | None, manifest: RunManifest, begun: RunFolder | None) -> RunFolder | None:
    """Return the folder for a run: a new folder, or the begun one. Returns None without a path.

    Raises `RunError` if the pins of the begun run differ from the manifest.
    """
    if path is None:
        return None
    if begun is None:
        return RunFolder.create(path, manifest)
    if differing := find_differing_pins(begun.manifest, manifest):
        raise cannot_resume(path, differences_in_words(differing))
    return begun


def cannot_resume(path: Path, differing: str) -> RunError:
    """Return the error for a run whose pins have changed since it began."""
    return RunError(
        f"`{path}` cannot be resumed: changed since it began: {differing}",
        hint="start a new run in another folder",
    )


class LineIndex:
    """Offset and length of the last line of each rollout in the record."""

    def __init__(self, folder: RunFolder) -> None:
        self._order = RolloutOrder(folder.manifest.example_ids, folder.manifest.rollouts_per_example)
        count = min(len(self._order), _MOST_PLACES)
        self._starts, self._lengths = array("q", [-1]) * count, array("I", [0]) * count
        self._others: dict[tuple[str, int], tuple[int, int]] = {}
        """Rollouts that the manifest does not list, as in training."""
        self.has_repeats = False
        start = 0
        for number, line in folder._lines():
            key = folder._key(number, line)
            place = self._order.find(key)
            if place is None or place >= count:
                self.has_repeats |= self._others.pop(key, None) is not None
                self._others[key] = start, len(line)
            else:
                self.has_repeats |= self._lengths[place] > 0
                self._starts[place], self._lengths[place] = start, len(line)
            start += len(line)

    def is_last(self, key: tuple[str, int], start: int) -> bool:
        """Return whether the last line of a rollout starts at this offset."""
        place = self._order.find(key)
        if place is None or place >= len(self._starts):
            return self._others.get(key, (-1, 0))[0] == start
        return self._starts[place] == start

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield the offset and length of each line in manifest order, then unlisted rollouts by index."""
        yield from ((start, size) for start, size in zip(self._starts, self._lengths, strict=True) if size)
        yield from (line for _, line in sorted(self._others.items(), key=lambda item: item[0][1]))


class LinesInOrder:
    """The last line of each recorded rollout in manifest order. Keeps two numbers per rollout in memory."""

    def __init__(self, folder: RunFolder, plain: IO[bytes]) -> None:
        self._folder = folder
        self._plain = plain
        index = LineIndex(folder)
        self.has_repeats = index.has_repeats
        self._starts = array("q", (start for start, _ in index.in_order()))
        self._lengths = array("I", (size for _, size in index.in_order()))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Rollout:
        return self._record(number)[0]

    def __iter__(self) -> Iterator[Rollout]:
        return map(self.__getitem__, range(len(self)))

    def records(self) -> Iterator[tuple[Rollout, bytes]]:
        """Yield each rollout with the bytes of its line."""
        return map(self._record, range(len(self)))

    def _record(self, number: int) -> tuple[Rollout, bytes]:
        self._plain.seek(self._starts[number])
        line = self._plain.read(self._lengths[number])
        rollout = self._folder._parse(f"of rollout {number}", line)
        if jsonl.key_at_start(line) not in (None, rollout.key):
            raise RunError(f"the line of rollout {number} of `{self._folder.path}` contains its key twice")
        return rollout, line


class RunFolder:
    """A run on disk. Call `create` for a new run, or `open` to read or resume one."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.manifest = manifest
        self.torn: str | None = None
        """Description of a line that a crash cut short, or None if the folder is intact."""
        self.sync_seconds: float | None = 1.0
        """Maximum time in seconds between an append and its sync to disk. None leaves `sync` to the
        caller."""
        self._file: int | None = None
        self._lock: int | None = None
        self._synced_at = 0.0
        self._dirty = False

    @classmethod
    def create(cls, path: Path, manifest: RunManifest) -> RunFolder:
        """Create the folder of a new run and write its manifest.

        Raises `RunError` if it already contains a run.
        """
        if (path / MANIFEST).exists() or _rollouts_file(path) is not None:
            raise RunError(
                f"`{path}` already contains a run",
                hint="choose another folder, or resume that run with " + name_option("resume"),
            )
        folder = cls(path, manifest)
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        folder._take_lock()
        try:
            folder.change_manifest()
            folder._open_for_append()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run for reading. `resume` or the first `append` makes it writable.

        The folder is not trusted. Raises `RunError` if its manifest cannot be read.
        """
        try:
            text = jsonl.read_whole(path / MANIFEST)
        except FileNotFoundError:
            siblings = {
                manifest_path.parent.name: str(manifest_path.parent)
                for manifest_path in sorted(path.parent.glob(f"*/{MANIFEST}"))
            }
            hint = did_you_mean(path.name, siblings, shown=siblings)
            raise RunError(
                f"`{path}` is not a run folder: `{MANIFEST}` is missing",
                hint=hint or "pass the folder that `wander eval` printed",
            ) from None
        try:
            manifest = jsonl.parse_record(RunManifest, text)
        except ValueError as error:
            raise RunError(f"`{path / MANIFEST}` is not a run manifest: {_first_problem(error)}") from error
        folder = cls(path, manifest)
        folder.torn = folder._describe_torn_line()
        return folder

    def resume(self) -> None:
        """Prepare an existing folder for appending: lock it, unpack it, and move a torn last line aside."""
        if self._file is not None:
            return
        self._take_lock()
        plain, compressed = self.path / ROLLOUTS, self.path / COMPRESSED
        with disk_errors(self.path):
            if not plain.exists() and compressed.exists():
                with jsonl.replace_file(plain) as out:
                    jsonl.unpack(compressed, out)
            compressed.unlink(missing_ok=True)
        self._open_for_append()
        self._set_torn_line_aside()

    def append(self, rollout: Rollout) -> Rollout:
        """Append a finished rollout as one line with one write, and return the recorded rollout.

        This is the rollout itself, unless its content cannot be JSON (an object in `info`, NaN in a metric).
        In that case a failed rollout that explains the problem is recorded. If the disk is full, the partial
        line is removed, so that everything before it stays readable.
        """
        rollout, line = _recordable(rollout)
        self.append_line(line)
        return rollout

    def append_line(self, line: bytes) -> None:
        """Append the line of a rollout, including its newline, as `append` writes it."""
        if self._file is None:
            self.resume()
        file = self._file
        assert file is not None
        before = os.fstat(file).st_size
        with disk_errors(self.path):
            try:
                jsonl.write_all(file, line)
            except OSError:
                os.ftruncate(file, before)
                raise
        self._dirty = True
        if self.sync_seconds is not None and monotonic() - self._synced_at >= self.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Force appended lines to the disk, unless they already are there."""
        if self._file is not None and self._dirty:
            self._dirty = False
            self._synced_at = monotonic()
            with disk_errors(self.path):
                os.fsync(self._file)

    def rollouts(self) -> Iterator[Rollout]:
        """Yield one rollout per key in file order. The last line of a key counts."""
        return (rollout for rollout, _ in self.records())

    def records(self) -> Iterator[tuple[Rollout, bytes]]:
        """Yield one rollout per key, with its line, in file order.

        Reads the file twice and keeps two numbers per rollout. Raises `RunError` with the line number if a
        line is not a rollout, or repeats a rollout that had not failed. `torn` describes a torn last line.
        """
        index = LineIndex(self)
        # Training repeats examples after a while, and records only a sample of the rollouts.
        is_ruled = index.has_repeats and self.manifest.kind == "evaluation"
        rule = LineRule(group_rewards=self.manifest.environment.info.group_rewards)
        start = 0
        for number, line in self._lines():
            rollout = self._parse(number, line)
            counts = index.is_last(rollout.key, start)
            if not counts and index.is_last(jsonl.key_at_start(line) or rollout.key, start):
                raise RunError(f"line {number} of `{_rollouts_file(self.path)}` contains its key twice")
            if is_ruled and not rule.takes(rollout.key, failed=rollout.failure is not None):
                raise self.repeats(number)
            if counts:
                yield rollout, line
            start += len(line)

    def rollouts_in_order(self) -> Iterator[Rollout]:
        """Yield the rollouts in manifest order, then unlisted rollouts by index."""
        with self.in_order() as lines:
            yield from lines

    @contextmanager
    def in_order(self) -> Iterator[LinesInOrder]:
        """Open the rollouts in manifest order for access by number."""
        file = _rollouts_file(self.path)
        with jsonl.open_plain(file) if file is not None else TemporaryFile() as plain:
            lines = LinesInOrder(self, plain)
            if lines.has_repeats:
                for _ in self.records():  # raises an error for repetitions that are not allowed
                    pass
            yield lines

    def every_line(self, offset: int = 0, before: int = 0) -> Iterator[tuple[int, Rollout]]:
        """Yield the rollout of each line with the line number, including superseded lines.

        `offset` is the first byte to read in an unpacked record, and `before` the number of lines
        before it.
        """
        return ((number, self._parse(number, line)) for number, line in self._lines(offset, before))

    def repeats(self, number: int) -> RunError:
        """Return the error for a line that repeats a rollout without a failure."""
        return RunError(
            f"line {number} of `{_rollouts_file(self.path)}` repeats a rollout that had not failed",
            hint="delete this line: a rollout may be repeated only after a failure",
        )

    def keys_done(self) -> set[tuple[str, int]]:
        """Return the (example, index) keys of the rollouts that did not fail."""
        return {rollout.key for rollout in self.rollouts() if rollout.failure is None}

    def count_done(self, most: int = jsonl.MOST_LIST_BYTES) -> int | None:
        """Return the number of rollouts that did not fail, or None if the record exceeds `most` bytes."""
        is_done: dict[tuple[str, int], bool] = {}
        size = 0
        for number, line in self._lines():
            size += len(line)
            if size > most:
                return None
            rollout = self._parse(number, line)
            is_done[rollout.key] = rollout.failure is None
        return sum(is_done.values())

    def finish(self, summary: RunSummary, *, ended_at: datetime | None = None) -> None:
        """Close a complete run: write summary and end time, and compress the rollouts, each by rename."""
        self.sync()
        self.write_summary(summary)  # first, so that a run with an end time never has an outdated summary
        self.change_manifest(ended_at=ended_at or datetime.now(UTC))
        with disk_errors(self.path):
            jsonl.compress(self.path / ROLLOUTS, self.path / COMPRESSED)
            (self.path / ROLLOUTS).unlink()
        self.close()

    def change_manifest(self, **fields: Any) -> None:
        """Change fields of the manifest, and replace its file by rename."""
        self.manifest = self.manifest.model_copy(update=fields)
        plain = self.manifest.model_dump(mode="json", by_alias=True)
        # Written in pieces, because the manifest of a million examples has a million lines.
        pieces = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).iterencode(plain)
        with disk_errors(self.path), jsonl.replace_file(self.path / MANIFEST) as out:
            for piece in pieces:
                out.write(piece.encode())
            out.write(b"\n")

    def plain_bytes(self) -> int:
        """Return the length of `rollouts.jsonl` in bytes, including everything that was appended."""
        self.sync()
        with disk_errors(self.path):
            return (self.path / ROLLOUTS).stat().st_size

    def cut(self, length: int) -> None:
        """Truncate `rollouts.jsonl` to an earlier length. The run plays the removed rollouts again.

        Raises `RunError` if the file is shorter.
        """
        self.resume()
        assert self._file is not None
        with disk_errors(self.path):
            size = os.fstat(self._file).st_size
            if size < length:
                raise RunError(
                    f"`{self.path / ROLLOUTS}` has {size:,} bytes, but had {length:,} at the checkpoint",
                    hint="restore the file, or continue from an older checkpoint with `--checkpoint STEP`",
                )
            os.ftruncate(self._file, length)

    def write_summary(self, summary: RunSummary) -> None:
        """Write the aggregates to `summary.json`, by rename."""
        with disk_errors(self.path):
            jsonl.write_whole(self.path / SUMMARY, summary.model_dump_json(indent=2).encode() + b"\n")

    def summary(self) -> RunSummary | None:
        """Return the stored aggregates, or None without a summary."""
        try:
            summary = jsonl.parse_record(RunSummary, jsonl.read_whole(self.path / SUMMARY))
            json.dumps(summary.model_dump(), allow_nan=False)
            return summary
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(
                f"`{self.path / SUMMARY}` is not a summary: {_first_problem(error)}",
                hint="delete this file: it can be computed again from the rollouts",
            ) from error

    def close(self) -> None:
        """Sync and release the file and the lock. May be called repeatedly."""
        try:
            self.sync()
        finally:
            for descriptor in (self._file, self._lock):
                if descriptor is not None:
                    os.close(descriptor)
            self._file = self._lock = None

    def _take_lock(self) -> None:
        """Lock the folder against other processes. The lock ends with this process, even if it is killed.

        Raises `RunError` for a folder with links or devices that would redirect a write.
        """
        require_plain_folder(self.path)
        with disk_errors(self.path):
            lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunError(
                f"another process is writing `{self.path}`",
                hint="wait until it exits, or stop it, then resume",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(lock)
                raise RunError(f"cannot lock `{self.path}`: {error.strerror}") from error
        self._lock = lock

    def _open_for_append(self) -> None:
        with disk_errors(self.path):
            self._file = open_to_append(self.path / ROLLOUTS)
        self._synced_at = monotonic()

    def _lines(self, offset: int = 0, before: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (line number from 1, line), without a torn last line."""
        file = _rollouts_file(self.path)
        if file is None:
            return
        for number, line in enumerate(jsonl.lines(file, offset), start=before + 1):
            if line.endswith(b"\n") or _is_rollout(line):
                yield number, line

    def _key(self, number: int, line: bytes) -> tuple[str, int]:
        return jsonl.key_at_start(line) or self._parse(number, line).key

    def _parse(self, number: int | str, line: bytes) -> Rollout:
        try:
            rollout = jsonl.parse_record(Rollout, line)
            for usage in (rollout.usage, *(turn.usage for turn in rollout.turns)):
                if max(usage.prompt_tokens, usage.completion_tokens) > _MOST_TOKENS:
                    raise ValueError(f"it reports more than {_MOST_TOKENS:,} tokens")
            return rollout
        except ValueError as error:
            raise RunError(
                f"line {number} of `{_rollouts_file(self.path)}` is not a rollout: {_first_problem(error)}",
                hint="delete this line; resuming the run plays its rollout again",
            ) from error

    def _torn_line(self) -> bytes:
        """Return the bytes after the last newline, or nothing if they are a complete rollout."""
        try:
            tail = jsonl.tail_after_newline(self.path / ROLLOUTS)
        except FileNotFoundError:
            return b""
        return b"" if _is_rollout(tail) else tail

    def _describe_torn_line(self) -> str | None:
        tail = self._torn_line()
        if not tail:
            return None
        return f"the last line of `{ROLLOUTS}` was cut short after {len(tail)} bytes; its rollout is missing"

    def _set_torn_line_aside(self) -> None:
        assert self._file is not None
        tail = self._torn_line()
        self.torn = self._describe_torn_line()
        size = os.fstat(self._file).st_size
        with disk_errors(self.path):
            if tail:
                with os.fdopen(open_to_append(self.path / TORN), "ab") as kept:
                    kept.write(tail + b"\n")
                    os.fsync(kept.fileno())
                os.ftruncate(self._file, size - len(tail))
            elif size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # the line is complete, only its newline was lost


def _rollouts_file(path: Path) -> Path | None:
    return next((path / name for name in (ROLLOUTS, COMPRESSED) if os.path.lexists(path / name)), None)


def require_plain_folder(path: Path) -> None:
    """Raise `RunError` if a folder contains links or devices, because writes could follow them."""
    with jsonl.refuse_unsafe():
        for _ in walk_plain(path):
            pass


def unrecordable(rollout: Rollout) -> str | None:
    """Return a description of the first number that JSON cannot represent, or None."""
    if rollout.reward is not None and not isfinite(rollout.reward):
        return f"its reward is {rollout.reward}"
    broken = next((name for name, value in rollout.metrics.items() if not isfinite(value)), None)
    return None if broken is None else f"its metric `{broken}` is {rollout.metrics[broken]}"


def _recordable(rollout: Rollout) -> tuple[Rollout, bytes]:
    """Return the rollout and its line. If the line would be unreadable, return a failed rollout instead."""
    problem = unrecordable(rollout)
    if problem is None:
        try:
            return rollout, rollout.model_dump_json().encode() + b"\n"
        except ValueError as error:  # pydantic's serialization error, or a lone surrogate
            problem = f"its content cannot be written as JSON: {error}"
    failed = Rollout(
        example_id=rollout.example_id,
        index=rollout.index,
        seed=rollout.seed,
        prompt=[],
        completion=[],
        failure=Failure(boundary="environment", type="UnrecordableRollout", message=problem),
        usage=rollout.usage,
        started_at=rollout.started_at,
        seconds=rollout.seconds,
    )
    return failed, failed.model_dump_json().encode() + b"\n"


def _is_rollout(line: bytes) -> bool:
    if not line:
        return False
    try:
        jsonl.parse_record(Rollout, line)
    except ValueError:
        return False
    return True


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert an operating-system error to a `RunError` that says what is kept."""
    try:
        yield
    except OSError as error:
        kept = f"rollouts appended so far are kept in `{path}`; resume with " + name_option("resume")
        hint = kept if _rollouts_file(path) else "choose another folder"
        if error.errno in jsonl.FULL:
            raise RunError(
                f"the disk is full: cannot write to `{path}`", hint="free space; " + hint
            ) from error
        raise RunError(f"cannot write to `{path}`: {error.strerror}", hint=hint) from error


def _first_problem(error: ValueError) -> str:
    return ": ".join(filter(None, first_fault(error))) if isinstance(error, ValidationError) else str(error)
