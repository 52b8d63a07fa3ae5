"""How the time of a board's answer grows from a hundred runs to a hundred thousand; see README.md.

Rows are put into the database as posting leaves them; answers come
from the hub's own service, with SQLite or the database of `--database`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from array import array
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import insert, select
from sqlalchemy.orm import Session, joinedload
from wander.wire import RunSummary
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.database import Database
from wander_hub.environments.models import Environment, Version
from wander_hub.leaderboards import service
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.leaderboards.schemas import BoardFilter
from wander_hub.runs.models import Run

SIZES = (100, 100_000)
MODELS = {100: 60, 100_000: 10_000}
"""Of a board of each size: more than a page shows, so that every answer has as many rows."""
QUERIES = {
    "first page": BoardFilter(),
    "all runs": BoardFilter(showing="all"),
    "newest of all": BoardFilter(showing="all", sort="posted"),
    "replayed": BoardFilter(level="replayed"),
}
_WITH_OWNER = (joinedload(Environment.owner),)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def fill(session: Session, owner: Owner, user: User, size: int) -> Environment:
    """Add an environment with one board of so many runs."""
    name = f"board-{size}"
    common = {"summary": "", "tags": [], "search_text": name, "version_count": 1, "run_count": size}
    times = {"created_at": BEGAN, "updated_at": BEGAN}
    environment = Environment(
        owner_id=owner.id, name=name, listed=True, latest_version="0.1.0", **common, **times
    )
    session.add(environment)
    session.flush()
    version = Version(
        environment_id=environment.id, version="0.1.0", summary="", requires_dist=[], tags=[], readme="",
        readme_html="", yanked=False, uploaded_at=BEGAN,
    )  # fmt: skip
    session.add(version)
    session.flush()
    board = Board(
        version_id=version.id, task_set_sha256="a" * 64, protocol_sha256="b" * 64, name="c" * 8, split="eval",
        examples=100, rollouts_per_example=1, arguments={}, last_posted_at=BEGAN, runs=size,
    )  # fmt: skip
    session.add(board)
    session.flush()
    _add_runs(session, environment, version, board, user, size)
    return environment


def _add_runs(
    session: Session, environment: Environment, version: Version, board: Board, user: User, size: int
) -> None:
    draw, runs, entries = random.Random(size), [], []
    for number in range(size):
        reward, model, at = draw.random(), f"model-{number % MODELS[size]}", timedelta(seconds=number)
        summary = RunSummary(
            rollouts=100, expected=100, failed=0, examples=100, reward_mean=reward, reward_low=reward - 0.05,
            reward_high=reward + 0.05, reward_std=0.1,
        )  # fmt: skip
        level = "replayed" if number % 5 == 0 else "complete"
        key = {
            "run_id": f"RUN{size:07d}{number:07d}",
            "model": model,
            "level": level,
            "posted_at": BEGAN + at,
        }
        runs.append(
            key
            | {
                "environment_id": environment.id, "version_id": version.id, "kind": "evaluation",
                "model_kind": "OpenAIClient", "task_set_sha256": "a" * 64, "protocol_sha256": "b" * 64,
                "rollouts_per_example": 1, "examples": 100, "level_reason": "", "reward_mean": reward,
                "manifest": "{}", "summary": summary.model_dump(mode="json"), "sha256": "d" * 64,
                "posted_by_id": user.id, "board_level": level, "public_at": BEGAN + at,
            }
        )  # fmt: skip
        low, high = reward - 0.05, reward + 0.05
        entries.append(
            key
            | {
                "board_id": board.id,
                "shortfall": -reward,
                "low": low,
                "high": high,
                "tokens": 14.0,
                "usd": None,
            }
            | {"posted_by_id": user.id, "withdrawn": False, "counts": number < MODELS[size]}
        )
    session.execute(insert(Run), runs)
    session.execute(insert(BoardEntry), entries)
    counted = [one for one in entries if one["counts"]]
    board.models = len(counted)
    for ends in ("low", "high"):
        stored = array("d", sorted(one[ends] for one in counted)).tobytes()
        setattr(board, f"{ends}s", stored)


def measure(database: Database, environment_id: int, wanted: BoardFilter, times: int) -> list[float]:
    """Return the milliseconds of each answer."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        with database.read() as session:
            environment = session.scalars(
                select(Environment).where(Environment.id == environment_id).options(*_WITH_OWNER)
            ).one()
            service.leaderboard(session, environment, "http://hub", wanted=wanted).model_dump_json()
        taken.append(1000 * (time.perf_counter() - began))
    return taken


def main() -> None:
    """Fill the boards, ask, and print the milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="URL of an empty database; else SQLite in a temporary folder")
    parser.add_argument("--times", type=int, default=300)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(chosen.database or f"sqlite:///{Path(folder) / 'hub.db'}")
        database.migrate()
        with database.write() as session:
            user = accounts.add_user(session, "bench")
            session.flush()
            owner = session.scalars(select(Owner).where(Owner.name == "bench")).one()
            filled = {size: fill(session, owner, user, size).id for size in SIZES}
        if chosen.database:
            with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
                connection.exec_driver_sql("ANALYZE")
        print(f"load {os.getloadavg()[0]:.1f}, {chosen.times} answers each, milliseconds")
        print(
            "| query | " + " | ".join(f"{size:,} runs p50 | p99" for size in SIZES) + " | growth p50 | p99 |"
        )
        for label, wanted in QUERIES.items():
            _print_row(database, filled, label, wanted, chosen.times)
        database.close()


def _print_row(
    database: Database, filled: dict[int, int], label: str, wanted: BoardFilter, times: int
) -> None:
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(10):  # in turns, so that both have the same company on the machine
        for size in SIZES:
            found[size] += measure(database, filled[size], wanted, times // 10)
    marks = {
        size: (statistics.median(one), statistics.quantiles(one, n=100)[98]) for size, one in found.items()
    }
    cells = " | ".join(f"{p50:.1f} | {p99:.1f}" for p50, p99 in marks.values())
    small, large = (marks[size] for size in SIZES)
    print(f"| {label} | {cells} | {large[0] / small[0]:.2f} | {large[1] / small[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
