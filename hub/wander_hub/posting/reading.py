"""Reads posted rollouts: every line is validated against the schema and the manifest, none is trusted.

Nothing here holds more than a number or two per rollout. What comes in parts must be in the manifest's order
of examples; a whole file may be in any order and hold retries, and is put in order here first.
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
from wander.wire.gate import ROLLOUT, Refused, read_record
from wander.wire.postings import MAX_CHUNK_ROLLOUTS

from wander_hub.http.problems import HubProblem
from wander_hub.runs.chunks import message_text
from wander_hub.runs.manifest import PinnedRun
from wander_hub.storage import CHUNK

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW = 128 * 1024 * 1024
"""Memory that unpacking a frame may take; more would need a frame that says so, made to hurt."""
_MOST_RATIO, _FREE_BYTES = 200, 64 * 1024 * 1024
"""How many times their own size rollouts may unpack to, and the bytes that they may in any case."""
_MOST_TOKENS = 2**31
_LONGEST_TOKEN = 32
"""Letters and digits of a token, on average over a text; English has 4, and hardly one has over 20."""
_MOST_SEED = 2**64
_MOST_SECONDS = 1e9
_MOST_METRICS, _LONGEST_NAMES = 1000, 20_000
_LONGEST_REASON = 1000
_MOST_LINES, _MOST_BLANK = 1_000_000, 1000
"""Lines of one file. A run of more comes in parts."""


@dataclass(frozen=True)
class Line:
    """Where the line of a rollout lies in a file."""

    offset: int
    length: int


def unpack(source: IO[bytes], plain: IO[bytes], max_bytes: int, limit: str) -> tuple[str, int]:
    """Copy plain or zstd-compressed lines; return digest and size of the plain ones.

    `limit` names what may not be over `max_bytes`.
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
                raise HubProblem(413, "too_large", f"{limit} over this hub's {max_bytes:,} bytes")
            if total > most or lines > _MOST_LINES:
                many = f"{_MOST_LINES:,} lines, or unpacked to over {_MOST_RATIO} times their size"
                raise HubProblem(413, "too_large", f"the rollouts have over {many}")
            digest.update(chunk)
            plain.write(chunk)
    except zstandard.ZstdError as error:
        raise HubProblem(422, "bad_rollouts", f"the rollouts cannot be decompressed: {error}") from error
    return digest.hexdigest(), total


def lines_that_count(plain: IO[bytes], pinned: PinnedRun) -> list[Line]:
    """Validate every line of a whole file; return those that count, in the manifest's order."""
    chosen: dict[int, Line] = {}
    manifest = pinned.manifest
    # Training comes back to an example after a while, and what it kept is a sample.
    ruled = manifest.kind == "evaluation"
    rule = LineRule(group_rewards=manifest.environment.info.group_rewards)
    blank = 0
    for number, (offset, line) in enumerate(_lines(plain), start=1):
        where = f"line {number}"
        if not line.strip():
            blank += 1
            if blank > _MOST_BLANK:
                raise bad_rollouts(where, f"there are over {_MOST_BLANK:,} blank lines")
            continue
        rollout = check_rollout(line, where)
        place = position_of(rollout, pinned, where)
        check_tokens(rollout, manifest, where)
        if ruled and not rule.takes(rollout.key, failed=rollout.failure is not None):
            raise bad_rollouts(where, f"a second rollout {rollout.index} of `{rollout.example_id}`")
        chosen[place] = Line(offset, len(line))
    return [chosen[place] for place in sorted(chosen)]


def rollouts_in_order(plain: IO[bytes], pinned: PinnedRun, offset: int) -> Iterator[tuple[Rollout, bytes]]:
    """Yield the rollouts of the part at an offset with their lines; refuse one that is out of order."""
    last = -1
    for number, (_, line) in enumerate(_lines(plain), start=1):
        where = f"line {number} of the part at {offset}"
        if number > MAX_CHUNK_ROLLOUTS:
            raise bad_rollouts(where, f"a part may hold {MAX_CHUNK_ROLLOUTS:,} rollouts")
        rollout = check_rollout(line, where)
        place = position_of(rollout, pinned, where)
        check_tokens(rollout, pinned.manifest, where)
        if place <= last:
            raise bad_rollouts(where, "rollouts come in the manifest's order of examples, each once")
        last = place
        yield rollout, line


