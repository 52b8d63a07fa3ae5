"""The decode step, and the conversations that are kept between turns.

A batch lives in tensors whose shapes and addresses stay the same (`Buffers`): keys and values, ids,
positions, random numbers and results. A step computes and samples the next token of every row on the device.
The host reads the results of several steps together, and decides which rows have ended. A row that ended is
computed until then, and the columns after its end are hidden later.

On CUDA, rows and columns are rounded up to buckets, attention covers the whole bucket, and the step is
captured as a graph. On a CPU, the same step computes the exact rows and attends to the columns in use,
because a sum over more columns may round differently, and the host reads every token, because that is free.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

FIRST_ROWS = 32
"""Smallest bucket of rows."""
FIRST_CAPACITY = 256
"""Smallest bucket of columns, and the capacity of a new conversation."""
LAST_DOUBLING = 1024
"""Size up to which buckets double. Larger buckets are multiples of it."""
FREE_COLUMNS = 64
"""Number of free columns after rows were copied. Allocating memory takes longer than copying into it."""
KEPT_SHARE = 1 / 8
"""Share of the device's memory that unused buffers may keep while the policy is trained."""


@dataclass(frozen=True)
class DecodePlan:
    """How steps are computed."""

    look_every: int = 1
    """Number of tokens after which the host reads the results."""
    has_buckets: bool = False
    """Whether rows and columns are rounded up to buckets, so that shapes repeat."""
    captures: bool = False
    """Whether steps are captured as CUDA graphs."""


def plan_for(model: Any, *, keeps_cache: bool, autocast: bool) -> DecodePlan:
    """Return how a model decodes on its device.

    A graph cannot contain the cast weights of autocast, which are freed after each batch, and cannot read the
    device, which some rotary embeddings do.
    """
    if model.device.type != "cuda":
        return DecodePlan()
    config = model.config.get_text_config()
    has_buckets = keeps_cache and config._attn_implementation == "sdpa"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    captures = has_buckets and not autocast and rope not in {"dynamic", "longrope"}
    return DecodePlan(look_every=8, has_buckets=has_buckets, captures=captures)


