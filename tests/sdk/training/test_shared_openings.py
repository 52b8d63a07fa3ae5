"""What several sequences begin with is computed once: the same numbers and gradients, from fewer tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wander.models.sampling import CACHED_TYPES
from wander.train.grpo import train_grpo
from wander.train.rollouts import buckets
from wander.train.rollouts.buckets import (
    Bucket,
    Pieces,
    cut_buckets,
    find_openings,
    read_openings,
    split_by_cost,
)

from .conftest import bandit, opener_of
from .test_losses import Compared, compared, require_equal, settings_for
from .test_sampling import model_of

__all__ = ["compared"]

PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7], [11]]
"""The last has no token before the one whose output is scored."""
ANSWERS = [(0, 3), (1, 9), (0, 4), (2, 2), (1, 1), (0, 7), (2, 5)]
"""Which prompt, and how many tokens after it."""


def batch() -> tuple[torch.Tensor, Pieces]:
    """Rows with padding on both sides, as TRL has them, and where their sequences lie."""
    width, before = 16, 6
    ids = torch.full((len(ANSWERS), width), 1)
    begins, lengths = [], []
    for row, (number, said) in enumerate(ANSWERS):
        tokens = [*PROMPTS[number], *range(20 + row, 20 + row + said)]
        begins.append(before - len(PROMPTS[number]))
        lengths.append(len(tokens))
        ids[row, begins[-1] : begins[-1] + len(tokens)] = torch.tensor(tokens)
    own = torch.full((len(ANSWERS),), before)
    return ids, Pieces(torch.arange(len(ANSWERS)), torch.tensor(begins), own, torch.tensor(lengths))


def scored_by(model: Any, found: list[Bucket], ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities where they belong, and the gradient of a sum with unlike weights."""
    logprobs = torch.zeros(ids.shape, dtype=torch.double)
    for bucket in found:
        known = model(input_ids=bucket.ids_BL, **bucket.context).logits[:, :-1].log_softmax(-1)
        chosen = known.gather(2, bucket.ids_BL[:, 1:, None])[..., 0][bucket.scored_BL[:, 1:]]
        logprobs = logprobs.index_put(bucket.target, chosen)
    total = (logprobs * torch.arange(1, ids.shape[1] + 1)).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return logprobs.detach(), torch.cat([each.flatten() for each in gradients])


@pytest.mark.parametrize("family", sorted(CACHED_TYPES))
def test_sharing_changes_neither_numbers_nor_gradients(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "forward_cost", lambda device: 0)
    model, (ids, pieces) = model_of(family).double(), batch()
    alone = list(cut_buckets(ids, pieces, lambda lengths: [1] * len(lengths)))
    expected = scored_by(model, alone, ids)
    openings = find_openings(ids, pieces)
    assert openings is not None
    assert openings.ids_NW.tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert openings.lengths_P.tolist() == [4, 2, 4, 0, 2, 4, 0]
    for sizes in ([1] * 7, [3, 4], [7]):
        shared = openings, read_openings(openings, model, max(sizes))
        together = list(cut_buckets(ids, pieces, lambda lengths, sizes=sizes: sizes, shared))
        for one, other in zip(scored_by(model, together, ids), expected, strict=True):
            assert (one - other).norm() < 1e-5 * other.norm(), "norms and positions are float32"
    assert sum(int(bucket.scored_BL.sum()) for bucket in alone) == sum(said for _, said in ANSWERS)


def test_shared_beginnings_are_computed_in_limited_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "forward_cost", lambda device: 0)
    model, (ids, pieces) = model_of("llama").double(), batch()
    openings = find_openings(ids, pieces)
    assert openings is not None
    together: list[int] = []

    def watched(**inputs: Any) -> Any:
        together.append(len(inputs["input_ids"]))
        return model(**inputs)

    apart, whole = read_openings(openings, watched, 1), read_openings(openings, watched)
    assert together == [1, 1, 2]
    for layer, other in zip(apart, whole, strict=True):
        for one, expected in zip(layer, other, strict=True):
            torch.testing.assert_close(one[openings.numbers_P], expected[openings.numbers_P])


def test_beginnings_are_shared_only_if_it_saves_work() -> None:
    ids, pieces = batch()
    assert find_openings(ids, pieces) is None, "a pass costs more than these few tokens"


def test_a_loss_with_shared_beginnings_matches_its_formula(
    puller: Path,
    tmp_path: Path,
    compared: list[tuple[float, float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole step, each slice computed by hand beside it."""
    monkeypatch.setattr(buckets, "forward_cost", lambda device: 0)
    read: list[int] = []

    def watched(openings: Any, model: Any, size: int) -> Any:
        read.append(len(openings.ids_NW))
        return read_openings(openings, model, size)

    monkeypatch.setattr("wander.train.step_trainer.read_openings", watched)
    train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "run")
    assert read
    assert len(Compared.gaps) == len(read)
    require_equal(compared)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 4), st.integers(0, 30))
def test_no_other_split_of_lengths_costs_less(lengths: list[int], size: int, cost: int) -> None:
    lengths.sort()

    def price(sizes: tuple[int, ...] | list[int]) -> int:
        ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        return sum(count * lengths[end - 1] + cost for count, end in zip(sizes, ends, strict=True))

    def splits(left: int) -> list[tuple[int, ...]]:
        counts = range(1, min(size, left) + 1)
        return [(count, *rest) for count in counts for rest in splits(left - count)] if left else [()]

    chosen = split_by_cost(lengths, size, cost)
    assert sum(chosen) == len(lengths)
    assert max(chosen) <= size
    assert price(chosen) == min(map(price, splits(len(lengths))))
