"""Where the sequences of a batch lie in its padded rows, so that each is computed by itself.

`G`: rows. `K`: most sequences of a row after its first. `P`: sequences of all rows. `W`: columns of the
prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wander.train.rollouts.rows import Line


@dataclass
class Pieces:
    """The sequences of a batch: each so many columns of a row."""

    rows_P: torch.Tensor
    starts_P: torch.Tensor
    """First column."""
    owns_P: torch.Tensor
    """First column after the sequence's own prompt: tokens from there on are scored."""
    lengths_P: torch.Tensor


def later_sequences(lines: Sequence[Line], device: torch.device) -> torch.Tensor | None:
    """Return `later_GK2`, where each row's sequences after the first lie; None where there are none.

    The two places are those of `Line.later`; rows with fewer sequences are filled up with -1.
    """
    most = max(len(line.later) for line in lines)
    if most == 0:
        return None
    places = [line.later + [(-1, -1)] * (most - len(line.later)) for line in lines]
    return torch.tensor(places, device=device)


def cut_rows(real_GS: torch.Tensor, width: int, later_GK2: torch.Tensor | None) -> Pieces:
    """Return the sequences of padded rows whose completions begin at column `width`."""
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
    """Return the pieces and blanks up to so many, whose results belong to the row `scratch`.

    A blank is the first two tokens of the first piece.
    """
    missing = most - len(pieces.rows_P)
    start = pieces.starts_P[:1].expand(missing)
    return Pieces(
        torch.cat([pieces.rows_P, torch.full_like(start, scratch)]),
        torch.cat([pieces.starts_P, start]),
        torch.cat([pieces.owns_P, start + 1]),
        torch.cat([pieces.lengths_P, torch.full_like(start, 2)]),
    )
