"""What stands beside a long run to go on within seconds: nothing of it is trusted, and all may be missing.

- `examples.sha256`: the digests of the examples, one after the other. Whoever resumes the run holds each
  example to its digest when it is played. Used if their own digest is the manifest's `task_set_sha256`.
- `bookmark.zst`: what the rollouts had come to up to some length of `rollouts.jsonl`. Used if these bytes
  still have the digest that it gives, so the truth stays in the rollouts.

Both are written by rename, and go when the run is finished.
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
"""Rollouts from which a run has a bookmark, and examples from which their digests are kept."""


class Bookmark(Record):
    """What the rollouts of a run had come to."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    run_id: str
    length: int
    """Bytes of `rollouts.jsonl` that it is about."""
    lines: int = 0
    sha256: str = ""
    """Digest of those bytes."""
    state: bytes
    """Of each rollout, in the manifest's order."""
    scored: int
    reward_sum: float
    usage: Usage
    """Of all rollouts."""
    spent: Usage
    """What the run had taken from its model."""
    answers: int = 0
    """Calls of its model that these rollouts hold the answers of."""


class BookmarkFile:
    """The bookmark beside a run's rollouts."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._path = folder.path / BOOKMARK
        self._start()

    def _start(self) -> None:
        self._length = self._lines = 0
        """How much of the rollouts the digest is about."""
        self._digest = hashlib.sha256()

    def read(self) -> Bookmark | None:
        """Return the bookmark; None where there is none, or none of these rollouts."""
        try:
            mark = jsonl.parse_record(Bookmark, jsonl.read_packed(self._path))
        except (FileNotFoundError, RunError, ValueError):
            return None
        if mark.run_id == self._folder.manifest.run_id and self._advance(mark.length) == mark.sha256:
            return mark
        self._start()
        return None

    def write(self, mark: Bookmark) -> None:
        """Replace the bookmark by one that is as long or longer."""
        with disk_errors(self._folder.path):
            sha256 = self._advance(mark.length)
            made = mark.model_copy(update={"sha256": sha256, "lines": self._lines})
            jsonl.write_whole(self._path, zstandard.compress(made.model_dump_json().encode(), 1))

    def remove(self) -> None:
        """Remove what helps to go on with a run; there is nothing to go on with."""
        with disk_errors(self._folder.path):
            self._path.unlink(missing_ok=True)
            (self._folder.path / EXAMPLES).unlink(missing_ok=True)

    def _advance(self, length: int) -> str | None:
        """Return the digest of so many bytes of the rollouts; None where there are fewer."""
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
    """Return the place of a run's bookmark; None for one that is short, or whose groups are played as one."""
    manifest = folder.manifest
    rollouts = len(manifest.example_ids) * manifest.rollouts_per_example
    return BookmarkFile(folder) if manifest.played_together == 1 and rollouts >= LONG else None


class RecordedExamples:
    """The first examples of a split, as a run has them on record, made a page at a time when they are played.

    Raises `RunError` for a page of which any example has another digest than the record.
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

    async def example(self, place: int) -> Example:
        """Return the example at a place."""
        page, line = divmod(place, PAGE)
        async with self._reading:
            if page != self._page:
                start = page * PAGE
                count = min(PAGE, len(self.ids) - start)
                with jsonl.open_record(self._path / EXAMPLES) as file:
                    file.seek(start * DIGEST_BYTES)
                    digests = file.read(count * DIGEST_BYTES)
                made = await self._environment.examples(self._split, start, count)
                if b"".join(map(example_digest, made)) != digests:
                    raise cannot_resume(self._path, "the examples")
                self._page, self._examples = page, made
            return self._examples[line]


def recorded_examples(
    environment: EnvironmentHandle, split: Split, count: int | None, folder: RunFolder
) -> RecordedExamples | None:
    """Return the examples that a run has on record, if they are the first so many of a split; else None."""
    manifest, path = folder.manifest, folder.path / EXAMPLES
    if manifest.choice != "first" or len(manifest.example_ids) != count:
        return None
    try:
        sha256 = hashlib.sha256(jsonl.read_whole(path, DIGEST_BYTES * count)).hexdigest()
    except (FileNotFoundError, RunError):
        return None
    return RecordedExamples(environment, split, folder) if sha256 == manifest.task_set_sha256 else None


def keep_digests(examples: PackedExamples, folder: RunFolder) -> None:
    """Write the examples' digests beside a run that is long enough to be worth it."""
    if len(examples) >= LONG:
        with disk_errors(folder.path):
            jsonl.write_whole(folder.path / EXAMPLES, bytes(examples.digests))
