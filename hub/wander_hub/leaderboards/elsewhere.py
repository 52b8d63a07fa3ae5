"""Models that are only on other boards of an environment, and why their rows cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Integer, Select, bindparam, select
from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import BoardInfo, Leaderboard
from wander.wire.boards import ModelElsewhere

from wander_hub.database import fill
from wander_hub.environments.repository import ListedVersion
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.runs.models import Run

_MOST, _LOOKED_AT = 50, 500
"""Maximum number of models to return, and of rows to read for them."""
_LONGEST = 80
"""Maximum number of characters of an argument list or of a player's name."""


def list_elsewhere(
    session: Session, versions: Sequence[ListedVersion], board: Board, shown: Leaderboard
) -> list[ModelElsewhere]:
    """Return the models that are only on other boards of an environment, each once, newest versions first."""
    names = {version.id: version.version for version in versions}
    elsewhere = dict[str, ModelElsewhere]()
    for entry, other, name in session.execute(
        _elsewhere(), {"board_id": board.id, "version_ids": list(names)}
    ):
        if entry.model not in elsewhere and len(elsewhere) < _MOST:
            info, version = fill(BoardInfo, other, board=other.name), names[other.version_id]
            elsewhere[entry.model] = ModelElsewhere(
                model=entry.model,
                run_id=entry.run_id,
                name=name,
                reward_mean=0.0 - entry.shortfall,
                version=version,
                board=info,
                because=_explain_difference(shown, info, version),
            )
    return list(elsewhere.values())


@cache
def _elsewhere() -> Select[BoardEntry, Board, str | None]:
    shown = bindparam("board_id", type_=Integer)
    here = select(BoardEntry.model).where(BoardEntry.board_id == shown, BoardEntry.counts)
    query = select(BoardEntry, Board, Run.name).join(Board, Board.id == BoardEntry.board_id)
    query = query.join(Run, Run.run_id == BoardEntry.run_id)
    published = Board.version_id.in_(bindparam("version_ids", expanding=True))
    query = query.where(published, Board.id != shown, BoardEntry.counts, BoardEntry.model.not_in(here))
    order = (Board.version_id.desc(), BoardEntry.tier, BoardEntry.shortfall, BoardEntry.run_id)
    return query.order_by(*order).limit(_LOOKED_AT)


def set_apart(board: Leaderboard, other: BoardInfo) -> str:
    """Return how another board differs from this one, except for differences that have their own column."""
    differences = []
    if other.max_tokens != board.max_tokens:
        limit = (
            "no token limit" if other.max_tokens is None else f"at most {other.max_tokens:,} tokens per turn"
        )
        differences.append(limit)
    if other.arguments != board.arguments:
        differences.append(_cut(canonical_json(other.arguments)) if other.arguments else "no arguments")
    if other.players != board.players:
        differences += [f"{player}: {_cut(name)}" for player, name in other.players.items()] or ["no players"]
    if other.task_set_sha256 != board.task_set_sha256:
        differences.append(f"task set {other.task_set_sha256[:12]}")
    is_same = not differences and other.rollouts_per_example == board.rollouts_per_example
    return "other weights of its players" if is_same else ", ".join(differences)


def _explain_difference(board: Leaderboard, other: BoardInfo, version: str) -> str:
    """Return why runs of two boards cannot be compared."""
    reasons = [f"version {version}"] if version != board.version else []
    reasons += [f"{other.split} split"] if other.split != board.split else []
    reasons += [f"{other.examples:,} examples"] if other.examples != board.examples else []
    if other.rollouts_per_example != board.rollouts_per_example:
        reasons.append(f"{other.rollouts_per_example:,} rollouts per example")
    differing = set_apart(board, other)
    is_other_task_set = other.task_set_sha256 != board.task_set_sha256
    # Another version, split or number of examples implies another task set, so the digest adds nothing.
    if reasons and (is_other_task_set or not differing):
        return ", ".join(reasons)
    return ", ".join([*reasons, differing])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
