"""Computation of a step's rows: sequence by sequence, in buckets of similar length.

A row contains its sequences one after another, padded on both sides. They are computed without the padding.
An opening that several sequences share is computed only once. For example, the rollouts of a group have the
same prompt, and those of a game have the same rules. If every layer attends to all earlier tokens, each
sequence reads the keys and values of its opening, and gradients flow back through them. Only tokens that
differ therefore take time.

`G`: rows. `K`: maximum number of sequences of a row after its first. `P`: sequences of all rows. `N`: shared
openings. `W`: their tokens, padded on the right. Other letters are those of `wander.train.grpo`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache

from wander.train.rollouts.rows import TokenLine

ROWS_PER_FORWARD = 32
"""Maximum number of sequences that are computed together, which limits the size of the matrices."""


@dataclass
class Pieces:
    """The sequences of a batch; each is a range of columns in a row."""

    rows_P: torch.Tensor
    starts_P: torch.Tensor
    """First column of the sequence."""
    owns_P: torch.Tensor
    """First column after the sequence's own prompt; tokens from this column on are scored."""
    lengths_P: torch.Tensor


def later_sequences(lines: Sequence[TokenLine], device: torch.device) -> torch.Tensor | None:
    """Return `later_GK2`, the positions of each row's sequences after the first; None without such sequences.

    The two positions are those of `TokenLine.later`. Rows with fewer sequences are filled with -1.
    """
    most = max(len(line.later) for line in lines)
    if most == 0:
        return None
    places = [line.later + [(-1, -1)] * (most - len(line.later)) for line in lines]
    return torch.tensor(places, device=device)


def cut_rows(real_GS: torch.Tensor, width: int, later_GK2: torch.Tensor | None) -> Pieces:
    """Return the sequences of padded rows whose completions start at column `width`."""
    lengths_G, starts_G = real_GS.sum(1), real_GS.argmax(1)
    rows_G = torch.arange(len(real_GS), device=real_GS.device)
    if later_GK2 is None:
        return Pieces(rows_G, starts_G, torch.full_like(starts_G, width), lengths_G)
    exists_GK = torch.nn.functional.pad(later_GK2[..., 0] >= 0, (1, 0), value=True)
    begin_GK = torch.cat([starts_G[:, None], width + later_GK2[..., 0]], 1)
    own_GK = torch.nn.functional.pad(width + later_GK2[..., 1], (1, 0), value=width)
    whole_G1 = (starts_G + lengths_G)[:, None]
    end_GK = torch.cat([torch.where(exists_GK[:, 1:], begin_GK[:, 1:], whole_G1), whole_G1], 1)
    rows_GK = rows_G[:, None].expand_as(exists_GK)
    return Pieces(rows_GK[exists_GK], begin_GK[exists_GK], own_GK[exists_GK], (end_GK - begin_GK)[exists_GK])


def fill_up(pieces: Pieces, most: int, scratch: int) -> Pieces:
    """Return the pieces, with blanks up to `most` whose results belong to the row `scratch`.

    A blank consists of the first two tokens of the first piece.
    """
    missing = most - len(pieces.rows_P)
    start = pieces.starts_P[:1].expand(missing)
    return Pieces(
        torch.cat([pieces.rows_P, torch.full_like(start, scratch)]),
        torch.cat([pieces.starts_P, start]),
        torch.cat([pieces.owns_P, start + 1]),
        torch.cat([pieces.lengths_P, torch.full_like(start, 2)]),
    )


def forward_cost(device: torch.device) -> int:
    """Return the cost of a forward pass in tokens: on a GPU, the time to start its kernels."""
    return 128 if device.type == "cpu" else 4096


@dataclass
class Bucket:
    """Sequences of similar length that are computed together, without their shared openings."""

    ids_BL: torch.Tensor
    real_BL: torch.Tensor
    """Whether each token is real, not padding."""
    scored_BL: torch.Tensor
    """Whether each token comes after the sequence's own prompt."""
    target: tuple[torch.Tensor, torch.Tensor]
    """Row and column of each scored token."""
    context: dict[str, Any]
    """Other inputs of the model: the mask of the ids, and their shared openings."""


@dataclass
class Openings:
    """Prompts of several sequences, without their last token, whose output is scored."""

    ids_NW: torch.Tensor
    real_NW: torch.Tensor
    numbers_P: torch.Tensor
    """Number of the opening of each sequence; arbitrary for a sequence without one."""
    lengths_P: torch.Tensor
    """Number of the opening's tokens in a sequence: all of them, or 0."""