def split(lines: Sequence[Line], most_bytes: int) -> Iterator[list[Line]]:
    """Yield the lines in parts of at most `MAX_CHUNK_ROLLOUTS` and about `most_bytes`."""
    part: list[Line] = []
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
    """Yield every line with the offset it begins at."""
    plain.seek(0)
    offset, number = 0, 0
    while line := plain.readline(ROLLOUT.most_bytes + 1):
        number += 1
        if len(line) > ROLLOUT.most_bytes:
            raise bad_rollouts(f"line {number}", f"a line may hold {ROLLOUT.most_bytes:,} bytes")
        yield offset, line
        offset += len(line)


def check_rollout(line: bytes, where: str) -> Rollout:
    """Return the rollout of one line or refuse it; `where` names the line."""
    try:
        rollout = read_record(Rollout, line, ROLLOUT)
    except Refused as error:
        raise bad_rollouts(where, str(error)) from error
    tokens = (rollout.usage.completion_tokens, rollout.usage.prompt_tokens)
    if not all(0 <= one < _MOST_TOKENS for one in tokens):
        raise bad_rollouts(where, "the token count is out of bounds")
    if not -_MOST_SEED < rollout.seed < _MOST_SEED:
        raise bad_rollouts(where, "the seed is out of bounds")
    if rollout.failure is None and (rollout.reward is None or not math.isfinite(rollout.reward)):
        raise bad_rollouts(where, "a rollout has a finite reward or a failure")
    if rollout.failure is not None and rollout.reward is not None:
        raise bad_rollouts(where, "a failed rollout has no reward")
    times = (rollout.seconds, rollout.scoring_seconds, *(turn.model_seconds for turn in rollout.turns))
    if not all(0 <= one < _MOST_SECONDS for one in times if math.isfinite(one)):
        raise bad_rollouts(where, "its seconds are out of bounds")
    if len(rollout.metrics) > _MOST_METRICS or sum(map(len, rollout.metrics)) > _LONGEST_NAMES:
        fault = f"it has over {_MOST_METRICS} metrics, or names of over {_LONGEST_NAMES:,} characters"
        raise bad_rollouts(where, fault)
    if any(turn.message.get("role") != "assistant" for turn in rollout.turns):
        raise bad_rollouts(where, "the message of a turn is not the model's: its role is not `assistant`")
    if len(rollout.stop_reason or "") > _LONGEST_REASON:
        raise bad_rollouts(where, f"its stop reason has over {_LONGEST_REASON:,} characters")
    return rollout


def check_tokens(rollout: Rollout, manifest: RunManifest, where: str) -> None:
    """Refuse token counts that the rollout itself contradicts, and turns over the evaluation's own limit.

    An end of the turn that one side counts and the other does not is no contradiction, and 0 says nothing.
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
            raise bad_rollouts(where, f"turn {number} states {stated:,} tokens and has {least:,} or more")
        if limit is not None and most > limit:
            fault = f"turn {number} has {most:,} tokens or more, and `max_tokens` of run.json is {limit:,}"
            raise bad_rollouts(where, fault)
        completion += max(stated, least)
        prompt += turn.usage.prompt_tokens
    said = "".join(message_text(one) for one in rollout.completion if one.get("role") == "assistant")
    completion = max(completion, _fewest_tokens(said, rollout.usage.completion_tokens))
    for label, total, least in (
        ("completion", rollout.usage.completion_tokens, completion),
        ("prompt", rollout.usage.prompt_tokens, prompt),
    ):
        if 0 < total < least:
            raise bad_rollouts(where, f"it states {total:,} {label} tokens and its turns have {least:,}")


def _fewest_tokens(text: str, stated: int) -> int:
    """Return how many tokens a text has at least; 0 where as many as stated are clearly enough."""
    if len(text) <= stated * _LONGEST_TOKEN:
        return 0
    return sum(map(str.isalnum, text)) // _LONGEST_TOKEN


def position_of(rollout: Rollout, pinned: PinnedRun, where: str) -> int:
    """Return the place of a rollout in a complete run, or refuse one that the manifest does not play."""
    place, most = pinned.positions.get(rollout.example_id), pinned.manifest.rollouts_per_example
    if place is None:
        raise bad_rollouts(where, f"the manifest has no example `{rollout.example_id[:80]}`")
    if not 0 <= rollout.index < most:
        raise bad_rollouts(where, f"index {rollout.index} is outside 0..{most - 1}")
    return place * most + rollout.index


def bad_rollouts(where: str, fault: str) -> HubProblem:
    """Return the refusal of one line."""
    line = where.split()[1]
    return HubProblem(
        422,
        "bad_rollouts",
        f"{where} of the rollouts: {fault}",
        hint="post the run folder as `wander eval` wrote it",
        errors=[{"line": int(line), "msg": fault}],
    )
