from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wander.errors import ConfigError
from wander.train.records.files import CellEvaluation, write_evaluations
from wander.train.watch.plots import MOST_POINTS, PlottedRun, draw_learning_curve, draw_runs, thin_out


def entries(steps: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "steps": steps,
            "reward": step / steps,
            "reward_std": 0.2,
            "rewards/won": 0.5,
            "truncated": 0.0,
            "rollouts": 8,
            "seconds/step": 36.0,
            "seconds/generation": 24.0,
            "seconds/update": 12.0,
            **fields,
        }
        for step in range(1, steps + 1)
    ]


def evaluation(step: int) -> CellEvaluation:
    return CellEvaluation(
        step=step,
        cell="optimal",
        split="eval",
        task_set_sha256="0" * 64,
        examples=10,
        reward=0.5,
        interval=(0.4, 0.6),
    )


def titles(chart: dict[str, Any]) -> list[str]:
    """Return the titles of the vertical axes of a chart, panel by panel."""
    found = []
    for row in chart["vconcat"]:
        for panel in row["hconcat"]:
            layer = panel["layer"][0] if "layer" in panel else panel
            found.append(layer["encoding"]["y"]["title"])
    return found


def drawn(runs: list[PlottedRun], folder: Path, **options: Any) -> dict[str, Any]:
    (file,) = draw_runs(runs, [folder / "plot.json"], title="plot", **options)
    chart: dict[str, Any] = json.loads(file.read_text())
    return chart


def values_of(panel: dict[str, Any], layer: int) -> list[dict[str, Any]]:
    data = panel["layer"][layer].get("data") or panel["data"]
    values: list[dict[str, Any]] = data["values"]
    return values


def test_one_run_is_drawn_with_spread_evaluations_and_times(tmp_path: Path) -> None:
    run = PlottedRun("run", entries(12), [evaluation(0), evaluation(12)])
    chart = drawn([run], tmp_path)
    assert titles(chart) == ["mean reward", "won", "seconds per step", "share of the time"]
    reward = chart["vconcat"][0]["hconcat"][0]
    assert [layer["mark"]["type"] for layer in reward["layer"]] == ["area", "line", "line", "rule", "point"]
    steps = values_of(reward, 0)
    assert steps[-1]["value"] == 1.0
    assert steps[-1]["low"] == pytest.approx(0.8)
    assert steps[-1]["mean"] == pytest.approx(sum(step / 12 for step in range(3, 13)) / 10)
    points = values_of(reward, 4)
    assert [(point["at"], point["low"], point["high"]) for point in points] == [(0, 0.4, 0.6), (12, 0.4, 0.6)]


def test_runs_are_drawn_on_the_same_axes(tmp_path: Path) -> None:
    runs = [PlottedRun("a", entries(4)), PlottedRun("b", entries(6, entropy=1.0))]
    chart = drawn(runs, tmp_path, across="hours")
    assert titles(chart) == ["mean reward", "won", "entropy (nats per token)", "seconds per step"]
    rows = values_of(chart["vconcat"][0]["hconcat"][0], 0)
    assert {row["run"] for row in rows} == {"a", "b"}
    assert [row["at"] for row in rows if row["run"] == "a"] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    by_rollouts = drawn(runs, tmp_path, across="rollouts", metrics=["rewards/won"])
    assert titles(by_rollouts) == ["won"]
    assert by_rollouts["data"]["values"][-1]["at"] == 48, "the only panel's data stand above it"


def test_plots_of_many_steps_keep_spikes(tmp_path: Path) -> None:
    rows = [
        {"value": 9.0 if step == 7777 else -9.0 if step == 4321 else 0.0, "at": step}
        for step in range(20_000)
    ]
    kept = thin_out(rows)
    assert len(kept) <= MOST_POINTS
    assert {row["value"] for row in kept} == {0.0, 9.0, -9.0}
    assert [row["at"] for row in kept] == sorted(row["at"] for row in kept)
    assert thin_out(rows[:100]) == rows[:100]


def test_files_have_the_format_of_their_suffix(tmp_path: Path) -> None:
    files = [tmp_path / "new" / f"plot.{suffix}" for suffix in ("svg", "png", "html")]
    draw_runs([PlottedRun("run", entries(3))], files, title="plot", metrics=["reward"])
    svg, png, html = (file.read_bytes() for file in files)
    assert (svg[:4], png[:4]) == (b"<svg", b"\x89PNG")
    assert b"<script" in html
    assert b"https://cdn" not in html, "a page that draws without a network"
    assert len(html) > 200_000


def test_the_learning_curve_takes_the_evaluations_of_the_folder(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation(0)])
    files = draw_learning_curve(entries(3), tmp_path, title="run")
    assert [file.name for file in files] == ["learning_curve.svg", "learning_curve.png"]
    assert ">evaluation</text>" in files[0].read_text()


def test_runs_that_cannot_be_drawn_are_reported(tmp_path: Path) -> None:
    run = PlottedRun("run", entries(3))
    assert draw_runs([PlottedRun("run", entries(1))], [tmp_path / "plot.svg"], title="plot") == []
    with pytest.raises(ConfigError, match=r"`.*plot\.pdf` is not the name of a plot"):
        draw_runs([run], [tmp_path / "plot.pdf"], title="plot")
    with pytest.raises(ConfigError, match="no run has a metric `rewards/lost`"):
        draw_runs([run], [tmp_path / "plot.svg"], title="plot", metrics=["rewards/lost"])
