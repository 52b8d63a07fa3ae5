"""Stored chunks of rollouts. Each chunk is one object of zstd frames: first the rollouts, then their rows for
lists.

    frames of about 128 KiB of rollout lines | frames of at most 128 rows, one JSON array per line

Reading one rollout of a million therefore takes two small range reads, and neither lists nor aggregates
decompress transcripts. A chunk has the content of one request and is never rewritten.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol, cast

import zstandard
from wander.types import Rollout
from wander.wire import RolloutRow
from wander.wire.postings import line_digest

from wander_hub.database import fill
from wander_hub.runs.completions import completion_digest
from wander_hub.storage import Storage

ROWS_PER_FRAME = 128
BLOCK_BYTES = 128 * 1024
MAX_BLOCK_BYTES = 1024 * 1024 * 1024
_LEVEL = 6
_PREVIEW = 160


@dataclass
class LinePosition:
    """Position of a line: its frame in the object, and its bytes in the decompressed frame."""

    block_start: int
    block_length: int
    offset: int
    length: int


class BlockWriter:
    """Appends lines to a file of frames. The place of a line is complete after its frame is closed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._pending = io.BytesIO()
        self._open_places: list[LinePosition] = []
        self._position = 0

    def add(self, line: bytes) -> LinePosition:
        """Append a line and return its place, which is complete after the next `close`."""
        place = LinePosition(self._position, 0, self._pending.tell(), len(line))
        self._open_places.append(place)
        self._pending.write(line)
        if self._pending.tell() >= BLOCK_BYTES:
            self.close()
        return place

    def close(self) -> None:
        """Write the current frame."""
        if not self._open_places:
            return
        frame = self._compressor.compress(self._pending.getvalue())
        self._file.write(frame)
        for place in self._open_places:
            place.block_length = len(frame)
        self._position += len(frame)
        self._pending = io.BytesIO()
        self._open_places = []


def unpack(block: bytes) -> bytes:
    """Return the lines of a frame."""
    return zstandard.ZstdDecompressor().decompress(block, max_output_size=MAX_BLOCK_BYTES)


class RowFacts(NamedTuple):
    """Data of one rollout for lists and aggregates."""

    example_id: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    reward: float | None
    stop_reason: str | None
    failure: str | None
    truncated: bool
    turns: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    preview: str
    metrics: dict[str, float]
    refused: bool
    filtered: bool
    estimated: bool
    """Whether the token counts were estimated, at least in part."""
    digest: str
    """SHA-256 of the rollout's line, in base64."""
    seed: int
    """Seed of the example."""
    completion: str
    """Digest of the completion (`completions.py`), in base64."""
    own_seconds: float
    """Seconds that the rollout took, excluding its model."""
    fault: str = ""
    """Type and message of the failure; empty without a failure."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0


_REQUIRED_FACTS = len(RowFacts._fields) - len(RowFacts._field_defaults)
"""Number of facts without a default. A row leaves out the last facts that have their default."""


@dataclass(frozen=True)
class StoredRow:
    """One rollout without its messages, and the position of the whole rollout in its chunk."""

    facts: RowFacts
    place: LinePosition

    def line(self) -> bytes:
        """Return the row as a line of JSON; its place must be complete."""
        place = self.place
        where = [place.block_start, place.block_length, place.offset, place.length]
        facts = list(self.facts)
        while len(facts) > _REQUIRED_FACTS and not facts[-1]:
            facts.pop()
        return json.dumps([*facts, *where], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> StoredRow:
        """Parse the row of a line."""
        values: list[Any] = json.loads(line)
        return cls(cls.facts_of(values), LinePosition(*values[-4:]))

    @staticmethod
    def facts_of(values: list[Any]) -> RowFacts:
        """Return the facts of a row from the values of its line, which ends with the row's position."""
        return RowFacts(*values[:-4])

    def line_sha256(self) -> bytes:
        """Return the digest of the rollout's line."""
        return base64.b64decode(self.facts.digest)

    def completion_digest(self) -> bytes:
        """Return the digest of the rollout's completion."""
        return base64.b64decode(self.facts.completion)

    def bare_rollout(self) -> Rollout:
        """Return an object with the fields that aggregates read; a real rollout would take ten times as
        long."""
        facts = self.facts
        bare = _BareRollout(
            facts.example_id,
            facts.index,
            facts.reward,
            facts.stop_reason,
            _BareFailure(facts.failure) if facts.failure else None,
            facts.truncated,
            range(facts.turns),
            facts,
            facts.seconds,
            facts.metrics,
            facts.refused,
            facts.filtered,
        )
        return cast(Rollout, bare)

    def show(self, number: int) -> RolloutRow:
        """Return the row as lists show it."""
        facts = self.facts
        stop_reason = one_line(facts.stop_reason) if facts.stop_reason is not None else None
        return fill(RolloutRow, facts, number=number, stop_reason=stop_reason)


class _BareFailure(NamedTuple):
    boundary: str


