"""Holds the examples of a run in a tenth of their usual memory, and maps rollouts to positions.

A new run generates all of its examples before its first rollout, because the manifest contains their digest.
They are stored as compressed JSON in blocks, and unpacked when they are played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, overload

import zstandard

from wander.errors import RunError
from wander.types import Example, Rollout, canonical_json

_BLOCK = 512
"""Examples per compressed block."""
PAGE = 1000
"""Examples requested from an environment at a time."""
DIGEST_BYTES = 32
_DIGITS = 18
"""Maximum number of digits of an example number."""


class RunExamples(Protocol):
    """The examples of a run in their order."""

    @property
    def ids(self) -> list[str]:
        """Ids of the examples."""
        ...

    @property
    def strata(self) -> list[int | None]:
        """Strata of the examples."""
        ...

    @property
    def task_set_sha256(self) -> str:
        """Digest of the examples, as `wander.types.task_set_digest` returns it."""
        ...

    async def example(self, place: int) -> Example:
        """Return the example at a position."""
        ...


class PackedExamples(Sequence[Example]):
    """A sequence of examples that is compressed in memory.

    The first `unpacked` examples are not compressed. Each access to another example decompresses it.
    """

    def __init__(self, examples: Iterable[Example] = (), *, unpacked: int = 0) -> None:
        self._unpacked = unpacked
        self._first: list[Example] = []
        """Examples stored uncompressed."""
        self.ids: list[str] = []
        self.strata: list[int | None] = []
        self.digests = bytearray()
        """Concatenated digests of all examples."""
        self._count = 0
        self._blocks: list[bytes] = []
        self._open: list[str] = []
        """Examples that are not in a block yet, as JSON."""
        self._read: tuple[int, list[str]] = (-1, [])
        """Number and lines of the block that was unpacked last."""
        for example in examples:
            self.append(example)

    def append(self, example: Example) -> None:
        """Append an example."""
        self._count += 1
        self.ids.append(example.example_id)
        self.strata.append(example.stratum)
        self.digests += example_digest(example)
        if len(self._first) < self._unpacked:
            self._first.append(example)
            return
        self._open.append(json.dumps(vars(example), separators=(",", ":")))
        if len(self._open) == _BLOCK:
            # JSON escapes newlines, so no line contains one. The copy frees memory: the library's buffer is
            # five times larger than its content.
            packed = zstandard.compress("\n".join(self._open).encode(), 3)
            self._blocks.append(bytes(memoryview(packed)))
            self._open = []

    @property
    def task_set_sha256(self) -> str:
        """Digest of the examples, as `wander.types.task_set_digest` returns it, from the stored digests."""
        return hashlib.sha256(self.digests).hexdigest()

    def digest_in_order(self, places: Iterable[int]) -> str:
        """Return the digest of the examples at these positions, in this order."""
        whole = hashlib.sha256()
        for place in places:
            whole.update(self.digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES])
        return whole.hexdigest()

    def drop_metadata(self) -> None:
        """Release ids, strata and digests after they were stored in a manifest and a file."""
        self.ids, self.strata, self.digests = [], [], bytearray()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...

    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self[position] for position in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        if place < len(self._first):
            return self._first[place]
        number, line = divmod(place - len(self._first), _BLOCK)
        if number == len(self._blocks):
            return _example(self._open[line])
        if self._read[0] != number:
            self._read = number, zstandard.decompress(self._blocks[number]).decode().split("\n")
        return _example(self._read[1][line])

    def __iter__(self) -> Iterator[Example]:
        return (self[place] for place in range(len(self)))

    async def example(self, place: int) -> Example:
        """Return the example at a position."""
        return self[place]


def example_digest(example: Example) -> bytes:
    """Return the same digest as `Example.digest`, as bytes."""
    values = dict(vars(example))  # all values are JSON already
    del values["fault"]
    return hashlib.sha256(canonical_json(values).encode()).digest()


def _example(line: str) -> Example:
    return Example.assemble(**json.loads(line))


class RolloutOrder:
    """Positions of a run's rollouts, by example and index. Consecutive numbers as ids are not stored."""

    def __init__(self, example_ids: Sequence[str], rollouts_per_example: int) -> None:
        self._rollouts_per_example = rollouts_per_example
        self._examples = len(example_ids)
        numbered = all(name == str(number) for number, name in enumerate(example_ids))
        self._named = None if numbered else {name: number for number, name in enumerate(example_ids)}

    def __len__(self) -> int:
        return self._examples * self._rollouts_per_example

    def find(self, key: tuple[str, int]) -> int | None:
        """Return the position of a rollout by example and index, or None if the run lacks it."""
        name, index = key
        if self._named is not None:
            example = self._named.get(name)
        elif name.isdecimal() and name == str(number := int(name[:_DIGITS])) and number < self._examples:
            example = number
        else:
            example = None
        if example is None or not 0 <= index < self._rollouts_per_example:
            return None
        return example * self._rollouts_per_example + index

    def position_of(self, rollout: Rollout) -> int:
        """Return the position of a rollout. Raises `RunError` if the rollout does not belong to the run."""
        if (position := self.find(rollout.key)) is None:
            name = f"{rollout.example_id}/{rollout.index}"
            raise RunError(
                f"rollout `{name}` does not belong to the run: the manifest does not contain its key"
            )
        return position
