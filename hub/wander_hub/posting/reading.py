"""Reads posted rollouts: every line is validated against the schema and the manifest.

Only one or two numbers per rollout are kept in memory. Parts must follow the manifest's order of examples. A
whole file may be in any order and contain retries, so it is put in order here first.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import zstandard
from wander.evals.store.lines import LineRule
from wander.types import Rollout
from wander.wire import RunManifest
from wander.wire.postings import MAX_CHUNK_ROLLOUTS
from wander.wire.untrusted_text import ROLLOUT, RefusedText, read_record

from wander_hub.http.problems import HubProblem
from wander_hub.runs.chunks import message_text
from wander_hub.runs.manifest import PinnedRun
from wander_hub.storage import CHUNK

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW = 128 * 1024 * 1024
"""Maximum memory for decompressing a frame. Only a malicious frame needs more."""
_MOST_RATIO, _FREE_BYTES = 200, 64 * 1024 * 1024
"""Maximum ratio of the decompressed size to the compressed size, and the size below which any ratio is
accepted."""
_MOST_TOKENS = 2**31
_LONGEST_TOKEN = 32
"""Average length above which tokens are implausible. The average for English is 4, and tokens longer than 20
are rare."""
_MOST_SEED = 2**64
_MOST_SECONDS = 1e9
_MOST_METRICS, _LONGEST_NAMES = 1000, 20_000
_LONGEST_REASON = 1000
_MOST_LINES, _MOST_BLANK = 1_000_000, 1000
"""Maximum number of lines of one file. A longer run must be posted in parts."""


@dataclass(frozen=True)
class FilePosition:
    """Position of a rollout's line in a file."""

    offset: int
    length: int


def unpack(source: IO[bytes], plain: IO[bytes], max_bytes: int, limit: str) -> tuple[str, int]:
    """Copy plain or zstd-compressed lines; return digest and size of the plain lines.

    `limit` is the subject of the error message if they are larger than `max_bytes`.
    """
    digest, total, lines = hashlib.sha256(), 0, 0
    packed_bytes = source.seek(0, io.SEEK_END)
    source.seek(0)
    packed = source.read(len(_ZSTD_MAGIC)) == _ZSTD_MAGIC
    source.seek(0)
    most = min(max_bytes, max(_FREE_BYTES, _MOST_RATIO * packed_bytes))
    try:
        context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        reader = context.stream_reader(source, read_across_frames=True) if packed else source
        while chunk := reader.read(CHUNK):
            total, lines = total + len(chunk), lines + chunk.count(b"\n")
            if total > max_bytes:
                raise HubProblem(
                    413, "too_large", f"{limit} larger than this hub's limit of {max_bytes:,} bytes"
                )
            if total > most or lines > _MOST_LINES:
                limits = f"{_MOST_LINES:,} lines, or unpack to more than {_MOST_RATIO} times their size"
                raise HubProblem(413, "too_large", f"the rollouts have more than {limits}")
            digest.update(chunk)
            plain.write(chunk)
    except zstandard.ZstdError as error:
        raise HubProblem(422, "bad_rollouts", f"cannot decompress the rollouts: {error}") from error
    return digest.hexdigest(), total


def lines_that_count(plain: IO[bytes], pinned: PinnedRun) -> list[FilePosition]:
    """Validate every line of a whole file; return the lines to keep, in the manifest's order."""
    chosen: dict[int, FilePosition] = {}
    manifest = pinned.manifest
    # Training returns to examples later, and its stored rollouts are a sample, so the rule does not apply.
    ruled = manifest.kind == "evaluation"
    rule = LineRule(group_rewards=manifest.environment.info.group_rewards)
    blank = 0
    for number, (offset, line) in enumerate(_lines(plain), start=1):
        where = f"line {number}"
        if not line.strip():
            blank += 1
            if blank > _MOST_BLANK:
                raise bad_rollouts(where, f"the file has more than {_MOST_BLANK:,} blank lines")
            continue
        rollout = check_rollout(line, where)
        place = position_of(rollout, pinned, where)
        check_tokens(rollout, manifest, where)
        if ruled and not rule.takes(rollout.key, failed=rollout.failure is not None):
            raise bad_rollouts(where, f"it repeats rollout {rollout.index} of `{rollout.example_id}`")
        chosen[place] = FilePosition(offset, len(line))
    return [chosen[place] for place in sorted(chosen)]


def rollouts_in_order(plain: IO[bytes], pinned: PinnedRun, offset: int) -> Iterator[tuple[Rollout, bytes]]:
    """Yield the rollouts of the part at an offset, with their lines; raise if one is out of order."""
    last = -1
    for number, (_, line) in enumerate(_lines(plain), start=1):
        where = f"line {number} of the part at {offset}"
        if number > MAX_CHUNK_ROLLOUTS:
            raise bad_rollouts(where, f"a part may have at most {MAX_CHUNK_ROLLOUTS:,} rollouts")
        rollout = check_rollout(line, where)
        place = position_of(rollout, pinned, where)
        check_tokens(rollout, pinned.manifest, where)
        if place <= last:
            raise bad_rollouts(where, "rollouts must follow the manifest's order of examples, each once")
        last = place
        yield rollout, line


def split(lines: Sequence[FilePosition], most_bytes: int) -> Iterator[list[FilePosition]]:
    """Yield the lines in parts of at most `MAX_CHUNK_ROLLOUTS` and about `most_bytes`."""
    part: list[FilePosition] = []
    size = 0
    for line in lines:
        if part and (len(part) == MAX_CHUNK_ROLLOUTS or size + line.length > most_bytes):
            yield part
            part, size = [], 0
        part.append(line)
        size += line.length
    if part:
        yield part


