"""A key-value cache that keeps a batch of conversations between turns.

Rows have different lengths, so a row may have holes: cached columns that its attention mask hides. Buffers
are preallocated and grow by doubling. (A `torch.cat` per token copies the whole cache, which took a third of
the tiny policy's sampling time on two CPU cores.) If only a few rows still sample, `focus` narrows the cache
to them, so that a single long completion does not need the computation of a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

FIRST_CAPACITY = 256
FREE_COLUMNS = 64
"""Number of free columns after rows were selected."""


class KeyValueLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of an attention layer, with shape (rows, heads, capacity, head size)."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        """Number of columns in use."""
        self.rows: torch.Tensor | None = None
        self.focus_keys: torch.Tensor | None = None
        self.focus_values: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the first buffers in the shape of the states, and in the type of the values.

        Under autocast, rotary embeddings return keys in float32, and attention would cast all cached keys
        again at each token.
        """
        rows, heads, _, size = key_states.shape
        self.keys = value_states.new_zeros(rows, heads, FIRST_CAPACITY, size)
        self.values = value_states.new_zeros(rows, heads, FIRST_CAPACITY, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states and return all keys and values of the rows in focus."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        key_states = key_states.to(self.keys.dtype)  # indexed assignment does not cast
        end = self.length + key_states.shape[2]
        self._reserve(end)
        columns = slice(self.length, end)
        self.length = end
        if self.rows is None:
            self.keys[:, :, columns] = key_states
            self.values[:, :, columns] = value_states
            return self.keys[:, :, :end], self.values[:, :, :end]
        assert self.focus_keys is not None
        assert self.focus_values is not None
        self.keys[self.rows, :, columns] = key_states
        self.values[self.rows, :, columns] = value_states
        self.focus_keys[:, :, columns] = key_states
        self.focus_values[:, :, columns] = value_states
        return self.focus_keys[:, :, :end], self.focus_values[:, :, :end]

    def _reserve(self, length: int) -> None:
        # The buffers of the rows in focus have fewer free columns, so each buffer is widened separately.
        self.keys, self.values = _widen(self.keys, length), _widen(self.values, length)
        if self.focus_keys is not None and self.focus_values is not None:
            self.focus_keys = _widen(self.focus_keys, length)
            self.focus_values = _widen(self.focus_values, length)

    def focus(self, rows: torch.Tensor | None) -> None:
        """Compute only these rows from now on; None means all rows."""
        self.rows = rows
        self.focus_keys = None if rows is None else self._select(self.keys, rows)
        self.focus_values = None if rows is None else self._select(self.values, rows)

    def select(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order; a row may be repeated."""
        self.focus(None)
        self.keys, self.values = self._select(self.keys, rows), self._select(self.values, rows)

    def _select(self, states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Copy the used columns of the rows into a new buffer.

        The other columns are set to zero. The columns of rows out of focus are never written, and a NaN in
        them would spoil sums even if the mask hides it.
        """
        _, heads, capacity, size = states.shape
        # Allocating memory takes longer than copying into it, so allocate little.
        capacity = min(capacity, self.length + FREE_COLUMNS)
        kept = states.new_empty(len(rows), heads, capacity, size)
        torch.index_select(states[:, :, : self.length], 0, rows, out=kept[:, :, : self.length])
        kept[:, :, self.length :] = 0
        return kept

    def copy_rows(
        self, places: torch.Tensor, source: KeyValueLayer, rows: torch.Tensor, columns: torch.Tensor
    ) -> None:
        """Copy columns of some rows of another layer into rows of this layer, where `places` are this layer's
        rows."""
        for own, other in ((self.keys, source.keys), (self.values, source.values)):
            own[places, :, : columns.shape[1]] = other[rows[:, None], :, columns].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the key length and offset that attention masks are built for."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1, because the cache grows."""
        return -1


def _widen(states: torch.Tensor, length: int) -> torch.Tensor:
    """Return the states with room for `length` columns, at least doubled if they had less."""
    capacity = states.shape[2]
    if length <= capacity:
        return states
    return torch.nn.functional.pad(states, (0, 0, 0, max(capacity, length - capacity)))


class ConversationCache:
    """The cached columns of a batch of conversations, with their attention mask."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.layers = [KeyValueLayer() for _ in range(layers)]
        self.past = Cache(layers=self.layers)
        self.device = device
        self.tokens: list[list[int]] = []
        """Cached ids of each row, without holes."""
        self.mask = torch.zeros(0, 0, dtype=torch.long, device=device)
        """Mask with shape (rows, columns), 1 if a column holds a token of the row."""
        self.rows: torch.Tensor | None = None

    def start(self, rows: int) -> None:
        """Start with empty rows."""
        self.tokens = [[] for _ in range(rows)]
        self.mask = torch.zeros(rows, 0, dtype=torch.long, device=self.device)

    @classmethod
    def of_rows(cls, picked: Sequence[tuple[ConversationCache, int]]) -> ConversationCache:
        """Return a cache of the given rows of other caches, in this order, without their holes."""
        first = picked[0][0]
        made = cls(len(first.layers), first.device)
        made.tokens = [list(cache.tokens[row]) for cache, row in picked]
        lengths = torch.tensor([len(tokens) for tokens in made.tokens], device=made.device)
        width = int(lengths.max())
        made.mask = (torch.arange(width, device=made.device) < lengths[:, None]).long()
        for layer, like in zip(made.layers, first.layers, strict=True):
            shape = (len(picked), like.keys.shape[1], width + FREE_COLUMNS)
            layer.keys = like.keys.new_zeros(*shape, like.keys.shape[3])
            layer.values = like.values.new_zeros(*shape, like.values.shape[3])
            layer.length, layer.is_initialized = width, True
        for source in {id(cache): cache for cache, _ in picked}.values():
            at = [place for place, (cache, _) in enumerate(picked) if cache is source]
            places = torch.tensor(at, device=made.device)
            rows = torch.tensor([picked[place][1] for place in at], device=made.device)
            # The columns with tokens come first, in order, before the columns that the mask hides.
            columns = source.mask[rows].argsort(dim=1, descending=True, stable=True)[:, :width]
            for layer, other in zip(made.layers, source.layers, strict=True):
                layer.copy_rows(places, other, rows, columns)
        return made

    def select(self, rows: Sequence[int | None]) -> None:
        """Keep only these rows, in this order; a row may be repeated, and None is an empty row."""
        if rows == list(range(len(self.tokens))):
            self.focus(None)
            return
        index = torch.tensor([row or 0 for row in rows], device=self.device)
        for layer in self.layers:
            layer.select(index)
        self.rows = None
        self.mask = self.mask[index]
        self.mask[[row is None for row in rows]] = 0
        self.tokens = [[] if row is None else list(self.tokens[row]) for row in rows]

    def focus(self, rows: list[int] | None) -> None:
        """Compute only these rows from now on; None means all rows."""
        index = None if rows is None else torch.tensor(rows, device=self.device)
        self.rows = index
        for layer in self.layers:
            layer.focus(index)

    def append(self, block: list[list[int]]) -> dict[str, torch.Tensor | None]:
        """Return the model inputs that add a block of ids to the rows in focus, right-aligned.

        The last column holds every row's last new token, so the last logits are those to sample from.
        """
        rows = list(range(len(self.tokens))) if self.rows is None else self.rows.tolist()
        width = max(len(ids) for ids in block)
        known = torch.tensor([len(self.tokens[row]) for row in rows])
        ids = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens in block])
        new = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in block])
        for row, tokens in zip(rows, block, strict=True):
            self.tokens[row].extend(tokens)
        columns = torch.zeros(len(self.tokens), width, dtype=torch.long)
        columns[rows] = new
        self.mask = torch.cat([self.mask, columns.to(self.device)], dim=1)
        positions = (known[:, None] + new.cumsum(1) - 1).clamp(min=0)
        whole = all(len(self.tokens[row]) == self.mask.shape[1] for row in rows)
        mask = None if whole else self.mask if self.rows is None else self.mask[self.rows]
        return {
            "input_ids": ids.to(self.device),
            # Without holes, attention is causal. To find that out from a mask, the host reads the device.
            "attention_mask": mask,
            "position_ids": positions.to(self.device),
        }