def find_openings(ids_GS: torch.Tensor, pieces: Pieces) -> Openings | None:
    """Return the openings that are worth a separate pass; None if they save nothing."""
    rows = ids_GS.tolist()
    places = ((pieces.rows_P % len(rows)).tolist(), pieces.starts_P.tolist(), pieces.owns_P.tolist())
    prompts = [tuple(rows[row][start : own - 1]) for row, start, own in zip(*places, strict=True)]
    shared = [prompt for prompt, count in Counter(prompts).items() if count > 1 and prompt]
    number = {prompt: place for place, prompt in enumerate(shared)}
    lengths = [len(prompt) if prompt in number else 0 for prompt in prompts]
    width = max(lengths, default=0)
    if sum(lengths) < len(shared) * width + forward_cost(ids_GS.device):
        return None
    known = ids_GS.new_tensor([len(prompt) for prompt in shared])
    return Openings(
        ids_GS.new_tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in shared]),
        torch.arange(width, device=ids_GS.device)[None] < known[:, None],
        ids_GS.new_tensor([number.get(prompt, 0) for prompt in prompts]),
        ids_GS.new_tensor(lengths),
    )


Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, with shape (N, heads, W, head size)."""


def read_openings(openings: Openings, model: Callable[..., Any], size: int = ROWS_PER_FORWARD) -> Layers:
    """Compute the keys and values of the openings, `size` at a time."""
    read = []
    parts = zip(torch.split(openings.ids_NW, size), torch.split(openings.real_NW, size), strict=True)
    for ids_BW, real_BW in parts:
        cache = DynamicCache()
        model(
            input_ids=ids_BW,
            attention_mask=real_BW.long(),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        read.append([(layer.keys, layer.values) for layer in cache.layers])
    if len(read) == 1:
        return read[0]
    joined = ([torch.cat(states) for states in zip(*layer, strict=True)] for layer in zip(*read, strict=True))
    return [(keys, values) for keys, values in joined]


def split_evenly(count: int, size: int) -> list[int]:
    """Return sizes of buckets for `count` sequences, the same in all processes."""
    return [min(size, count - begun) for begun in range(0, count, size)]


def split_by_cost(lengths: Sequence[int], size: int, cost: int) -> list[int]:
    """Return the bucket sizes for sequences of ascending lengths that minimize the cost of padding and
    passes."""
    least: list[tuple[int, int]] = [(0, 0)]
    """Minimum cost of the first n sequences, and the start of their last bucket, for each n."""
    for end, width in enumerate(lengths, start=1):
        begins = range(max(0, end - size), end)
        least.append(min((least[begun][0] + (end - begun) * width + cost, begun) for begun in begins))
    sizes, end = [], len(lengths)
    while end:
        begun = least[end][1]
        sizes.append(end - begun)
        end = begun
    return sizes[::-1]


def cut_buckets(
    ids_GS: torch.Tensor,
    pieces: Pieces,
    split: Callable[[list[int]], list[int]],
    shared: tuple[Openings, Layers] | None = None,
) -> Iterator[Bucket]:
    """Yield sequences by length; `split` returns bucket sizes for ascending lengths."""
    rows, width = ids_GS.shape
    if shared:  # compute the sequences without their openings
        known_P = shared[0].lengths_P
        pieces = replace(pieces, starts_P=pieces.starts_P + known_P, lengths_P=pieces.lengths_P - known_P)
    order_P = pieces.lengths_P.argsort(stable=True)
    for chosen_B in torch.split(order_P, split(pieces.lengths_P[order_P].tolist())):
        rows_B, starts_B, lengths_B = (
            column[chosen_B] for column in (pieces.rows_P, pieces.starts_P, pieces.lengths_P)
        )
        places_L = torch.arange(int(lengths_B.max()), device=ids_GS.device)
        real_BL = places_L[None] < lengths_B[:, None]
        columns_BL = (starts_B[:, None] + places_L[None]).clamp(max=width - 1)
        ids_BL = ids_GS[rows_B % rows].gather(1, columns_BL)
        scored_BL = real_BL & (columns_BL >= pieces.owns_P[chosen_B][:, None])
        # The output has one entry fewer than a row has tokens, because nothing predicts the first token.
        scored = scored_BL[:, 1:]
        target = (rows_B[:, None].expand_as(columns_BL)[:, 1:][scored], columns_BL[:, 1:][scored])
        context = _after(*shared, chosen_B, real_BL) if shared else {"attention_mask": real_BL.long()}
        yield Bucket(ids_BL, real_BL, scored_BL, target, context)


def _after(
    openings: Openings, layers: Layers, chosen_B: torch.Tensor, real_BL: torch.Tensor
) -> dict[str, Any]:
    """Return the inputs for a model that computes sequences after their openings."""
    numbers_B, known_B = openings.numbers_P[chosen_B], openings.lengths_P[chosen_B]
    width = int(known_B.max())
    if width == 0:
        return {"attention_mask": real_BL.long()}
    before_BW = torch.arange(width, device=real_BL.device)[None] < known_B[:, None]
    read = (tuple(states[:, :, :width].index_select(0, numbers_B) for states in layer) for layer in layers)
    return {
        "attention_mask": torch.cat([before_BW, real_BL], 1).long(),
        "position_ids": known_B[:, None] + torch.arange(real_BL.shape[1], device=real_BL.device)[None],
        "past_key_values": DynamicCache(read),
    }
