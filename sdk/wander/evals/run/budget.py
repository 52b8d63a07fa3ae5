"""Tracks what a run spends on its model, and decides when its budget is used up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
from wander.clients.retries import WAITING_OUT
from wander.clients.sub_calls import main_rollout_id
from wander.errors import ConfigError
from wander.evals.run.admission import Admission
from wander.types import Rollout, Turn, Usage
from wander.wire import Spending, TokenPrices


@dataclass(frozen=True)
class Budget:
    """Limits on the spending of a run, over all of its sessions. None means no limit."""

    tokens: int | None = None
    """Maximum number of prompt and completion tokens in total."""
    usd: float | None = None
    prices: TokenPrices | None = None
    """Token prices of the model. Without prices the cost is unknown."""

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"a token budget must be at least 1, not {self.tokens}")
        if self.usd is not None and self.usd <= 0:
            raise ConfigError(f"a budget in USD must be positive, not {self.usd:g}")
        if self.usd is not None and self.prices is None:
            raise ConfigError(
                "a budget in USD needs the model's prices",
                hint="pass `prices`, in USD per million tokens",
            )


@dataclass
class SharedBudget:
    """Budget that several runs share, no matter which of them are playing."""

    tokens: int | None = None
    """Maximum number of prompt and completion tokens in total. None means no limit."""
    usd: float | None = None
    earlier: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Tokens and USD spent in earlier sessions, by name of the run."""
    meters: dict[str, Meter] = field(default_factory=dict)
    """Meters of the runs in this session, by name. They include the spending of earlier sessions."""

    @property
    def is_bound(self) -> bool:
        """Whether the budget has any limit."""
        return self.tokens is not None or self.usd is not None

    @property
    def spent_tokens(self) -> int:
        """Tokens spent by all runs so far."""
        now = sum(meter.tokens for meter in self.meters.values())
        return now + sum(tokens for name, (tokens, _) in self.earlier.items() if name not in self.meters)

    @property
    def spent_usd(self) -> float:
        """USD spent by all runs so far. Runs without prices count as 0."""
        now = sum(meter.usd or 0.0 for meter in self.meters.values())
        return now + sum(usd for name, (_, usd) in self.earlier.items() if name not in self.meters)

    @property
    def spent(self) -> str | None:
        """Description of the budget that is used up, or None while the runs may continue."""
        if self.tokens is not None and self.spent_tokens >= self.tokens:
            return f"the budget of {self.tokens:,} tokens is spent ({self.spent_tokens:,})"
        if self.usd is not None and self.spent_usd >= self.usd:
            return f"the budget of {self.usd:g} USD is spent ({self.spent_usd:.4g})"
        return None


class Share(NamedTuple):
    """Part of a run in a shared budget."""

    budget: SharedBudget
    name: str
    """Name of the run within the shared budget."""


class Meter:
    """Counts the tokens that a run takes from its model, without answers from a cache."""

    def __init__(self, budget: Budget, before: Usage, share: Share | None = None) -> None:
        self.budget = budget
        self._share = share
        if share is not None:
            share.budget.meters[share.name] = self
        self.usage = before
        self.cached_calls = 0
        self._cached: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def tokens(self) -> int:
        """Tokens spent, including earlier sessions of the run."""
        return self.usage.prompt_tokens + self.usage.completion_tokens

    @property
    def usd(self) -> float | None:
        """Cost in USD, or None if prices are unknown or the endpoint does not report all tokens."""
        prices = self.budget.prices
        return None if prices is None or self.usage.estimated else prices.cost(self.usage)

    @property
    def is_blind(self) -> bool:
        """Whether a budget cannot be enforced, because the endpoint does not report all tokens."""
        bound = self.budget.tokens is not None or self.budget.usd is not None
        return self.usage.estimated and (bound or (self._share is not None and self._share.budget.is_bound))

    @property
    def spent(self) -> str | None:
        """Description of the budget that is used up, or None while the run may continue."""
        if self.budget.tokens is not None and self.tokens >= self.budget.tokens:
            return f"the budget of {self.budget.tokens:,} tokens is spent ({self.tokens:,})"
        cost = self.usd
        if self.budget.usd is not None and cost is not None and cost >= self.budget.usd:
            return f"the budget of {self.budget.usd:g} USD is spent ({cost:.4g})"
        return self._share.budget.spent if self._share is not None else None

    def spending(self) -> Spending | None:
        """Return the spending for the manifest, or None for a run without a budget and prices."""
        if self.budget == Budget() and self._share is None:
            return None
        return Spending(
            usage=self.usage,
            usd=self.usd,
            prices=self.budget.prices,
            budget_tokens=self.budget.tokens,
            budget_usd=self.budget.usd,
        )

    def at_least(self, usage: Usage) -> None:
        """Raise the counts to those on record. A killed session could not save what it spent."""
        self.usage = self.usage.at_least(usage)

    def add(self, request: ModelRequest, response: ModelResponse) -> None:
        """Count an answer."""
        if response.cached:
            self.cached_calls += 1
            self._cached[request.rollout_id].add(request.turn)
            return
        self.usage += response.usage

    def mark(self, rollout: Rollout, rollout_id: str) -> Rollout:
        """Return the rollout with its cached turns marked."""
        numbers = self._cached.pop(rollout_id, None)
        if not numbers:
            return rollout
        turns = [
            turn.model_copy(update={"cached": True}) if number in numbers else turn
            for number, turn in enumerate(rollout.turns)
        ]
        return rollout.model_copy(update={"turns": turns})


def count_tokens(turns: list[Turn]) -> Usage:
    """Return the tokens of the turns with a real model call."""
    return sum((turn.usage for turn in turns if not turn.cached), Usage())


def count_answers(turns: list[Turn], others: Collection[str]) -> int:
    """Return the number of turns with a real model call, without the players in `others`."""
    return sum(not turn.cached and turn.player not in others for turn in turns)


class MeteredClient(WrappedClient):
    """Client of an evaluation that reports every call to the admission and every answer to the meter."""

    def __init__(self, client: Client, admission: Admission, meter: Meter) -> None:
        super().__init__(client)
        self._admission = admission
        self._meter = meter

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the client's completion."""
        self._admission.begin_call(main_rollout_id(request.rollout_id))
        token = WAITING_OUT.set(self._admission.waiting_out)
        try:
            response = await super().complete(request)
        finally:
            WAITING_OUT.reset(token)
            self._admission.end_call()
        self._meter.add(request, response)
        return response
