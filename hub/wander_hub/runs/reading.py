"""Reads posted rollouts: every line is validated against the schema and the manifest, none is trusted.

Two passes, neither of which holds more than a number or two per rollout. The first validates every line and
settles which line speaks for each (example, index); the second writes those lines in the manifest's order
into blocks and computes the aggregates.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import zstandard
from pydantic import ValidationError
from wander.evals.lines import LineRule
from wander.evals.statistics import summarise
from wander.types import Rollout
from wander.wire import RunManifest

from wander_hub.problems import HubProblem
from wander_hub.runs.blocks import BlockWriter
from wander_hub.runs.schemas import RolloutLine, StoredRollouts
from wander_hub.storage import CHUNK

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_LINE = 64 * 1024 * 1024
_PREVIEW = 160
_MOST_TOKENS = 2**31


@dataclass(frozen=True)
class _Candidate:
    """The line that speaks for one (example, index) so far."""

    offset: int
    length: int


def store_rollouts(
    source: BinaryIO | None, manifest: RunManifest, target: BinaryIO, *, max_bytes: int
) -> StoredRollouts:
    """Validate the lines of `source`, write them as blocks to `target`, return rows and aggregates."""
    with tempfile.TemporaryFile() as plain:
        digest = _copy_plain(source, plain, max_bytes)
        candidates = _candidates(plain, manifest)
        writer, rows = BlockWriter(target), list[RolloutLine]()

        def ordered() -> Iterator[Rollout]:
            for candidate in candidates:
                plain.seek(candidate.offset)
                line = plain.read(candidate.length)
                rollout = Rollout.model_validate_json(line)
                rows.append(_row(rollout, writer, line))
                yield rollout

        summary = summarise(ordered(), expected=manifest.expected_rollouts)
        writer.close()
    return StoredRollouts(rows, summary, digest)


def checked_rollout(line: bytes, number: int) -> Rollout:
    """Return the rollout of one line or refuse it with the line's number."""
    try:
        rollout = Rollout.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise bad_rollouts(number, f"{where}: {first['msg']}" if where else str(first["msg"])) from error
    numbers = [*rollout.metrics.values(), rollout.seconds, rollout.scoring_seconds]
    if not all(math.isfinite(one) for one in numbers):
        raise bad_rollouts(number, "metrics and times must be finite numbers")
    if not 0 <= rollout.usage.completion_tokens < _MOST_TOKENS:
        raise bad_rollouts(number, "the token count is out of bounds")
    if rollout.failure is None and (rollout.reward is None or not math.isfinite(rollout.reward)):
        raise bad_rollouts(number, "a rollout has a finite reward or a failure")
    if rollout.failure is not None and rollout.reward is not None:
        raise bad_rollouts(number, "a failed rollout has no reward")
    return rollout


def bad_rollouts(number: int, fault: str) -> HubProblem:
    """Return the refusal of one line."""
    return HubProblem(
        422,
        "bad_rollouts",
        f"line {number} of the rollouts: {fault}",
        hint="post the run folder as `wander eval` wrote it",
        errors=[{"line": number, "msg": fault}],
    )


def _copy_plain(source: BinaryIO | None, plain: BinaryIO, max_bytes: int) -> str:
    digest, total = hashlib.sha256(), 0
    if source is None:
        return digest.hexdigest()
    source.seek(0)
    packed = source.read(len(_ZSTD_MAGIC)) == _ZSTD_MAGIC
    source.seek(0)
    try:
        reader = (
            zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) if packed else source
        )
        while chunk := reader.read(CHUNK):
            total += len(chunk)
            if total > max_bytes:
                raise HubProblem(413, "too_large", f"the rollouts are over this hub's {max_bytes:,} bytes")
            digest.update(chunk)
            plain.write(chunk)
    except zstandard.ZstdError as error:
        raise HubProblem(422, "bad_rollouts", f"the rollouts cannot be decompressed: {error}") from error
    return digest.hexdigest()


def _candidates(plain: BinaryIO, manifest: RunManifest) -> list[_Candidate]:
    """Return the line of each rollout, in the manifest's order; a retry replaces only what failed."""
    position = {example: place for place, example in enumerate(manifest.example_ids)}
    chosen: dict[tuple[int, int], _Candidate] = {}
    rule = LineRule(group_rewards=manifest.environment.info.group_rewards)
    plain.seek(0)
    offset, number = 0, 0
    while line := plain.readline(_MAX_LINE + 1):
        number += 1
        if len(line) > _MAX_LINE:
            raise bad_rollouts(number, f"a line may hold {_MAX_LINE:,} bytes")
        if line.strip():
            rollout = checked_rollout(line, number)
            key = _key(rollout, position, manifest, number)
            if not rule.takes(rollout.key, failed=rollout.failure is not None):
                raise bad_rollouts(number, f"a second rollout {rollout.index} of `{rollout.example_id}`")
            chosen[key] = _Candidate(offset, len(line))
        offset += len(line)
    return [chosen[key] for key in sorted(chosen)]


def _key(rollout: Rollout, position: dict[str, int], manifest: RunManifest, number: int) -> tuple[int, int]:
    place = position.get(rollout.example_id)
    if place is None:
        raise bad_rollouts(number, f"the manifest has no example `{rollout.example_id[:80]}`")
    if not 0 <= rollout.index < manifest.rollouts_per_example:
        raise bad_rollouts(number, f"index {rollout.index} is outside 0..{manifest.rollouts_per_example - 1}")
    return place, rollout.index


def _row(rollout: Rollout, writer: BlockWriter, line: bytes) -> RolloutLine:
    return RolloutLine(
        example_id=rollout.example_id,
        index=rollout.index,
        reward=rollout.reward,
        stop_reason=one_line(rollout.stop_reason) if rollout.stop_reason is not None else None,
        failure=rollout.failure.boundary if rollout.failure else None,
        truncated=rollout.truncated,
        turns=len(rollout.turns),
        completion_tokens=rollout.usage.completion_tokens,
        seconds=rollout.seconds,
        preview=preview_of(rollout),
        place=writer.add(line if line.endswith(b"\n") else line + b"\n"),
    )


def preview_of(rollout: Rollout) -> str:
    """Return the beginning of the last assistant message, on one line and without control characters."""
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            return one_line(message_text(message))
    return ""


def one_line(text: str) -> str:
    """Return the beginning of a text on one line and without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())[:_PREVIEW]


def message_text(message: dict[str, object]) -> str:
    """Return a message's text; of content parts, the text ones."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
