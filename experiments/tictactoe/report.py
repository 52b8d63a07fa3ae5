"""The table of the experiment, read from the records of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OPPONENTS = {"random": 1.0, "optimal": 0.0}
"""How likely each makes a random move."""
INVALID_MOVE_PENALTY = 0.1
"""Of a game with any invalid move: its mean over games tells their share."""

PUBLISHED = """\
| published: LFM2-2.6B base | 1 x 100 | 40/11/49 | 40 | 0/11/89 | 43 | |
| published: after SFT | 1 x 100 | 74/13/13 | 11 | 0/52/48 | 14 | |
| published: after RL phase 1 | 1 x 100 | 86/12/2 | 1 | 0/85/15 | 1 | |
| published: after RL phase 2 | 1 x 100 | 90/10/0 | 0 | 0/97/3 | 0 | |
"""
HEADER = """\
| policy | seeds x games | vs random W/D/L % | invalid % | vs optimal W/D/L % | invalid % | lines lost |
|---|---|---|---|---|---|---|
"""


def write_report(folder: Path, results: Path) -> str:
    """Write `results.json` and `table.md` of the experiment in `folder` into `results`; return the table."""
    seeds = {path.name: measured(path) for path in sorted(folder.glob("seed-*"))}
    results.mkdir(parents=True, exist_ok=True)
    (results / "results.json").write_text(json.dumps(seeds, indent=1) + "\n", encoding="utf-8")
    text = table(seeds)
    (results / "table.md").write_text(text, encoding="utf-8")
    return text


def measured(seed: Path) -> dict[str, Any]:
    """Return what the runs of one seed came to: each stage by opponent, the lines, the time of the phases."""
    stages: dict[str, dict[str, Any]] = {}
    for opponent in OPPONENTS:
        for run in sorted(seed.glob(f"*-{opponent}"), key=lambda run: run.stat().st_ctime):
            if (run / "summary.json").exists():
                stages.setdefault(run.name.removesuffix(f"-{opponent}"), {})[opponent] = cell(run)
    lines = seed / "exhaustive/summary.json"
    return {"stages": stages, "lines": line_counts(lines) if lines.exists() else None}


def cell(run: Path) -> dict[str, Any]:
    """Return shares in percent, with their 95 % intervals, of one run."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    metrics = summary["metrics"]
    shares = {
        name: {key: 100 * metrics[name][key] for key in ("mean", "low", "high")}
        for name in ("won", "drawn", "lost")
    }
    invalid = -100 * metrics["invalid_move_penalty"]["mean"] / INVALID_MOVE_PENALTY
    return {"games": summary["rollouts"], "failed": summary["failed"], **shares, "invalid": abs(invalid)}


def line_counts(summary: Path) -> dict[str, int]:
    """Return how many lines there are, and how many were won, drawn, lost, and never played to an end."""
    data = json.loads(summary.read_text(encoding="utf-8"))
    count = data["rollouts"]
    ends = {name: round(data["metrics"][name]["mean"] * count) for name in ("won", "drawn", "lost")}
    return {"lines": count, **ends, "unfinished": count - sum(ends.values())}


def table(seeds: dict[str, dict[str, Any]]) -> str:
    """Return the table: one row a stage with the means over the seeds, then each seed, then the published."""
    rows = []
    for stage in dict.fromkeys(stage for seed in seeds.values() for stage in seed["stages"]):
        found = {name: seed["stages"][stage] for name, seed in seeds.items() if stage in seed["stages"]}
        if len(found) > 1:
            rows.append(row(f"{stage}, mean", list(found.values()), ""))
        for name, cells in found.items():
            last = list(seeds[name]["stages"])[-1] == stage
            lines = seeds[name]["lines"] if last else None
            lost = f"{lines['lost'] + lines['unfinished']} of {lines['lines']}" if lines else ""
            rows.append(row(f"{stage}, {name}", [cells], lost))
    return HEADER + "".join(rows) + PUBLISHED


def row(title: str, found: list[dict[str, Any]], lines: str) -> str:
    """Return one row; of a single seed with the 95 % interval of what the goals are about."""
    texts = []
    for opponent, goal in (("random", "won"), ("optimal", "drawn")):
        cells = [each[opponent] for each in found if opponent in each]
        if not cells:
            texts += ["", ""]
            continue
        ends = [mean([cell[name]["mean"] for cell in cells]) for name in ("won", "drawn", "lost")]
        shares = "/".join(f"{share:.1f}" for share in ends)
        if len(cells) == 1:
            shares += f" ({goal} {cells[0][goal]['low']:.1f} to {cells[0][goal]['high']:.1f})"
        texts += [shares, f"{mean([c['invalid'] for c in cells]):.1f}"]
    games = found[0][next(iter(found[0]))]["games"]
    return f"| {title} | {len(found)} x {games} | {' | '.join(texts)} | {lines} |\n"


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)
