"""Digests of completions, used by boards to find runs with the same answers.

The digest of a completion covers all assistant messages of a rollout: content, reasoning and tool calls. Only
letters and digits count, without letter case, unless a message consists of nothing else. Changes to spaces
and punctuation therefore do not change the digest, but a paraphrase does.

Two runs share a completion if both have it for the same example, in any order of the example's rollouts. A
run stores the digests of at most `MOST` rollouts. For larger runs, the share is estimated from a sample: the
examples whose ids have the smallest digests, which are the same examples for all runs of a task set.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

from wander.types import Rollout

MOST = 256
"""Maximum number of rollouts of a run that are compared. The share in a sample of this size is accurate to
about 3%."""
_OTHER = re.compile(r"[\W_]+")
_DIGEST_BYTES = 9


def completion_digest(rollout: Rollout) -> bytes:
    """Return the digest of the assistant messages of a rollout."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for message in rollout.completion:
        if message.get("role") != "assistant":
            continue
        text = " ".join(
            texts_in([message.get(part) for part in ("reasoning_content", "content", "tool_calls")])
        )
        folded = unicodedata.normalize("NFKC", text).casefold()
        digest.update((_OTHER.sub("", folded) or folded).encode(errors="replace") + b"\0")
    return digest.digest()


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a message, without the ids and types of its parts and calls."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in ("id", "type", "role"):
                yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif value is not None:
        yield str(value)


class CompletionSample:
    """Collects the digests that a run stores. Rollouts must be added example by example."""

    def __init__(self, rollouts_per_example: int) -> None:
        self._most = max(1, MOST // rollouts_per_example)
        self._chosen: list[tuple[int, str, list[bytes]]] = []
        """Heap of the chosen examples, with the largest digest first."""
        self._example: str | None = None
        self._digests: list[bytes] = []

    def add(self, example_id: str, digest: bytes) -> None:
        """Add the digest of the next rollout's completion."""
        if example_id != self._example:
            self._keep()
            self._example, self._digests = example_id, []
        self._digests.append(digest)

    def values(self) -> list[int]:
        """Return the distinct numbers of the sample. Two runs share one number for each shared completion."""
        self._keep()
        self._example = None
        numbers = []
        for _, example_id, digests in self._chosen:
            seen: Counter[bytes] = Counter()
            for digest in digests[:MOST]:
                seen[digest] += 1
                key = f"{example_id}\0{seen[digest]}\0".encode() + digest
                numbers.append(_number(key))
        return sorted(set(numbers))

    def _keep(self) -> None:
        if self._example is None:
            return
        entry = (-_number(self._example.encode()), self._example, self._digests)
        if len(self._chosen) < self._most:
            heapq.heappush(self._chosen, entry)
        elif entry > self._chosen[0]:
            heapq.heapreplace(self._chosen, entry)


def _number(key: bytes) -> int:
    """Return a digest as a number that fits into a database column."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 1