class _BareRollout(NamedTuple):
    """A rollout without its messages, and with only the number of its turns."""

    example_id: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    reward: float | None
    stop_reason: str | None
    failure: _BareFailure | None
    truncated: bool
    turns: range
    usage: RowFacts
    """The facts of the row, because they have all fields of a `Usage`."""
    seconds: float
    metrics: dict[str, float]
    refused: bool
    filtered: bool


class StoredChunk(Protocol):
    """Position of a chunk and its frames."""

    object_sha256: str
    row_frames: list[list[int]]
    """Start and length of each frame of rows. The frames before the first of these contain the rollouts."""


def write_chunk(rollouts: Iterable[tuple[Rollout, bytes]], target: IO[bytes]) -> tuple[list[list[int]], int]:
    """Write rollouts with their lines as a chunk; return the frames of their rows and the number of
    rollouts."""
    writer = BlockWriter(target)
    rows = []
    for rollout, line in rollouts:
        whole = line if line.endswith(b"\n") else line + b"\n"
        rows.append(StoredRow(_facts(rollout, line), writer.add(whole)))
    writer.close()
    frames = []
    for start in range(0, len(rows), ROWS_PER_FRAME):
        places = [writer.add(row.line()) for row in rows[start : start + ROWS_PER_FRAME]]
        writer.close()
        frames.append([places[0].block_start, places[0].block_length])
    return frames, len(rows)


def stored_size(chunk: StoredChunk) -> int:
    """Return the size of a chunk's object, which ends with its rows."""
    return sum(chunk.row_frames[-1]) if chunk.row_frames else 0


def rows_of(storage: Storage, chunk: StoredChunk) -> Iterator[StoredRow]:
    """Yield all rows of a chunk."""
    for lines in read_frames(storage, chunk):
        yield from map(StoredRow.parse, lines)


def read_frames(storage: Storage, chunk: StoredChunk) -> Iterator[list[bytes]]:
    """Yield the row lines of each frame, with one range read, because object stores take long to answer."""
    if not chunk.row_frames:
        return
    begin = chunk.row_frames[0][0]
    frames = storage.read(chunk.object_sha256, begin, stored_size(chunk) - begin)
    for start, length in chunk.row_frames:
        yield unpack(frames[start - begin : start - begin + length]).split(b"\n")[:-1]


def row_lines(storage: Storage, chunk: StoredChunk, number: int) -> list[bytes]:
    """Return the row lines of one frame. Every frame except the last has `ROWS_PER_FRAME` rows."""
    start, length = chunk.row_frames[number]
    return unpack(storage.read(chunk.object_sha256, start, length)).split(b"\n")[:-1]


def rollout_at(storage: Storage, chunk: StoredChunk, index: int) -> bytes:
    """Return the line of the rollout at an index of a chunk, with two range reads."""
    frame, line = divmod(index, ROWS_PER_FRAME)
    where = StoredRow.parse(row_lines(storage, chunk, frame)[line]).place
    block = unpack(storage.read(chunk.object_sha256, where.block_start, where.block_length))
    return block[where.offset : where.offset + where.length]


def lines_of(storage: Storage, chunk: StoredChunk) -> Iterator[bytes]:
    """Yield the rollout lines of a chunk, one block at a time."""
    blocks = {(row.place.block_start, row.place.block_length) for row in rows_of(storage, chunk)}
    for start, length in sorted(blocks):
        yield unpack(storage.read(chunk.object_sha256, start, length))


def _facts(rollout: Rollout, line: bytes) -> RowFacts:
    return RowFacts(
        **dict(rollout.usage),
        example_id=rollout.example_id,
        index=rollout.index,
        reward=rollout.reward,
        stop_reason=rollout.stop_reason,
        failure=rollout.failure.boundary if rollout.failure else None,
        truncated=rollout.truncated,
        turns=len(rollout.turns),
        seconds=rollout.seconds,
        preview=preview_of(rollout),
        metrics=rollout.metrics,
        refused=rollout.refused,
        filtered=rollout.filtered,
        digest=base64.b64encode(line_digest(line)).decode(),
        seed=rollout.seed,
        completion=base64.b64encode(completion_digest(rollout)).decode(),
        own_seconds=round(max(0.0, rollout.seconds - sum(turn.model_seconds for turn in rollout.turns)), 3),
        fault=one_line(f"{rollout.failure.type}: {rollout.failure.message}") if rollout.failure else "",
    )


def preview_of(rollout: Rollout) -> str:
    """Return the start of the last assistant message, on one line and without control characters."""
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            return one_line(message_text(message))
    return ""


def one_line(text: str) -> str:
    """Return the start of a text, on one line and without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())[:_PREVIEW]


def transcript_of(line: bytes) -> Iterator[str]:
    """Yield all texts of a rollout, including reasoning and tool calls."""
    rollout = json.loads(line)
    for message in (*rollout["prompt"], *rollout.get("completion", ())):
        yield message_text(message)
        yield str(message.get("reasoning_content") or "")
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict):
                yield from call_text(call)


def message_text(message: dict[str, object]) -> str:
    """Return the text of a message, or of its text parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def call_text(call: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the arguments of a tool call, as the model wrote them."""
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(function.get("name", "?")), text
