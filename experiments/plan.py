"""The plan of an experiment: its environment, its measurements and its table.

`experiments/NAME/plan.py` defines `PLAN`, which `experiments/run.py` executes.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

Seeds = Mapping[str, Mapping[str, Any]]
"""The measurements: `{"seed-0": {"stages": {STAGE: {CELL: {...}}}, "lines": {...}}}`."""


@dataclass(frozen=True)
class Plan:
    """An environment, and the cells in which the teacher and every phase's policy are measured."""

    environment: str
    """Name under which it is published. Its folder is `environments/NAME`, unless the experiment has its own
    folder `environment`."""
    teacher: str
    """The scripted player that the first phase learns from. It is measured as well."""
    cells: Mapping[str, Mapping[str, object]]
    """Arguments of the environment, by the name of the cell."""
    max_tokens: int
    """Maximum number of tokens of one turn."""
    concurrency: int
    cell: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns the values that the table needs from the summary of one run."""
    table: Callable[[Seeds], str]
    """Returns the table, in Markdown."""
    curves: tuple[str, ...] = ()
    """Metrics of the last phase that `learning_curve.svg` shows, with one line for each seed."""
    exhaustive: bool = False
    """Whether the final policy also plays every possible reply of the environment."""


def plan_named(name: str) -> Plan:
    """Return the plan of the experiment in the folder `name`.

    Raises: `KeyError` with the names of all experiments.
    """
    file = HERE / name / "plan.py"
    if not file.is_file():
        raise KeyError(", ".join(sorted(found.parent.name for found in HERE.glob("*/plan.py"))))
    plan: Plan = _module(f"experiment_{name}", file).PLAN
    return plan


def _module(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_report(plan: Plan, folder: Path, results: Path) -> str:
    """Write `results.json` and `table.md` of the experiment in `folder` into `results`; return the table."""
    seeds = {path.name: measured(plan, path) for path in sorted(folder.glob("seed-*"))}
    results.mkdir(parents=True, exist_ok=True)
    (results / "results.json").write_text(json.dumps(seeds, indent=1) + "\n", encoding="utf-8")
    text = plan.table(seeds)
    (results / "table.md").write_text(text, encoding="utf-8")
    return text


def measured(plan: Plan, seed: Path) -> dict[str, Any]:
    """Return the results of one seed: each stage by cell, as they were played, and the counts of lines."""
    stages: dict[str, dict[str, Any]] = {}
    for name in plan.cells:
        for run in sorted(seed.glob(f"*-{name}"), key=lambda run: run.stat().st_ctime):
            if (run / "summary.json").exists():
                summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
                found = {"games": summary["rollouts"], "failed": summary["failed"], **plan.cell(summary)}
                stages.setdefault(run.name.removesuffix(f"-{name}"), {})[name] = found
    lines = seed / "exhaustive/summary.json"
    return {"stages": stages, "lines": line_counts(lines) if lines.exists() else None}


def line_counts(summary: Path) -> dict[str, int]:
    """Return the numbers of lines: all, won, drawn, lost and unfinished; and of their invalid moves."""
    data = json.loads(summary.read_text(encoding="utf-8"))
    count = data["rollouts"]
    sums = {
        name: round(data["metrics"][name]["mean"] * count)
        for name in ("won", "drawn", "lost", "invalid_moves")
    }
    unfinished = count - sums["won"] - sums["drawn"] - sums["lost"]
    return {"lines": count, **sums, "unfinished": unfinished}


def percent(summary: dict[str, Any], metric: str) -> dict[str, float]:
    """Return the mean of a metric in percent, with its 95% interval unless all values are equal."""
    found = summary["metrics"][metric]
    return {key: 100 * found[key] for key in ("mean", "low", "high") if found[key] is not None}


def share_table(seeds: Seeds, *, header: str, cell: str, shares: Sequence[str]) -> str:
    """Return a table of one cell: a row for each stage of each seed, its shares with their intervals."""
    rows = [
        f"| {stage}, {seed} | {found['games']} | {' | '.join(_shown(found[one]) for one in shares)} |\n"
        for stage, seed_cells in by_stage(seeds).items()
        for seed, cells in seed_cells.items()
        if (found := cells[cell])
    ]
    return header + "".join(rows)


def _shown(share: Mapping[str, float]) -> str:
    return f"{share['mean']:.1f}{interval(share)}"


def interval(share: Mapping[str, float], of: str = "") -> str:
    """Return the interval of a share in brackets, or an empty text."""
    return f" ({of}{share['low']:.1f} to {share['high']:.1f})" if "low" in share else ""


def by_stage(seeds: Seeds) -> dict[str, dict[str, Any]]:
    """Return the cells of each stage, by seed."""
    names = dict.fromkeys(stage for seed in seeds.values() for stage in seed["stages"])
    return {
        stage: {name: seed["stages"][stage] for name, seed in seeds.items() if stage in seed["stages"]}
        for stage in names
    }