def round_up(size: int, first: int) -> int:
    """Return the smallest bucket of at least `size`."""
    if size > LAST_DOUBLING:
        return -(-size // LAST_DOUBLING) * LAST_DOUBLING
    return max(first, 1 << (size - 1).bit_length())


def distribution(
    logits: torch.Tensor, parameters: torch.Tensor, *, truncates: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities after temperature and truncation, and the entropies before truncation.

    `logits` and the log-probabilities have shape (rows, vocabulary), the entropies have shape (rows,).
    `parameters` has shape (5, rows): temperature, top_p, top_k, min_p, and 1 for greedy rows.
    """
    temperature, top_p, top_k, min_p = parameters[:4, :, None].unbind()
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    probabilities = logprobs.exp()
    entropies = -(probabilities * logprobs.clamp(min=-1e4)).sum(-1)
    if not truncates:
        return logprobs, entropies
    ordered, order = probabilities.sort(dim=-1, descending=True)
    keep = ordered.cumsum(-1) - ordered < top_p
    keep &= torch.arange(ordered.shape[1], device=logits.device) < top_k
    keep &= ordered >= min_p * ordered[:, :1]
    kept = torch.zeros_like(keep).scatter(1, order, keep)
    return torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), dim=-1), entropies


def draw(logprobs: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor | None = None) -> torch.Tensor:
    """Pick an id for each row: the first id whose cumulative probability exceeds the row's uniform number.

    Rows of `greedy` get the most probable id. All shapes are (rows,) or (rows, vocabulary).
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    picked = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logprobs.shape[1] - 1)
    return picked if greedy is None else torch.where(greedy > 0, logprobs.argmax(-1), picked)


@dataclass
class Window:
    """The columns that a forward pass writes and attends to, which all layers share."""

    rows: int
    capacity: int
    column: torch.Tensor
    """Column of the next token, on the device."""
    used: int = 0
    """Number of columns in use. It is the same number as `column` between two steps."""
    is_whole_capacity: bool = False
    """Whether a step attends to the whole capacity, so that no shape depends on `used`."""


class KeyValueLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of an attention layer, with shape (rows, heads, capacity, head size)."""

    is_sliding = False

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers in the shape of the states, and in the type of the values.

        Under autocast, rotary embeddings return keys in float32, and attention would cast all cached keys
        again at each token.
        """
        self.keys, self.values = (
            value_states.new_zeros(self.window.rows, states.shape[1], self.window.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def allocate(self, like: KeyValueLayer) -> None:
        """Allocate the buffers with the heads and types of another layer, without setting them."""
        self.keys, self.values = (
            states.new_empty(self.window.rows, states.shape[1], self.window.capacity, states.shape[3])
            for states in (like.keys, like.values)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the states of new columns and return the keys and values to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.window.is_whole_capacity:
            self.keys.index_copy_(2, self.window.column, key_states.to(self.keys.dtype))
            self.values.index_copy_(2, self.window.column, value_states)
            return self.keys, self.values
        rows, _, new, _ = key_states.shape
        first = self.window.used
        self.keys[:rows, :, first : first + new] = key_states
        self.values[:rows, :, first : first + new] = value_states
        return self.keys[:rows, :, : first + new], self.values[:rows, :, : first + new]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the key length and offset that attention masks are built for."""
        return self.window.used + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self.window.used

    def get_max_length(self) -> int:
        """Return -1, because conversations move to larger buffers."""
        return -1


class StepGraph:
    """A step that is captured as a CUDA graph.

    The first call runs the step kernel by kernel, so that libraries are initialized and their kernels loaded.
    The second call captures it. Capturing does not compute, so the graph is replayed immediately.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False

    def run(self, step: Callable[[], None]) -> None:
        """Compute a step."""
        if self._graph is None and not self._is_warm:
            step()
            self._is_warm = True
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # Another thread may use the device meanwhile, because steps of training can be played ahead.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                step()
            self._graph = graph
        self._graph.replay()


class Buffers:
    """A batch in tensors whose shapes and addresses stay the same.

    Rows and columns that hold nothing are zero, because a NaN in them would spoil sums even if the mask hides
    it.
    """

    def __init__(self, decoder: Decoder, rows: int, capacity: int) -> None:
        self.decoder = decoder
        self.plan, self.graph_memory = decoder.plan, decoder.graph_memory
        self.last_position = decoder.context_length - 1
        zeros = partial(torch.zeros, device=decoder.model.device)
        self.window = Window(rows, capacity, zeros(1, dtype=torch.long))
        self.layers = [KeyValueLayer(self.window) for _ in range(decoder.layers)]
        self.past: Any = Cache(layers=self.layers) if self.layers else None
        self.mask = zeros(rows, capacity, dtype=torch.bool)
        """True if a column holds a token of the row."""
        self.is_whole = False
        """Whether no row has holes, so that attention needs no mask."""
        self.ids = zeros(rows, 1, dtype=torch.long)
        """The ids that were sampled last, whose keys and values the next step computes."""
        self.positions = zeros(rows, 1, dtype=torch.long)
        self.parameters = torch.ones(5, rows, device=decoder.model.device)
        self.truncates = self.has_greedy = False
        """Whether a live row needs truncation, or the most probable token."""
        self.uniforms = zeros(rows, capacity, dtype=torch.float64)
        """Random number with which the token of each column is drawn."""
        self.results = zeros(3, rows, capacity, dtype=torch.float64)
        """Id, log-probability and entropy of the token of each column."""
        self.graphs: dict[tuple[bool, bool], StepGraph] = {}

    def load(
        self, parameters: torch.Tensor, uniforms: torch.Tensor, ids: list[int], positions: list[int]
    ) -> None:
        """Prepare the first rows for sampling. The first random number belongs to the next column."""
        rows, used = len(ids), self.window.used
        columns = slice(used, used + uniforms.shape[1])
        self.parameters[:, :rows] = parameters.to(self.parameters.device)
        room = self.uniforms[:rows, columns]
        room.copy_(uniforms[:, : room.shape[1]])
        self.ids[:rows, 0] = torch.tensor(ids, device=self.ids.device)
        self.positions[:rows, 0] = torch.tensor(positions, device=self.ids.device)
        self.window.column.fill_(used)

    def read(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute columns of known ids in the first rows and return the logits after the last column.

        `ids` and `positions` have shape (rows, columns), and the mask contains the columns already.
        """
        rows, columns = ids.shape
        logits = self._forward(ids, self._mask_of(rows, self.window.used + columns), positions)
        self.window.used += columns
        return logits

    def advance(self, steps: int) -> None:
        """Sample tokens, without reading the device."""
        mode = (self.truncates, self.has_greedy)
        if self.plan.captures and mode not in self.graphs:
            self.graphs[mode] = StepGraph(self.graph_memory)
        self.window.is_whole_capacity = self.plan.has_buckets
        for _ in range(steps):
            if self.plan.captures:
                self.graphs[mode].run(self.step)
            else:
                self.step()
            self.window.used += 1
        self.window.is_whole_capacity = False

    def step(self) -> None:
        """Compute the ids that were sampled last, and sample the next ids."""
        self.mask.index_fill_(1, self.window.column, True)
        if self.window.is_whole_capacity:
            logits = self._forward(self.ids, self.mask[:, None, None], self.positions)
        else:
            mask = self._mask_of(self.window.rows, self.window.used + 1)
            logits = self._forward(self.ids, mask, self.positions)
        # Rows that ended are computed until the host looks, perhaps beyond the positions of the model.
        self.positions.add_(1).clamp_(max=self.last_position)
        self.window.column.add_(1)
        self.choose(logits)

    def choose(self, logits: torch.Tensor) -> None:
        """Sample from logits with shape (rows, vocabulary)."""
        logprobs, entropies = distribution(logits, self.parameters, truncates=self.truncates)
        uniforms = self.uniforms.index_select(1, self.window.column)[:, 0]
        picked = draw(logprobs, uniforms, self.parameters[4] if self.has_greedy else None)[:, None]
        chosen = logprobs.gather(1, picked)
        found = torch.stack([picked.double(), chosen.double(), entropies[:, None].double()])
        self.results.index_copy_(2, self.window.column, found)
        self.ids.copy_(picked)

    def look(self, rows: int, columns: int) -> tuple[list[list[int]], list[list[float]], list[list[float]]]:
        """Return ids, log-probabilities and entropies of the last sampled columns, each by row.

        The host reads the device only here.
        """
        end = self.window.used + 1
        ids, logprobs, entropies = self.results[:, :rows, end - columns : end].cpu()
        return ids.long().tolist(), logprobs.tolist(), entropies.tolist()

    def _mask_of(self, rows: int, columns: int) -> torch.Tensor | None:
        # Without holes, attention is causal. To find that out from a mask, the host reads the device.
        return None if self.is_whole and self.layers else self.mask[:rows, :columns]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
        output = self.decoder.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.past,
            use_cache=True,
            logits_to_keep=1,
        )
        self.past = output.past_key_values
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def clear(self, rows: int, used: int, like: Buffers | None = None) -> None:
        """Set everything outside of the first rows and columns to zero.

        Keys and values that do not exist yet get the heads and types of `like`, or else of the first states.
        """
        self.window.used = used
        self.mask.zero_()
        self.parameters.fill_(1)
        for number, layer in enumerate(self.layers):
            if not layer.is_initialized and like is not None:
                layer.allocate(like.layers[number])
            if layer.is_initialized:
                for states in (layer.keys, layer.values):
                    states[:rows, :, used:] = 0
                    states[rows:] = 0

    def copy_first(self, source: Buffers, rows: torch.Tensor) -> None:
        """Hold a copy of some rows of other buffers, from the first row on."""
        count, used = len(rows), source.window.used
        self.clear(count, used, source)
        for own, other in self._pairs(source):
            torch.index_select(other[:, :, :used], 0, rows, out=own[:count, :, :used])
        self.mask[:count, :used] = source.mask[rows, :used]

    def copy_back(self, source: Buffers, rows: torch.Tensor, columns: slice) -> None:
        """Copy columns of the first rows of other buffers to `rows`."""
        for own, other in self._pairs(source):
            own[:, :, columns].index_copy_(0, rows, other[: len(rows), :, columns])

    def copy_packed(
        self, source: Buffers, places: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
    ) -> None:
        """Copy chosen columns of some rows of other buffers to the first columns of `places`.

        `columns` has shape (rows, columns).
        """
        for own, other in self._pairs(source):
            own[places, :, : columns.shape[1]] = other[rows[:, None], :, columns].transpose(1, 2)

    def _pairs(self, source: Buffers) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for own, other in zip(self.layers, source.layers, strict=True):
            yield own.keys, other.keys
            yield own.values, other.values

    def count_bytes(self) -> int:
        """Return the memory of keys and values."""
        layers = [layer for layer in self.layers if layer.is_initialized]
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


class Decoder:
    """A model with its plan, and the buffers of its conversations.

    With buckets, buffers are used again with their graphs when no conversation is left in them.
    """

    def __init__(self, model: Any, *, layers: int, context_length: int, plan: DecodePlan) -> None:
        self.model = model
        """Another model with the same architecture may take its place between two batches."""
        self.layers = layers
        """Number of layers with a plain cache; 0 if the model uses a cache of its own."""
        self.context_length = context_length
        self.plan = plan
        self.graph_memory: Any = torch.cuda.graph_pool_handle() if plan.captures else None
        self._kept: list[tuple[Buffers, weakref.ref[ConversationCache]]] = []
        """Buffers with the conversation that used them last."""
        self._addresses: list[int] = []

    def take(self, user: ConversationCache, rows: int, columns: int, capacity: int) -> Buffers:
        """Return buffers for a conversation with room for these columns; without buckets, with `capacity`."""
        if not self.plan.has_buckets:
            return Buffers(self, rows, max(columns, capacity))
        shape = (self.rows_for(rows), round_up(columns, FIRST_CAPACITY))
        idle = self._idle()
        buffers = next((kept for kept in idle if kept.mask.shape == shape), None) or Buffers(self, *shape)
        self._kept = [entry for entry in self._kept if entry[0] is not buffers]
        self._kept.append((buffers, weakref.ref(user)))
        return buffers

    def rows_for(self, count: int) -> int:
        """Return the number of rows of buffers for a batch."""
        return round_up(count, FIRST_ROWS) if self.plan.has_buckets else count

    def _idle(self) -> list[Buffers]:
        users = [(buffers, user()) for buffers, user in self._kept]
        return [buffers for buffers, user in users if user is None or user.buffers is not buffers]

    def rest(self) -> None:
        """Free the memory of unused buffers if it is a large part of the device's memory."""
        idle = self._idle()
        device = self.model.device
        if not idle or device.type != "cuda":
            return
        whole = torch.cuda.get_device_properties(device).total_memory
        if sum(buffers.count_bytes() for buffers in idle) > whole * KEPT_SHARE:
            self._kept = [entry for entry in self._kept if all(entry[0] is not one for one in idle)]

    def forget_moved_weights(self) -> None:
        """Drop the graphs if a weight has moved, because they read the addresses of their capture."""
        if not self.plan.captures:
            return
        addresses = [weight.data_ptr() for weight in self.model.parameters()]
        if addresses != self._addresses:
            self._addresses = addresses
            for buffers, _ in self._kept:
                buffers.graphs.clear()


class ConversationCache:
    """Conversations in the first rows of buffers, which it exchanges for others when rows or columns change.

    Rows have different lengths, so a row may have holes: columns that its mask hides.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.tokens: list[list[int]] = []
        """Cached ids of each row, without holes."""
        self.buffers: Buffers | None = None

    @property
    def used(self) -> int:
        """Number of columns in use."""
        return 0 if self.buffers is None else self.buffers.window.used

    @property
    def held(self) -> Buffers:
        """The buffers, after the first ids were read."""
        assert self.buffers is not None
        return self.buffers

    def start(self, rows: int) -> None:
        """Start with empty rows."""
        self.tokens = [[] for _ in range(rows)]
        self.buffers = None

    @torch.inference_mode()
    def read(self, block: list[list[int]]) -> torch.Tensor:
        """Add a block of ids to the rows and return the logits after it, with shape (rows, vocabulary).

        The ids are right-aligned: the last column holds every row's last id.
        """
        width = max(len(ids) for ids in block)
        if self.buffers is None:
            self.buffers = self.decoder.take(self, len(block), width + FREE_COLUMNS, FIRST_CAPACITY)
            self.buffers.clear(0, 0)
        self.reserve(width)
        known = torch.tensor([len(tokens) for tokens in self.tokens])
        ids = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens in block])
        new = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in block])
        positions = (known[:, None] + new.cumsum(1) - 1).clamp(min=0)
        for own, tokens in zip(self.tokens, block, strict=True):
            own.extend(tokens)
        end = self.used + width
        device = self.buffers.mask.device
        self.buffers.mask[: len(block), self.used : end] = new.to(device, torch.bool)
        self.buffers.is_whole = all(len(tokens) == end for tokens in self.tokens)
        return self.buffers.read(ids.to(device), positions.to(device))

    def reserve(self, columns: int) -> bool:
        """Make room for `columns` and one result column. Return whether the rows moved to other buffers."""
        capacity, needed = self.held.window.capacity, self.used + columns + 1
        if needed <= capacity:
            return False
        self._copy(self, list(range(len(self.tokens))), needed, 2 * capacity)
        return True

    @torch.inference_mode()
    def select(self, rows: Sequence[int | None]) -> None:
        """Keep only these rows, in this order; a row may be repeated, and None is an empty row."""
        if rows == list(range(len(self.tokens))):
            return
        self._copy(self, [row or 0 for row in rows], self.used + FREE_COLUMNS, 0)
        for place, row in enumerate(rows):
            if row is None:
                self.held.mask[place] = False
        self.tokens = [[] if row is None else list(self.tokens[row]) for row in rows]

    def _copy(self, source: ConversationCache, rows: list[int], columns: int, capacity: int) -> None:
        buffers = self.decoder.take(self, len(rows), columns, capacity)
        buffers.copy_first(source.held, torch.tensor(rows, device=buffers.mask.device))
        self.buffers = buffers

    @classmethod
    @torch.inference_mode()
    def of_rows(cls, picked: Sequence[tuple[ConversationCache, int]]) -> ConversationCache:
        """Return a cache of the given rows of other caches, in this order, without their holes."""
        first = picked[0][0]
        made = cls(first.decoder)
        made.tokens = [list(cache.tokens[row]) for cache, row in picked]
        width = max(len(tokens) for tokens in made.tokens)
        buffers = made.buffers = made.decoder.take(made, len(picked), width + FREE_COLUMNS, 0)
        buffers.clear(0, 0, first.held)
        buffers.window.used = width
        device = buffers.mask.device
        lengths = torch.tensor([len(tokens) for tokens in made.tokens], device=device)
        buffers.mask[: len(picked), :width] = torch.arange(width, device=device) < lengths[:, None]
        for source in {id(cache): cache for cache, _ in picked}.values():
            at = [place for place, (cache, _) in enumerate(picked) if cache is source]
            rows = torch.tensor([picked[place][1] for place in at], device=device)
            # The columns with tokens come first, in order, before the columns that the mask hides.
            mask = source.held.mask[rows, : source.used].long()
            columns = mask.argsort(dim=1, descending=True, stable=True)[:, :width]
            buffers.copy_packed(source.held, torch.tensor(at, device=device), rows, columns)
        return made

    def narrow(self, rows: list[int]) -> ConversationCache:
        """Return a copy of some rows, so that only they are computed."""
        narrow = ConversationCache(self.decoder)
        narrow.tokens = [self.tokens[row] for row in rows]
        narrow._copy(self, rows, self.used + FREE_COLUMNS, 0)
        return narrow

    def merge(self, narrow: ConversationCache, rows: list[int], first: int) -> None:
        """Copy the columns from `first` on that were computed in a copy of some rows."""
        self.reserve(max(0, narrow.used - self.used))
        index = torch.tensor(rows, device=self.held.mask.device)
        self.held.copy_back(narrow.held, index, slice(first, narrow.used))
        self.held.window.used = narrow.used

    def end_turn(self, first: int, added: list[list[int]]) -> None:
        """Keep the ids that each row added from column `first` on, and hide its other columns."""
        buffers = self.held
        end = first + max(len(ids) for ids in added)
        counts = torch.tensor([len(ids) for ids in added], device=buffers.mask.device)
        buffers.mask[:, first:] = False
        columns = torch.arange(end - first, device=buffers.mask.device)
        buffers.mask[: len(added), first:end] = columns < counts[:, None]
        buffers.window.used = end
        for own, ids in zip(self.tokens, added, strict=True):
            own.extend(ids)
