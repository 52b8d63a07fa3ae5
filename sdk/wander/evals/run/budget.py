"""What a run spends at its model, and when that is enough."""

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
    """Bounds on what a run spends, over all its parts; None means no bound."""

    tokens: int | None = None
    """Prompt and completion tokens together."""
    usd: float | None = None
    prices: TokenPrices | None = None
    """Without them nothing is known of the cost."""

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"a budget of {self.tokens} tokens is none")
        if self.usd is not None and self.usd <= 0:
            raise ConfigError(f"a budget of {self.usd} USD is none")
        if self.usd is not None and self.prices is None:
            raise ConfigError(
                "a budget in USD needs the model's prices",
                hint="give `prices`, in USD per million tokens",
            )


@dataclass
class SharedBudget:
    """What several runs may spend together, whichever of them play now."""

    tokens: int | None = None
    """Prompt and completion tokens together; None means no bound."""
    usd: float | None = None
    earlier: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Tokens and USD that earlier parts of the runs spent, by their names."""
    meters: dict[str, Meter] = field(default_factory=dict)
    """Of the runs that play, or played; they know of their earlier parts."""

    @property
    def is_bound(self) -> bool:
        """Whether there is any bound."""
        return self.tokens is not None or self.usd is not None

    @property
    def spent_tokens(self) -> int:
        """Tokens that all runs spent so far."""
        now = sum(meter.tokens for meter in self.meters.values())
        return now + sum(tokens for name, (tokens, _) in self.earlier.items() if name not in self.meters)

    @property
    def spent_usd(self) -> float:
        """What they cost, those without prices left out."""
        now = sum(meter.usd or 0.0 for meter in self.meters.values())
        return now + sum(usd for name, (_, usd) in self.earlier.items() if name not in self.meters)

    @property
    def spent(self) -> str | None:
        """The budget that is spent, in words; None while the runs may go on."""
        if self.tokens is not None and self.spent_tokens >= self.tokens:
            return f"the budget of {self.tokens:,} tokens is spent ({self.spent_tokens:,})"
        if self.usd is not None and self.spent_usd >= self.usd:
            return f"the budget of {self.usd:g} USD is spent ({self.spent_usd:.4g})"
        return None


class Share(NamedTuple):
    """A run's part in a budget that it shares with others."""

    budget: SharedBudget
    name: str
    """Of the run, among those that share."""


class Meter:
    """Counts the tokens that a run takes from its model, what a cache answers left out."""

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
        """Tokens spent, those of earlier parts of the run included."""
        return self.usage.prompt_tokens + self.usage.completion_tokens

    @property
    def usd(self) -> float | None:
        """What they cost; None if the prices are not known, or the endpoint does not count all tokens."""
        prices = self.budget.prices
        return None if prices is None or self.usage.estimated else prices.cost(self.usage)

    @property
    def is_blind(self) -> bool:
        """Whether there is a budget that cannot be kept, since the endpoint does not count all tokens."""
        bound = self.budget.tokens is not None or self.budget.usd is not None
        return self.usage.estimated and (bound or (self._share is not None and self._share.budget.is_bound))

    @property
    def spent(self) -> str | None:
        """The budget that is spent, in words; None while the run may go on."""
        if self.budget.tokens is not None and self.tokens >= self.budget.tokens:
            return f"the budget of {self.budget.tokens:,} tokens is spent ({self.tokens:,})"
        cost = self.usd
        if self.budget.usd is not None and cost is not None and cost >= self.budget.usd:
            return f"the budget of {self.budget.usd:g} USD is spent ({cost:.4g})"
        return self._share.budget.spent if self._share is not None else None

    def spending(self) -> Spending | None:
        """Return what the manifest says; None for a run without any budget and prices."""
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
        """Learn of tokens on record; a part of the run that was killed could not say what it spent."""
        self.usage = Usage(
            prompt_tokens=max(self.usage.prompt_tokens, usage.prompt_tokens),
            completion_tokens=max(self.usage.completion_tokens, usage.completion_tokens),
            estimated=self.usage.estimated or usage.estimated,
        )

    def add(self, request: ModelRequest, response: ModelResponse) -> None:
        """Count one answer."""
        if response.cached:
            self.cached_calls += 1
            self._cached[request.rollout_id].add(request.turn)
            return
        self.usage += response.usage

    def mark(self, rollout: Rollout, rollout_id: str) -> Rollout:
        """Return the rollout with the turns marked that a cache answered."""
        numbers = self._cached.pop(rollout_id, None)
        if not numbers:
            return rollout
        turns = [
            turn.model_copy(update={"cached": True}) if number in numbers else turn
            for number, turn in enumerate(rollout.turns)
        ]
        return rollout.model_copy(update={"turns": turns})


def count_tokens(turns: list[Turn]) -> Usage:
    """Return the tokens of the turns that a model was really asked for."""
    return sum((turn.usage for turn in turns if not turn.cached), Usage())


def count_answers(turns: list[Turn], others: Collection[str]) -> int:
    """Return how many turns the model was really asked for; `others` are players with their own."""
    return sum(not turn.cached and turn.player not in others for turn in turns)


class MeteredClient(WrappedClient):
    """The client of an evaluation: tells the admission of every call, and the meter of every answer."""

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
