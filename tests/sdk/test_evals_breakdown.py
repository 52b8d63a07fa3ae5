"""What a report tells of a run beyond its summary."""

from __future__ import annotations

import pytest
from wander.evals.stats.breakdown import break_down
from wander.evals.stats.summary import summarize
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, Rollout
from wander.wire import EnvironmentPin, ModelPin, RunManifest


def manifest(examples: int, *, strata: int | None = None) -> RunManifest:
    pin = EnvironmentPin(name="e", info=EnvironmentInfo(name="e", kind="single_turn"))
    rows = [
        Example(example_id=str(i), index=i, seed=i, prompt=[], stratum=i % strata if strata else None)
        for i in range(examples)
    ]
    return new_manifest(environment=pin, model=ModelPin(name="m", kind="k"), examples=rows)


def scored(example: int, reward: float, index: int = 0, **fields: object) -> Rollout:
    base = {"example_id": str(example), "index": index, "seed": 0, "prompt": [], "completion": []}
    return Rollout.model_validate(base | {"reward": reward} | fields)


def test_the_breakdown_has_the_summary_of_the_run() -> None:
    rows = [scored(i, float(i % 3 == 0)) for i in range(9)]
    assert break_down(manifest(9), rows).summary == summarize(rows, expected=9)


def test_metrics_have_intervals_and_constant_ones_claim_no_certainty() -> None:
    rows = [
        scored(i, 0.0, metrics={"varied": float(i), "constant": 1.0, "broken": float("nan")})
        for i in range(10)
    ]
    found = break_down(manifest(10), rows)
    assert set(found.summary.metrics) == {"varied", "constant"}
    varied, constant = found.summary.metrics["varied"], found.summary.metrics["constant"]
    assert varied.low is not None
    assert varied.high is not None
    assert varied.low < 4.5 < varied.high
    assert (constant.low, constant.high) == (None, None)


def test_strata_are_scored_separately() -> None:
    rows = [scored(i, float(i % 2)) for i in range(12)]
    found = break_down(manifest(12, strata=2), rows)
    assert [(one.stratum, one.examples, one.mean) for one in found.strata] == [(0, 6, 0.0), (1, 6, 1.0)]
    assert break_down(manifest(12), rows).strata == []
    assert break_down(manifest(12, strata=1), rows).strata == [], "one stratum tells nothing more"


def test_failures_are_grouped_by_their_reason() -> None:
    def failed(i: int, message: str) -> Rollout:
        failure = Failure(boundary="tool", type="ToolError", message=message)
        return Rollout(example_id=str(i), index=0, seed=0, prompt=[], completion=[], failure=failure)

    rows = [failed(0, "a"), failed(1, "b"), failed(2, "b"), scored(3, 1.0)]
    found = break_down(manifest(4), rows).failures
    assert [(one.boundary, one.type, one.message, one.count) for one in found] == [
        ("tool", "ToolError", "b", 2),
        ("tool", "ToolError", "a", 1),
    ]


def test_the_interval_predicts_another_run() -> None:
    rows = [scored(i, i / 20) for i in range(20)]
    found = break_down(manifest(20), rows)
    # 2.80 standard errors of the difference, a little more for the t distribution's sake
    assert found.detectable == pytest.approx(2.87 * (2 * 0.0875 / 20) ** 0.5, rel=0.02)
    assert break_down(manifest(1), rows[:1]).detectable is None
