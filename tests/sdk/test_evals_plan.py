"""What an evaluation plays and spends: strata, budgets, only what failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wander import LocalEnvironment, Rubric, ScriptedClient, SingleTurnEnv
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ConfigError
from wander.evals.run.budget import Budget
from wander.evals.run.plan import EvaluationPlan, in_turn
from wander.evals.run.runner import EvaluationResult, evaluate
from wander.evals.store.folder import RunFolder
from wander.types import Usage
from wander.wire import EnvironmentPin, TokenPrices


def exact(completion: list[dict[str, Any]], answer: str) -> float:
    if completion[-1]["content"] == "break":
        raise ValueError("broken")
    return float(completion[-1]["content"] == answer)


def environment(strata: list[int | None] | None = None, count: int = 10, **options: Any) -> LocalEnvironment:
    strata = strata or [None] * count
    rows: list[dict[str, Any]] = [{"question": f"{i}?", "answer": str(i)} for i in range(len(strata))]
    for row, stratum in zip(rows, strata, strict=True):
        if stratum is not None:
            row["stratum"] = stratum
    declared = len({each for each in strata if each is not None}) or None
    return LocalEnvironment(
        SingleTurnEnv(eval_dataset=rows, rubric=Rubric([exact]), name="echo", strata=declared, **options)
    )


class Priced(Client):
    """Answers each request with 10 prompt and 5 completion tokens."""

    model = "priced"

    def __init__(self, answer: Callable[[ModelRequest], str] | None = None) -> None:
        self.calls = 0
        self.answer = answer or (lambda request: str(request.messages[-1]["content"]).rstrip("?"))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        message = {"role": "assistant", "content": self.answer(request)}
        return ModelResponse(message=message, usage=Usage(prompt_tokens=10, completion_tokens=5))


async def run(
    folder: Path | None,
    client: Client,
    env: LocalEnvironment | None = None,
    resume: bool = False,
    **options: Any,
) -> EvaluationResult:
    env = env or environment()
    pin = EnvironmentPin(name="echo", info=env.info)
    return await evaluate(env, client, EvaluationPlan(**options), folder, pin, resume=resume)


@pytest.mark.parametrize(
    ("strata", "order"),
    [
        ([0, 0, 0, 1, 1, 2], [0, 3, 5, 1, 4, 2]),
        ([2, 1, 0], [2, 1, 0]),
        ([None, 1, 0, None], [2, 1, 0, 3]),
        ([], []),
    ],
)
def test_strata_alternate(strata: list[int | None], order: list[int]) -> None:
    assert in_turn(strata) == order


async def test_a_run_over_strata_is_balanced_and_recorded(tmp_path: Path) -> None:
    env = environment([0] * 6 + [1] * 3 + [2])
    result = await run(tmp_path / "run", Priced(), env, num_examples=5, strata=True)
    assert result.manifest.example_ids == ["0", "6", "9", "1", "7"]
    assert result.manifest.choice == "strata"
    again = await run(None, Priced(), env, num_examples=5, strata=True)
    assert again.manifest.example_ids == result.manifest.example_ids
    drawn = await run(None, Priced(), env, num_examples=5, strata=True, shuffle=True, seed=3)
    assert drawn.manifest.choice == "shuffled strata"
    assert drawn.manifest.example_ids != result.manifest.example_ids
    assert {int(name) < 6 for name in drawn.manifest.example_ids[:1]} == {True}


async def test_undeclared_strata_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match="`echo` declares no strata"):
        await run(None, Priced(), strata=True)


async def test_a_token_budget_stops_the_run_and_a_higher_one_resumes_it(tmp_path: Path) -> None:
    client = Priced()
    first = await run(tmp_path / "run", client, concurrency=1, budget=Budget(tokens=60))
    assert client.calls == first.summary.rollouts == 4
    assert first.spent == "the budget of 60 tokens is spent (60)"
    assert not first.interrupted
    again = await run(tmp_path / "run", client, resume=True, concurrency=1, budget=Budget(tokens=60))
    assert (client.calls, again.summary.rollouts) == (4, 4), "nothing is left of it"
    assert again.spent is not None
    last = await run(tmp_path / "run", client, resume=True, concurrency=1, budget=Budget(tokens=1000))
    assert (client.calls, last.summary.rollouts, last.spent) == (10, 10, None)
    spending = RunFolder.open(tmp_path / "run").manifest.spending
    assert spending is not None
    assert (spending.usage.prompt_tokens, spending.usage.completion_tokens) == (100, 50)
    assert spending.budget_tokens == 1000
    assert spending.usd is None


async def test_running_rollouts_finish_after_the_budget_is_spent(tmp_path: Path) -> None:
    client = Priced()
    result = await run(tmp_path / "run", client, concurrency=4, budget=Budget(tokens=1))
    assert 1 <= result.summary.rollouts < 10
    assert result.summary.rollouts == client.calls
    assert result.summary.failed == 0


async def test_a_budget_in_usd_counts_by_the_prices(tmp_path: Path) -> None:
    prices = TokenPrices(prompt=1000.0, completion=2000.0)  # 10 and 5 tokens: 0.02 USD a call
    result = await run(tmp_path / "run", Priced(), concurrency=1, budget=Budget(usd=0.05, prices=prices))
    assert result.summary.rollouts == 3
    assert result.manifest.spending is not None
    assert result.manifest.spending.usd == pytest.approx(0.06)
    with pytest.raises(ConfigError, match="needs the model's prices"):
        Budget(usd=1.0)


async def test_costs_of_a_killed_part_count(tmp_path: Path) -> None:
    await run(tmp_path / "run", Priced(), concurrency=1, budget=Budget(tokens=60))
    folder = RunFolder.open(tmp_path / "run")
    folder.change_manifest(spending=None)
    again = await run(tmp_path / "run", Priced(), resume=True, concurrency=1, budget=Budget(tokens=75))
    assert again.summary.rollouts == 5


async def test_only_failed_does_not_play_missing_rollouts(tmp_path: Path) -> None:
    breaks = Priced(lambda request: "break" if request.messages[-1]["content"] in ("1?", "2?") else "x")
    await run(tmp_path / "run", breaks, concurrency=1, budget=Budget(tokens=60))
    client = Priced()
    result = await run(tmp_path / "run", client, resume=True, only_failed=True)
    assert client.calls == 2
    assert result.left_out == 6
    assert not result.interrupted
    assert (result.summary.rollouts, result.summary.failed) == (4, 0)
    folder = RunFolder.open(tmp_path / "run")
    assert {each.example_id: each.reward for each in folder.rollouts()} == {
        "0": 0.0, "1": 1.0, "2": 1.0, "3": 0.0,
    }  # fmt: skip
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert len(lines) == 6, "the failed lines stay as history"


async def test_a_group_with_a_failure_is_played_again_as_a_whole_and_can_be_read(tmp_path: Path) -> None:
    class Grouped(SingleTurnEnv):
        """Says that rewards compare the rollouts of an example."""

        @property
        def info(self) -> Any:
            return super().info.model_copy(update={"group_rewards": True})

    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(3)]
    env = LocalEnvironment(Grouped(eval_dataset=rows, rubric=Rubric([exact]), name="echo"))
    count = 0

    def breaks_once(request: ModelRequest) -> str:
        nonlocal count
        count += 1
        return "break" if count == 3 else str(request.messages[-1]["content"]).rstrip("?")

    first = await run(tmp_path / "run", Priced(breaks_once), env, rollouts_per_example=2, concurrency=2)
    assert first.summary.failed == 1
    again = Priced()
    last = await run(
        tmp_path / "run", again, env, resume=True, rollouts_per_example=2, concurrency=2, only_failed=True
    )
    assert again.calls == 2
    assert (last.summary.rollouts, last.summary.failed, last.left_out) == (6, 0, 0)
    assert len(list(RunFolder.open(tmp_path / "run").rollouts())) == 6


async def test_a_cached_answer_costs_nothing_and_is_marked(tmp_path: Path) -> None:
    class HalfCached(Priced):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            response = await super().complete(request)
            return response.model_copy(update={"cached": int(request.rollout_id[0]) % 2 == 0})

    result = await run(tmp_path / "run", HalfCached(), budget=Budget(tokens=10_000))
    assert result.manifest.spending is not None
    assert result.manifest.spending.usage.prompt_tokens == 50
    assert result.manifest.endpoints is not None
    assert result.manifest.endpoints.cached == 5
    folder = RunFolder.open(tmp_path / "run")
    cached = {each.example_id for each in folder.rollouts() if each.turns[0].cached}
    assert cached == {"0", "2", "4", "6", "8"}


async def test_the_cache_marker_is_not_posted() -> None:
    response = ModelResponse(message={"role": "assistant", "content": "x"}, cached=True)
    assert "cached" not in response.model_dump()
    assert (
        await ScriptedClient(["x"]).complete(ModelRequest(rollout_id="a", turn=0, messages=[]))
    ).cached is False
