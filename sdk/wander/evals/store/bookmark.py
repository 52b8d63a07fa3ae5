"""Files that make resuming a long run fast. None of their content is trusted, and all of them may be missing.

- `examples.sha256`: the concatenated digests of the examples. A resumed run compares each example with its
  digest when the example is played. The file is used only if its own digest equals the manifest's
  `task_set_sha256`.
- `bookmark.zst`: the state of the rollouts up to some length of `rollouts.jsonl`. It is used only if the
  bytes up to this length still have the recorded digest, so the rollouts remain the source of truth.

Both files are replaced by rename, and removed when the run is finished.
"""

from __future__ import annotations

import asyncio
import hashlib

import zstandard
from pydantic import ConfigDict

from wander.errors import RunError
from wander.evals.store import jsonl
from wander.evals.store.examples import DIGEST_BYTES, PAGE, PackedExamples, example_digest
from wander.evals.store.folder import ROLLOUTS, RunFolder, cannot_resume, disk_errors
from wander.handle import EnvironmentHandle, Split
from wander.types import Example, Record, Usage

EXAMPLES = "examples.sha256"
BOOKMARK = "bookmark.zst"
LONG = 10_000
"""Minimum number of rollouts for a bookmark, and minimum number of examples for storing their
digests."""


class Bookmark(Record):
    """State of a run's rollouts at one point."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    run_id: str
    length: int
    """Length in bytes of the part of `rollouts.jsonl` that the bookmark covers."""
    lines: int = 0
    sha256: str = ""
    """Digest of the covered bytes."""
    state: bytes
    """One byte of state per rollout, in the order of the manifest."""
    scored: int
    reward_sum: float
    usage: Usage
    """Tokens of all rollouts."""
    spent: Usage
    """Tokens that the run had taken from its model."""
    answers: int = 0
    """Number of model calls whose answers are in these rollouts."""


class BookmarkFile:
    """The bookmark of a run, stored next to its rollouts."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._path = folder.path / BOOKMARK
        self._start()

    def _start(self) -> None:
        self._length = self._lines = 0
        """Length and number of lines of the rollouts that the digest covers."""
        self._digest = hashlib.sha256()

    def read(self) -> Bookmark | None:
        """Return the bookmark, or None if it is missing or does not match the rollouts."""
        try:
            mark = jsonl.parse_record(Bookmark, jsonl.read_packed(self._path))
        except (FileNotFoundError, RunError, ValueError):
            return None
        if mark.run_id == self._folder.manifest.run_id and self._advance(mark.length) == mark.sha256:
            return mark
        self._start()
        return None

    def write(self, mark: Bookmark) -> None:
        """Replace the bookmark with a bookmark that covers at least the same bytes."""
        with disk_errors(self._folder.path):
            sha256 = self._advance(mark.length)
            complete_mark = mark.model_copy(update={"sha256": sha256, "lines": self._lines})
            jsonl.write_whole(self._path, zstandard.compress(complete_mark.model_dump_json().encode(), 1))

    def remove(self) -> None:
        """Remove the files that help to resume a run, because the run is finished."""
        with disk_errors(self._folder.path):
            self._path.unlink(missing_ok=True)
            (self._folder.path / EXAMPLES).unlink(missing_ok=True)

    def _advance(self, length: int) -> str | None:
        """Return the digest of the first `length` bytes of the rollouts, or None if there are fewer."""
        try:
            with jsonl.open_record(self._folder.path / ROLLOUTS) as rollouts:
                rollouts.seek(self._length)
                while block := rollouts.read(min(1 << 20, length - self._length)):
                    self._digest.update(block)
                    self._lines += block.count(b"\n")
                    self._length += len(block)
        except FileNotFoundError:
            return None
        return self._digest.hexdigest() if self._length == length else None


def bookmark_of(folder: RunFolder) -> BookmarkFile | None:
    """Return a run's bookmark, or None if the run is short or plays groups of rollouts."""
    manifest = folder.manifest
    rollouts = len(manifest.example_ids) * manifest.rollouts_per_example
    return BookmarkFile(folder) if manifest.played_together == 1 and rollouts >= LONG else None


class RecordedExamples:
    """The first examples of a split, generated page by page as they are played, and compared with their
    digests.

    Raises `RunError` for a page with an example whose digest differs from the record.
    """

    def __init__(self, environment: EnvironmentHandle, split: Split, folder: RunFolder) -> None:
        self.ids = folder.manifest.example_ids
        self.strata = folder.manifest.strata
        self.task_set_sha256 = folder.manifest.task_set_sha256
        self._environment = environment
        self._split: Split = split
        self._path = folder.path
        self._page = -1
        self._examples: list[Example] = []
        self._reading = asyncio.Lock()

    async def example(self, position: int) -> Example:
        """Return the example at a position."""
        page, line = divmod(position, PAGE)
        async with self._reading:
            if page != self._page:
                start = page * PAGE
                count = min(PAGE, len(self.ids) - start)
                with jsonl.open_record(self._path / EXAMPLES) as file:
                    file.seek(start * DIGEST_BYTES)
                    digests = file.read(count * DIGEST_BYTES)
                page_examples = await self._environment.examples(self._split, start, count)
                if b"".join(map(example_digest, page_examples)) != digests:
                    raise cannot_resume(self._path, "the examples")
                self._page, self._examples = page, page_examples
            return self._examples[line]


def recorded_examples(
    environment: EnvironmentHandle, split: Split, count: int | None, folder: RunFolder
) -> RecordedExamples | None:
    """Return a run's recorded examples, if they are the first `count` of a split. Otherwise return None."""
    manifest, path = folder.manifest, folder.path / EXAMPLES
    if manifest.choice != "first" or len(manifest.example_ids) != count:
        return None
    try:
        sha256 = hashlib.sha256(jsonl.read_whole(path, DIGEST_BYTES * count)).hexdigest()
    except (FileNotFoundError, RunError):
        return None
    return RecordedExamples(environment, split, folder) if sha256 == manifest.task_set_sha256 else None


def keep_digests(examples: PackedExamples, folder: RunFolder) -> None:
    """Write the digests of the examples to the run's folder if the run is long enough to need them."""
    if len(examples) >= LONG:
        with disk_errors(folder.path):
            jsonl.write_whole(folder.path / EXAMPLES, bytes(examples.digests))
