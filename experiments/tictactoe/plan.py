"""Tic-tac-toe: against a random and an optimal opponent, and every line of the game."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from plan import Plan, Seeds, by_stage, interval, percent

INVALID_MOVE_PENALTY = 0.1
"""Negative reward of a game with an invalid move. The mean over all games gives the share of such games."""
OPPONENTS = {
    name: {"min_random_move_prob": careless, "max_random_move_prob": careless}
    for name, careless in (("random", 1.0), ("optimal", 0.0))
}

PUBLISHED = """\
| published: LFM2-2.6B base | 1 x 100 | 40/11/49 | 40 | 0/11/89 | 43 | | |
| published: after SFT | 1 x 100 | 74/13/13 | 11 | 0/52/48 | 14 | | |
| published: after RL phase 1 | 1 x 100 | 86/12/2 | 1 | 0/85/15 | 1 | | |
| published: after RL phase 2 | 1 x 100 | 90/10/0 | 0 | 0/97/3 | 0 | | |
"""
COLUMNS = ("policy", "seeds x games", "vs random W/D/L %", "invalid %", "vs optimal W/D/L %", "invalid %")
LINES = ("lines lost", "invalid moves on them")
HEADER = f"| {' | '.join(COLUMNS + LINES)} |\n{'|---' * len(COLUMNS + LINES)}|\n"


def cell(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of one run in percent, with their 95% intervals."""
    shares = {name: percent(summary, name) for name in ("won", "drawn", "lost")}
    invalid = -100 * summary["metrics"]["invalid_move_penalty"]["mean"] / INVALID_MOVE_PENALTY
    return {**shares, "invalid": abs(invalid)}


def table(seeds: Seeds) -> str:
    """Return the table: for each stage, the mean over the seeds and each seed; then the published results."""
    rows = []
    for stage, found in by_stage(seeds).items():
        if len(found) > 1:
            rows.append(row(f"{stage}, mean", list(found.values()), None))
        for name, cells in found.items():
            last = list(seeds[name]["stages"])[-1] == stage
            lines = seeds[name]["lines"] if last else None
            rows.append(row(f"{stage}, {name}", [cells], lines))
    return HEADER + "".join(rows) + PUBLISHED


def row(title: str, found: list[dict[str, Any]], lines: dict[str, int] | None) -> str:
    """Return one row. A row of a single seed contains the 95% intervals of won and drawn games."""
    texts = []
    for opponent, goal in (("random", "won"), ("optimal", "drawn")):
        cells = [each[opponent] for each in found if opponent in each]
        if not cells:
            texts += ["", ""]
            continue
        ends = [fmean([cell[name]["mean"] for cell in cells]) for name in ("won", "drawn", "lost")]
        shares = "/".join(f"{share:.1f}" for share in ends)
        if len(cells) == 1:
            shares += interval(cells[0][goal], f"{goal} ")
        texts += [shares, f"{fmean([c['invalid'] for c in cells]):.1f}"]
    if lines:
        texts += [f"{lines['lost'] + lines['unfinished']} of {lines['lines']}", str(lines["invalid_moves"])]
    else:
        texts += ["", ""]
    games = found[0][next(iter(found[0]))]["games"]
    return f"| {title} | {len(found)} x {games} | {' | '.join(texts)} |\n"


PLAN = Plan(
    environment="tictactoe",
    teacher="scripted:tictactoe.players:teacher?random_move_prob=0.4",
    cells=OPPONENTS,
    max_tokens=24,
    concurrency=256,
    cell=cell,
    table=table,
    curves=("rewards/lost", "rewards/invalid_moves"),
    exhaustive=True,
)
