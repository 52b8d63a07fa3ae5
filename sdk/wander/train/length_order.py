"""In which order fine-tuning takes its conversations: alike lengths together, anew in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

from wander.seeding import derived_rng

SORTED_BATCHES = 50
"""Batches' worth of conversations that are sorted by length together: less padding, and still much chance."""


class LengthOrder(Sampler[int]):
    """Yields places so that each batch has alike lengths.

    The order depends on the seed and the epoch alone, so a run that goes on within an epoch finds the same.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths = lengths
        self._batch = batch
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Learn which epoch comes."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = derived_rng(self._seed, "order of conversations", self._epoch)
        places = list(range(len(self)))
        rng.shuffle(places)
        pool = SORTED_BATCHES * self._batch
        ordered: list[int] = []
        for start in range(0, len(places), pool):
            ordered += sorted(places[start : start + pool], key=lambda place: -self._lengths[place])
        batches = [ordered[start : start + self._batch] for start in range(0, len(ordered), self._batch)]
        # One that is not full stays the last: else it would shift all that follow.
        rest = [batches.pop()] if batches and len(batches[-1]) < self._batch else []
        rng.shuffle(batches)
        return iter([place for batch in [*batches, *rest] for place in batch])
