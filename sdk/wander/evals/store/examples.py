"""The examples of a run in a tenth of their memory, and where its rollouts stand.

They are kept as compressed JSON, a block at a time, and read when they are played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import zstandard

from wander.types import Example, canonical_json

_BLOCK = 512
"""Examples that are compressed together."""
_DIGITS = 18
"""No number of examples has more."""


class PackedExamples(Sequence[Example]):
    """Examples in their order; each that is asked for is made anew."""

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self.ids: list[str] = []
        self.strata: list[int | None] = []
        self._digest = hashlib.sha256()
        self._blocks: list[bytes] = []
        self._open: list[str] = []
        """What no block has yet."""
        self._read: tuple[int, list[str]] = (-1, [])
        """The block that was read last, with its number."""
        for example in examples:
            self.append(example)

    def append(self, example: Example) -> None:
        """Add one at the end."""
        self.ids.append(example.example_id)
        self.strata.append(example.stratum)
        values = vars(example)  # which are JSON
        self._digest.update(hashlib.sha256(canonical_json(values).encode()).digest())
        self._open.append(json.dumps(values, separators=(",", ":")))
        if len(self._open) == _BLOCK:
            # No line has a newline: JSON escapes it.
            self._blocks.append(zstandard.compress("\n".join(self._open).encode(), 1))
            self._open = []

    def task_set_sha256(self) -> str:
        """Return what `wander.types.task_set_digest` does, without reading them again."""
        return self._digest.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...

    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        number, line = divmod(range(len(self))[place], _BLOCK)
        if number == len(self._blocks):
            return _example(self._open[line])
        if self._read[0] != number:
            self._read = number, zstandard.decompress(self._blocks[number]).decode().split("\n")
        return _example(self._read[1][line])

    def __iter__(self) -> Iterator[Example]:
        return (self[place] for place in range(len(self)))


def _example(line: str) -> Example:
    return Example.model_construct(**json.loads(line))


class Places:
    """Where the rollouts of a run stand in its order; ids that only number examples take no room."""

    def __init__(self, example_ids: Sequence[str], rollouts_per_example: int) -> None:
        self._each = rollouts_per_example
        self._count = len(example_ids)
        numbered = all(name == str(place) for place, name in enumerate(example_ids))
        self._named = None if numbered else {name: place for place, name in enumerate(example_ids)}

    def __len__(self) -> int:
        return self._count * self._each

    def find(self, key: tuple[str, int]) -> int | None:
        """Return the place of a rollout by its example and index; None where the run has no such rollout."""
        name, index = key
        if self._named is not None:
            example = self._named.get(name)
        elif name.isdecimal() and name == str(number := int(name[:_DIGITS])) and number < self._count:
            example = number
        else:
            example = None
        return None if example is None or not 0 <= index < self._each else example * self._each + index
