"""What does each page take of a hub with 10,000 runs on a board and a run of 100,000 rollouts, and how long
do fifty readers at once wait?

    python benchmarks/pages.py               figures of every page, as a table
    python benchmarks/pages.py --quick       500 runs and 5,000 rollouts
    python benchmarks/pages.py --runs 100    so many runs on the board: two such tables tell how answers grow

Processor time and bytes are those of the application in this process, one request after the other; the waits
are those of a hub in a process of its own (SQLite, a folder), whose clients share the machine with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import posting
from sqlalchemy import insert, select
from wander_hub.app import create_app
from wander_hub.database import Base, Database
from wander_hub.environments.models import Environment
from wander_hub.identity import HUB
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.runs.models import Run
from wander_hub.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from live_hub import live_hub  # noqa: E402 - the tests' own

SMALL, OTHER, BIG = (f"01bench000000000000000000{number}" for number in range(3))
ROLLOUTS = 1_000
"""Of the runs that are not big."""
READERS, ASKED = 50, 500
"""How many requests are under way at once, and how many there are of each page."""
HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}
BOARD = "/api/v1/environments/admin/say-env/leaderboard"
PAGES = {
    "first page": "/",
    "search": "/?q=say",
    "environment": "/admin/say-env",
    "source": "/admin/say-env/versions/latest/source",
    "leaderboard": "/admin/say-env/leaderboard",
    "leaderboard, all runs": "/admin/say-env/leaderboard?runs=all",
    "leaderboard, metrics": "/admin/say-env/leaderboard?column=metrics",
    "leaderboard, JSON": BOARD,
    "leaderboard, JSON, newest of all": f"{BOARD}?runs=all&sort=posted",
    "runs": "/runs",
    "owner": "/admin",
    "run": f"/runs/{SMALL}",
    "run, big": f"/runs/{BIG}",
    "run, big, from the middle": f"/runs/{BIG}?offset={{middle}}",
    "run, big, by reward": f"/runs/{BIG}?sort=-reward&reward_min=0.5",
    "run, big, words": f"/runs/{BIG}?text=row-17",
    "rollout": f"/runs/{BIG}/rollouts/{{middle}}",
    "side by side": f"/runs/{BIG}/rollouts/{{middle}}/group",
    "compare": f"/runs/compare?run={SMALL}&run={OTHER}",
    "documentation": "/docs",
    "a page of it": "/docs/verification",
    "the longest of it": "/docs/api/commands",
    "a search in it": "/docs/search?q=interval",
}


def columns_of(row: Base) -> dict[str, Any]:
    """Return a row as what inserts one like it."""
    return {one.key: getattr(row, one.key) for one in row.__table__.columns}


def multiply_run(database: Database, count: int) -> None:
    """Have a board hold so many runs, each of a model of its own, made like the one that was posted."""
    draw = random.Random(1)
    with database.write(HUB) as session:
        run = session.scalars(select(Run).where(Run.run_id == SMALL)).one()
        entry = session.scalars(select(BoardEntry).where(BoardEntry.run_id == SMALL)).one()
        board = session.scalars(select(Board).where(Board.id == entry.board_id)).one()
        environment = session.scalars(select(Environment).where(Environment.id == run.environment_id)).one()
        runs, entries = [], []
        for number in range(count):
            reward, at = draw.random(), timedelta(seconds=number)
            named = {"run_id": f"01bencg{number:019d}", "model": f"model-{number}"}
            ends = {"reward_mean": reward, "reward_low": reward - 0.02, "reward_high": reward + 0.02}
            own = {"summary": run.summary | ends, "reward_mean": reward, "sha256": f"{number:064d}"}
            times = {"posted_at": run.posted_at - at, "public_at": run.posted_at - at}
            runs.append(columns_of(run) | named | own | times)
            place = {"shortfall": -reward, "low": reward - 0.02, "high": reward + 0.02, "counts": True}
            entries.append(columns_of(entry) | named | place | {"posted_at": run.posted_at - at})
        session.execute(insert(Run), runs)
        session.execute(insert(BoardEntry), entries)
        every = session.scalars(select(BoardEntry).where(BoardEntry.board_id == board.id)).all()
        board.runs = board.models = len(every)
        board.lows = array("d", sorted(one.low for one in every)).tobytes()
        board.highs = array("d", sorted(one.high for one in every)).tobytes()
        environment.run_count += count


async def cost_of(client: httpx.AsyncClient, path: str, times: int) -> tuple[float, float, int, int]:
    """Return milliseconds of the processor for the first answer and a later one, and bytes of it."""
    found, first = [], None
    for _ in range(5):
        begun = time.process_time()
        for _ in range(times):
            answer = await client.get(path)
            assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
            first = first or 1000 * (time.process_time() - begun)
        found.append(1000 * (time.process_time() - begun) / times)
    assert first is not None
    return first, min(found), len(answer.content), answer.num_bytes_downloaded


async def waits_of(url: str, path: str) -> list[float]:
    """Return the milliseconds of every answer while so many are asked for at once."""
    left, waited = iter(range(ASKED)), list[float]()

    async def read(client: httpx.AsyncClient) -> None:
        for _ in left:
            begun = time.perf_counter()
            answer = await client.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code}"
            waited.append(1000 * (time.perf_counter() - begun))

    limits = httpx.Limits(max_connections=READERS)
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=120, limits=limits) as client:
        await asyncio.gather(*(read(client) for _ in range(READERS)))
    return waited


def fill(url: str, token: str, place: Path, runs: int, rollouts: int) -> None:
    """Publish an environment, and put runs on its board."""
    wheel = posting.publish(url, token, place)
    for run, count in ((SMALL, ROLLOUTS), (OTHER, ROLLOUTS), (BIG, rollouts)):
        posting.store(place / "hub", posting.manifest_of(wheel, count, run), count)
    database = Database(f"sqlite:///{place / 'hub' / 'hub.db'}")
    multiply_run(database, runs)
    database.close()


def measured(place: Path, url: str, middle: int, times: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the figures of each page."""
    settings = Settings(data=place / "hub", bundled_packages=False, reads_per_minute=0)
    database = Database(settings.resolved_database_url)
    transport = httpx.ASGITransport(app=create_app(settings, database=database))

    async def cost(path: str) -> tuple[float, float, int, int]:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://hub.test", headers=HEADERS
        ) as client:
            return await cost_of(client, path, times)

    for name, pattern in PAGES.items():
        path = pattern.format(middle=middle)
        first, later, size, sent = asyncio.run(cost(path))
        waited = asyncio.run(waits_of(url, path))
        yield (
            name,
            [first, later, size, sent, statistics.median(waited), statistics.quantiles(waited, n=100)[98]],
        )
    database.close()


def main() -> None:
    """Fill a hub, ask for its pages, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, help="on the board, each of a model of its own")
    parser.add_argument("--times", type=int, default=5, help="requests a round, of five")
    asked = parser.parse_args()
    runs, rollouts = (500, 5_000) if asked.quick else (10_000, 100_000)
    runs = asked.runs or runs
    with (
        tempfile.TemporaryDirectory() as name,
        live_hub(Path(name) / "hub", WANDER_HUB_READS_PER_MINUTE="0") as hub,
    ):
        fill(hub.url, hub.token, Path(name), runs, rollouts)
        load = os.getloadavg()[0]
        print(f"load {load:.1f} on {os.cpu_count()} cores; {runs:,} runs, {rollouts:,} rollouts")
        print("| page | first, ms | later, ms | kB | kB sent | p50 of 50, ms | p99, ms |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for page, (first, later, size, sent, half, most) in measured(
            Path(name), hub.url, rollouts // 2, asked.times
        ):
            told = f"{size / 1000:.0f} | {sent / 1000:.0f} | {half:.0f} | {most:.0f}"
            print(f"| {page} | {first:.0f} | {later:.1f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
