"""A budget that the evaluations of a suite share: when it ends them, and how they go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from command_line import Wander
from wander.evals.run.budget import Budget, Meter, Share, SharedBudget
from wander.types import Usage
from wander.wire import TokenPrices

EACH = 3
"""Evaluations of the suite, with four rollouts each."""


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with chat_endpoint(lambda messages: messages[-1]["content"].removeprefix("say ")) as running:
        yield running


@pytest.fixture
def file(home: Path, folder: Path, endpoint: ChatEndpoint) -> Path:
    """A suite that plays one rollout after the other."""
    entry = (
        '[[eval]]\nenvironment = "./say-env"\nmodel = "echo"\nnum_examples = 4\n'
        f'base_url = "{endpoint.base_url}"\nprices = "1000/1000"\nseed = [0, 1, 2]\n'
    )
    path = home / "suite.toml"
    path.write_text("concurrency = 1\nevaluations_at_once = 1\n" + entry)
    return path


def spent(data: dict[str, Any]) -> int:
    """Return the tokens that the runs' own records say."""
    total = 0
    for each in data["runs"]:
        path = Path(each["run_dir"]) / "run.json"
        if path.exists():
            usage = json.loads(path.read_text())["spending"]["usage"]
            total += usage["prompt_tokens"] + usage["completion_tokens"]
    return total


@pytest.mark.full
def test_a_suite_stops_at_its_budget_and_resumes_with_a_larger_one(
    wander: Wander, file: Path, endpoint: ChatEndpoint
) -> None:
    whole = wander("eval", str(file), "--json")
    assert whole.status == 0, whole.out
    of_one = spent(whole.data) // (4 * EACH)
    asked = len(endpoint.requests)
    budget = str(of_one * 6)
    first = wander("eval", str(file), "--budget-tokens", budget, "--json")
    assert first.status == 6, first.out
    assert [each["state"] for each in first.data["runs"]] == ["done", "partial", "partial"]
    assert first.data["runs"][2]["run_id"] is None, "the last one never began"
    assert first.data["spending"]["tokens"] == spent(first.data)
    assert "tokens is spent" in first.data["spending"]["budget_spent"]
    assert any("2 of 3 evaluations are incomplete" in one for one in first.json["warnings"])
    assert 6 <= len(endpoint.requests) - asked < 4 * EACH
    folder = first.data["suite_dir"]
    asked = len(endpoint.requests)
    again = wander("eval", "--resume", folder, "--json")
    assert (again.status, len(endpoint.requests)) == (6, asked), "the budget is kept, and what it took"
    more = wander("eval", "--resume", folder, "--budget-tokens", str(of_one * 100), "--json")
    assert more.status == 0, more.out
    assert [each["state"] for each in more.data["runs"]] == ["kept", "done", "done"]
    assert more.data["spending"]["tokens"] == spent(more.data)


@pytest.mark.full
def test_the_cost_counts_and_the_resume_command_is_printed(wander: Wander, file: Path) -> None:
    text = file.read_text()
    file.write_text("budget_usd = 0.000001\n" + text)
    done = wander("eval", str(file))
    assert done.status == 6, done.err
    assert "the budget of 1e-06 USD is spent" in done.err
    (following,) = [line for line in done.err.splitlines() if "budget_usd=" in line]
    words = following[following.index("wander eval") :].strip("` ").split()
    assert wander(*words[1:-1], "budget_usd=1000").status == 0


@pytest.mark.full
def test_a_budget_in_usd_needs_prices(wander: Wander, file: Path) -> None:
    text = file.read_text().replace('prices = "1000/1000"\n', "")
    file.write_text(text)
    refused = wander("eval", str(file), "--set", "budget_usd=1", "--json")
    assert refused.status == 2
    assert "requires the prices of `echo`" in refused.json["error"]["message"]
    file.write_text(text.replace('"echo"', '"scripted:say_env:solver"').replace("base_url", "# base_url"))
    assert wander("eval", str(file), "--set", "budget_usd=1").status == 0, "a script costs nothing"


def test_several_models_share_one_budget(wander: Wander, folder: Path, endpoint: ChatEndpoint) -> None:
    words = ("eval", "./say-env", "-m", "one", "-m", "two", "-b", endpoint.base_url, "-n", "4", "-c", "1")
    done = wander(*words, "--budget-tokens", "1", "--json")
    assert done.status == 6, done.out
    assert sum(each["summary"]["rollouts"] for each in done.data["runs"] if each["summary"]) <= 2


def test_costs_of_interrupted_runs_count_toward_the_budget() -> None:
    shared = SharedBudget(tokens=100, usd=1.0, earlier={"a": (30, 0.3), "b": (20, 0.0)})
    assert (shared.spent_tokens, shared.spent_usd, shared.spent) == (50, 0.3, None)
    priced = Budget(prices=TokenPrices(prompt=10_000.0, completion=10_000.0))
    meter = Meter(priced, Usage(prompt_tokens=30), Share(shared, "a"))
    assert (shared.spent_tokens, shared.spent_usd) == (50, pytest.approx(0.3))
    meter.at_least(Usage(prompt_tokens=79))
    assert meter.spent is None
    meter.at_least(Usage(prompt_tokens=80))
    assert meter.spent == "the budget of 100 tokens is spent (100)"
    spending = meter.spending()
    assert spending is not None
    assert (spending.usage.prompt_tokens, spending.budget_tokens) == (80, None)
