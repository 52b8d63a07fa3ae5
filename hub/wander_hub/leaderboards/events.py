"""Webhook events of boards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from sqlalchemy.orm import Session
from wander.wire.events import BoardEvent

from wander_hub.environments.models import Environment, Version
from wander_hub.leaderboards import repository
from wander_hub.leaderboards.models import Board, HiddenRun
from wander_hub.leaderboards.placement import LED
from wander_hub.runs.models import Run
from wander_hub.webhooks import outbox


@contextmanager
def emitting_leader_events(session: Session, environment: Environment) -> Iterator[None]:
    """Add an event for each board of an environment whose leading run differs when the block ends."""
    if not outbox.subscribed(session, environment, "board.changed"):
        yield  # no webhook needs to know who led before
        return
    led: dict[int, str | None] = {}
    session.info[LED] = led
    try:
        yield
    finally:
        del session.info[LED]
    session.flush()
    for board_id, before in led.items():
        board = session.get_one(Board, board_id)
        first = repository.leader_of(session, board)
        if (first.run_id if first is not None else None) != before:
            shown: dict[str, Any] = {"run_id": None}
            if first is not None:
                shown = {"run_id": first.run_id, "model": outbox.short(first.model)}
                shown["reward_mean"] = first.reward_mean
            _tell(session, environment, board, "best", **shown)


def emit_choice_event(
    session: Session, run: Run, hidden: HiddenRun, change: Literal["hidden", "shown"]
) -> None:
    """Add an event that an owner hid a run from its board, or showed it again."""
    board = session.get_one(Board, hidden.board_id)
    shown = {"run_id": run.run_id, "model": outbox.short(run.model), "reward_mean": run.reward_mean}
    _tell(session, run.environment, board, change, **shown, reason=outbox.short(hidden.reason))


def _tell(session: Session, environment: Environment, board: Board, change: str, **more: Any) -> None:
    def describe() -> BoardEvent:
        label = outbox.label_of(session, environment)
        version = session.get_one(Version, board.version_id).version
        path = f"/{label}/leaderboard?version={version}&board={board.name}"
        return BoardEvent.model_validate(
            {
                "environment": label,
                "version": version,
                "board": board.name,
                "change": change,
                "private": environment.private,
                "url": outbox.link(session, path),
                **more,
            }
        )

    outbox.tell(session, environment, "board.changed", describe)
