"""The examples of a run in a tenth of their memory, and where its rollouts stand.

A new run makes all its examples before its first rollout, for their digest stands in its manifest. They are
kept as compressed JSON, a block at a time, and read when they are played.
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
"""Examples that are compressed together."""
PAGE = 1000
"""Examples that are asked for at once."""
DIGEST_BYTES = 32
_DIGITS = 18
"""No number of examples has more."""


class RunExamples(Protocol):
    """The examples of a run, in their order."""

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        ...

    @property
    def strata(self) -> list[int | None]:
        """Their strata."""
        ...

    @property
    def task_set_sha256(self) -> str:
        """What `wander.types.task_set_digest` returns."""
        ...

    async def example(self, place: int) -> Example:
        """Return the example at a place."""
        ...


class PackedExamples(Sequence[Example]):
    """Examples in their order; each that is asked for is made anew, but for the first `unpacked`."""

    def __init__(self, examples: Iterable[Example] = (), *, unpacked: int = 0) -> None:
        self._unpacked = unpacked
        self._first: list[Example] = []
        """Those that are held as they are."""
        self.ids: list[str] = []
        self.strata: list[int | None] = []
        self.digests = bytearray()
        """Of all of them, one after the other."""
        self._count = 0
        self._blocks: list[bytes] = []
        self._open: list[str] = []
        """What no block has yet."""
        self._read: tuple[int, list[str]] = (-1, [])
        """The block that was read last, with its number."""
        for example in examples:
            self.append(example)

    def append(self, example: Example) -> None:
        """Add one at the end."""
        self._count += 1
        self.ids.append(example.example_id)
        self.strata.append(example.stratum)
        self.digests += example_digest(example)
        if len(self._first) < self._unpacked:
            self._first.append(example)
            return
        self._open.append(json.dumps(vars(example), separators=(",", ":")))
        if len(self._open) == _BLOCK:
            # No line has a newline: JSON escapes it. The library's bytes hold five times what they show.
            packed = zstandard.compress("\n".join(self._open).encode(), 3)
            self._blocks.append(bytes(memoryview(packed)))
            self._open = []

    @property
    def task_set_sha256(self) -> str:
        """What `wander.types.task_set_digest` returns, without reading them again."""
        return hashlib.sha256(self.digests).hexdigest()

    def digest_in_order(self, places: Iterable[int]) -> str:
        """Return the same of some of the examples, in an order of their own."""
        whole = hashlib.sha256()
        for place in places:
            whole.update(self.digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES])
        return whole.hexdigest()

    def keep_content_alone(self) -> None:
        """Forget ids, strata and digests, once a manifest and a file have them."""
        self.ids, self.strata, self.digests = [], [], bytearray()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...

    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
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
        """Return the example at a place."""
        return self[place]


def example_digest(example: Example) -> bytes:
    """Return what `Example.digest` does, as bytes."""
    values = dict(vars(example))  # they are JSON
    del values["fault"]
    return hashlib.sha256(canonical_json(values).encode()).digest()


def _example(line: str) -> Example:
    return Example.assemble(**json.loads(line))


class RolloutOrder:
    """The order of a run's rollouts, by example and index; ids that only number examples take no room."""

    def __init__(self, example_ids: Sequence[str], rollouts_per_example: int) -> None:
        self._rollouts_per_example = rollouts_per_example
        self._examples = len(example_ids)
        numbered = all(name == str(number) for number, name in enumerate(example_ids))
        self._named = None if numbered else {name: number for number, name in enumerate(example_ids)}

    def __len__(self) -> int:
        return self._examples * self._rollouts_per_example

    def find(self, key: tuple[str, int]) -> int | None:
        """Return the position of a rollout by example and index; None if the run has no such rollout."""
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
        """Return the position of a rollout; raises `RunError` for one that is not of the run."""
        if (position := self.find(rollout.key)) is None:
            name = f"{rollout.example_id}/{rollout.index}"
            raise RunError(f"rollout `{name}` does not belong to the run: its manifest holds no such key")
        return position
