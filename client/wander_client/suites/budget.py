"""A budget that the evaluations of a suite share, over all parts in which the suite is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wander_client.errors import UsageError
from wander_client.models.reference import is_local_model

if TYPE_CHECKING:
    from wander.evals.run.budget import SharedBudget

    from wander_client.evaluate.settings import EvaluationSettings
    from wander_client.suites.file import Suite
    from wander_client.suites.play import Ready


def share_budget(suite: Suite, ready: list[Ready]) -> SharedBudget | None:
    """Return what the evaluations may spend together, with what earlier parts spent; None without bounds.

    Raises `UsageError` for a bound in USD where somebody's prices are not known.
    """
    from wander.evals.run.budget import SharedBudget

    if suite.budget_tokens is None and suite.budget_usd is None:
        return None
    for each in ready:
        if (
            suite.budget_usd is not None
            and each.evaluation.settings.prices is None
            and _is_paid(each.evaluation.settings)
        ):
            raise UsageError(
                f"{each.run.where}: a budget of the suite in USD needs the prices of "
                f"`{each.evaluation.settings.model}`",
                hint="give them in USD per million tokens: `--price 0.15/0.60`; in a suite `price`",
            )
    earlier = {each.run.folder: _sum_spent(each) for each in ready}
    return SharedBudget(suite.budget_tokens, suite.budget_usd, earlier)


def describe_spending(budget: SharedBudget) -> dict[str, Any]:
    """Return what `--json` tells of a shared budget."""
    return {
        "tokens": budget.spent_tokens,
        "usd": budget.spent_usd,
        "budget_tokens": budget.tokens,
        "budget_usd": budget.usd,
        "budget_spent": budget.spent,
    }


def _is_paid(settings: EvaluationSettings) -> bool:
    """Tell whether somebody else answers the calls: a model of this machine costs nothing."""
    local = settings.base_url is None and is_local_model(settings.model)
    return not (local or settings.serve is not None or settings.model.startswith("scripted:"))


def _sum_spent(ready: Ready) -> tuple[int, float]:
    """Return the tokens and the cost of the parts of an evaluation that were played before."""
    from wander.evals.run.budget import Meter, count_tokens
    from wander.evals.store.folder import RunFolder
    from wander.types import Usage

    if not (ready.evaluation.run_dir / "run.json").exists():
        return 0, 0.0
    folder = RunFolder.open(ready.evaluation.run_dir)
    spending = folder.manifest.spending
    meter = Meter(ready.evaluation.settings.plan().budget, Usage() if spending is None else spending.usage)
    meter.at_least(sum((count_tokens(one.turns) for one in folder.rollouts()), Usage()))
    return meter.tokens, meter.usd or 0.0