def _lines(plain: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield every line with its offset."""
    plain.seek(0)
    offset, number = 0, 0
    while line := plain.readline(ROLLOUT.most_bytes + 1):
        number += 1
        if len(line) > ROLLOUT.most_bytes:
            raise bad_rollouts(f"line {number}", f"a line may have at most {ROLLOUT.most_bytes:,} bytes")
        yield offset, line
        offset += len(line)


def check_rollout(line: bytes, where: str) -> Rollout:
    """Return the rollout of a line; raise if it is invalid. `where` names the line in the error."""
    try:
        rollout = read_record(Rollout, line, ROLLOUT)
    except RefusedText as error:
        raise bad_rollouts(where, str(error)) from error
    tokens = (rollout.usage.completion_tokens, rollout.usage.prompt_tokens)
    if not all(0 <= count < _MOST_TOKENS for count in tokens):
        raise bad_rollouts(where, "its token count is out of range")
    parts = (rollout.usage.reasoning_tokens, rollout.usage.cached_tokens)
    if not all(0 <= part <= count for part, count in zip(parts, tokens, strict=True)):
        raise bad_rollouts(where, "it has more cached or reasoning tokens than tokens")
    if not -_MOST_SEED < rollout.seed < _MOST_SEED:
        raise bad_rollouts(where, "its seed is out of range")
    if rollout.failure is None and (rollout.reward is None or not math.isfinite(rollout.reward)):
        raise bad_rollouts(where, "a rollout must have a finite reward or a failure")
    if rollout.failure is not None and rollout.reward is not None:
        raise bad_rollouts(where, "a failed rollout must not have a reward")
    times = (rollout.seconds, rollout.scoring_seconds, *(turn.model_seconds for turn in rollout.turns))
    if not all(0 <= seconds < _MOST_SECONDS for seconds in times if math.isfinite(seconds)):
        raise bad_rollouts(where, "its seconds are out of range")
    if len(rollout.metrics) > _MOST_METRICS or sum(map(len, rollout.metrics)) > _LONGEST_NAMES:
        fault = f"it has more than {_MOST_METRICS} metrics, or {_LONGEST_NAMES:,} characters in their names"
        raise bad_rollouts(where, fault)
    if any(turn.message.get("role") != "assistant" for turn in rollout.turns):
        raise bad_rollouts(where, "the message of a turn must have the role `assistant`")
    if len(rollout.stop_reason or "") > _LONGEST_REASON:
        raise bad_rollouts(where, f"its stop reason is longer than {_LONGEST_REASON:,} characters")
    return rollout


def check_tokens(rollout: Rollout, manifest: RunManifest, where: str) -> None:
    """Raise if token counts contradict the rollout itself, or a turn exceeds the evaluation's limit.

    One token of difference per turn is accepted, because some endpoints count the end-of-turn token. A count
    of 0 means unknown.
    """
    limit = manifest.sampling.max_tokens if manifest.kind == "evaluation" else None
    completion = prompt = 0
    for number, turn in enumerate(rollout.turns, start=1):
        stated = turn.usage.completion_tokens
        least = _fewest_tokens(message_text(turn.message), stated)
        if turn.tokens is not None:
            least = max(least, len(turn.tokens.completion_ids) - 1)
        most = max(stated - 1, least)
        if 0 < stated < least:
            raise bad_rollouts(where, f"turn {number} has at least {least:,} tokens, but reports {stated:,}")
        if limit is not None and most > limit:
            fault = f"turn {number} has at least {most:,} tokens, but `max_tokens` in run.json is {limit:,}"
            raise bad_rollouts(where, fault)
        completion += max(stated, least)
        prompt += turn.usage.prompt_tokens
    scored = "".join(
        message_text(message) for message in rollout.completion if message.get("role") == "assistant"
    )
    completion = max(completion, _fewest_tokens(scored, rollout.usage.completion_tokens))
    for label, total, least in (
        ("completion", rollout.usage.completion_tokens, completion),
        ("prompt", rollout.usage.prompt_tokens, prompt),
    ):
        if 0 < total < least:
            raise bad_rollouts(
                where, f"its turns have at least {least:,} {label} tokens, but it reports {total:,}"
            )


def _fewest_tokens(text: str, stated: int) -> int:
    """Return the minimum number of tokens of a text; 0 if the stated number is clearly sufficient."""
    if len(text) <= stated * _LONGEST_TOKEN:
        return 0
    return sum(map(str.isalnum, text)) // _LONGEST_TOKEN


def position_of(rollout: Rollout, pinned: PinnedRun, where: str) -> int:
    """Return the position of a rollout in a complete run; raise if it is not part of the manifest."""
    place, most = pinned.positions.get(rollout.example_id), pinned.manifest.rollouts_per_example
    if place is None:
        raise bad_rollouts(where, f"the manifest has no example `{rollout.example_id[:80]}`")
    if not 0 <= rollout.index < most:
        raise bad_rollouts(where, f"index {rollout.index} is outside of 0..{most - 1}")
    return place * most + rollout.index


def bad_rollouts(where: str, fault: str) -> HubProblem:
    """Return the problem of an invalid line."""
    line = where.split()[1]
    return HubProblem(
        422,
        "bad_rollouts",
        f"{where} of the rollouts: {fault}",
        hint="post the run folder as `wander eval` wrote it, without changes",
        errors=[{"line": int(line), "msg": fault}],
    )
