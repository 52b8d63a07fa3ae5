"""A leaderboard for programs and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from wander_client.runs.ranking import board_cells

if TYPE_CHECKING:
    from wander.wire import Leaderboard, LeaderboardRow

_COLUMNS = ("rank", "model", "reward", "interval", "level", "by", "posted")


@dataclass(frozen=True)
class Board(Sequence["LeaderboardRow"]):
    """The rows of a leaderboard, best first; a notebook shows it as a table."""

    leaderboard: Leaderboard
    """What the hub says of the board beside its rows: version, protocol, other boards."""

    def __len__(self) -> int:
        return len(self.leaderboard.rows)

    @overload
    def __getitem__(self, index: int) -> LeaderboardRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[LeaderboardRow]: ...
    def __getitem__(self, index: int | slice) -> LeaderboardRow | list[LeaderboardRow]:
        return self.leaderboard.rows[index]

    def __repr__(self) -> str:
        best = f", {self[0].reward_mean:.4f} by {self[0].model}" if self else ""
        shown = self.leaderboard
        return f"<Board {shown.owner}/{shown.name}@{shown.version}: {len(self)} rows{best}>"

    def _repr_html_(self) -> str:
        shown = self.leaderboard
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cells[name]))}</td>" for name in _COLUMNS) + "</tr>"
            for cells in map(board_cells, self)
        )
        title = html.escape(f"{shown.owner}/{shown.name} {shown.version}")
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
