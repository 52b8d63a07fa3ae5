"""Reports of runs, and manifests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from wander.errors import MissingExtra
from wander.evals.report.charts import chart_histogram
from wander.evals.report.document import reward_text, run_lines, run_markdown
from wander.evals.stats.breakdown import Breakdown, break_down
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, Rollout, Usage
from wander.wire import EnvironmentPin, Histogram, ModelPin, RunManifest


def manifest(name: str = "echo") -> RunManifest:
    info = EnvironmentInfo(name=name, kind="single_turn")
    pin = EnvironmentPin(owner="alice" if name == "echo" else None, name=name, version="1.2", info=info)
    examples = [Example(example_id=str(i), index=i, seed=i, prompt=[]) for i in range(4)]
    return new_manifest(environment=pin, model=ModelPin(name="m", kind="k"), examples=examples)


def broken_down(*rewards: float, metric: str = "exact") -> Breakdown:
    rollouts = [
        Rollout(
            example_id=str(i),
            index=0,
            seed=i,
            prompt=[],
            completion=[],
            reward=reward,
            metrics={metric: reward},
            stop_reason="max_turns_reached",
            usage=Usage(prompt_tokens=1000, completion_tokens=5),
        )
        for i, reward in enumerate(rewards)
    ]
    failure = Failure(boundary="model", type="RateLimited", message="429")
    rollouts.append(Rollout(example_id="x", index=0, seed=0, prompt=[], completion=[], failure=failure))
    return break_down(manifest(), rollouts)


def test_the_report_has_score_counts_failures_and_metrics() -> None:
    text = "\n".join(run_lines(manifest(), broken_down(0.0, 0.5, 1.0)))
    assert text.startswith("m on alice/echo 1.2\nreward    0.5000 (95% interval ")
    assert "4 of 4: 4 examples, 1 each; 1 failed" in text
    assert "failed    model 1" in text
    assert "max_turns_reached 3" in text
    assert "3,000 read, 15 written" in text
    assert re.search(r"exact   0\.5000  .+ to .+  0\.5000      3", text)
    assert text.count("#" * 30) == 3


def test_the_report_mentions_missing_scores() -> None:
    assert reward_text(broken_down().summary) == "none: no rollout was scored"
    assert "too few" in reward_text(broken_down(0.3).summary)
    assert "no rollout was scored" in run_markdown(manifest(), broken_down())


def test_markdown_keeps_foreign_names_in_their_cells() -> None:
    hostile = "a|b\n<script>`x`"
    section = run_markdown(manifest(hostile), broken_down(0.0, 1.0, metric=hostile))
    assert "<script>" not in section.replace("\\<script\\>", "")
    for line in section.splitlines():
        if line.startswith("| a"):
            assert line.replace("\\|", "").count("|") == 6


def test_every_nonempty_bin_is_visible() -> None:
    lines = run_lines(manifest(), broken_down(*[0.0] * 500, 1.0))
    assert lines[-1].endswith("1  #")


@pytest.mark.parametrize("rewards", [(0.0, 0.5, 1.0), (0.25, 0.25)])
@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<svg"), (".png", b"\x89PNG")])
def test_the_histogram_is_drawn(
    tmp_path: Path, suffix: str, start: bytes, rewards: tuple[float, ...]
) -> None:
    path = tmp_path / f"rewards{suffix}"
    found = broken_down(*rewards).summary
    assert found.histogram is not None
    chart_histogram(found.histogram, axis="reward", mean=found.reward_mean).properties(width=480).save(path)
    assert path.read_bytes().startswith(start)


def test_a_chart_requires_altair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match="chart"):
        chart_histogram(Histogram(edges=[1.0, 1.0], counts=[1]), axis="reward")
