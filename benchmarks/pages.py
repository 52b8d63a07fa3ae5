"""Measures each page of a hub with 10,000 runs on a board and a run with 100,000 rollouts, and the waiting
time of fifty concurrent readers. The hub also has 10,000 jobs, users and audit log entries.

    python benchmarks/pages.py               figures of every page, as a table
    python benchmarks/pages.py --quick       500 runs and 5,000 rollouts
    python benchmarks/pages.py --runs 100    other number of runs on the board, to compare two tables
    python benchmarks/pages.py --only run compare   pages whose name begins with one of these
    python benchmarks/pages.py --rates --runs 100   requests per second, next to a bare FastAPI route

Processor time and bytes are those of the application in this process, for one request after the other: for
the first answer, for a later one that the hub has cached, and for one that it renders each time, as for
visitors with a cookie. Waiting times are those of a hub in a separate process, on SQLite. Its clients share
the machine. `--rates` needs `wrk` and `nginx`. Each server is one process and sends the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import posting
from sqlalchemy import event, insert, select
from wander_hub.accounts.models import Owner, User
from wander_hub.app import create_app
from wander_hub.audit import AuditEntry
from wander_hub.database import Base, Database
from wander_hub.environments.models import Environment
from wander_hub.identity import HUB
from wander_hub.jobs import Job
from wander_hub.leaderboards.bounds import Bounds
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.names import skeleton
from wander_hub.runs.models import Run
from wander_hub.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "harness"), str(ROOT / "benchmarks" / "index_contenders")]

import servers  # noqa: E402 - next to this file
from command_line import ENVIRONMENT  # noqa: E402 - the tests' own
from index_server import load  # noqa: E402
from live_hub import LiveHub, free_port, live_hub  # noqa: E402
from nginx_files import write_configuration  # noqa: E402
from small_models import checkpoint  # noqa: E402
from staged_uploads import pushed  # noqa: E402

SMALL, OTHER, BIG, TRAINED, RETRAINED = (f"01bench000000000000000000{number}" for number in range(5))
ROLLOUTS = 1_000
"""Rollouts of each small run."""
READERS, ASKED = 50, 500
"""Number of concurrent requests, and total number of requests per page."""
STEPS, METRICS = 1_000, 30
"""Steps of a training run, and metrics per step."""
HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}
BOARD = "/api/v1/environments/admin/say-env/leaderboard"
_TRAINED, _PLAYED = f"run={TRAINED}&run={RETRAINED}", f"run={SMALL}&run={OTHER}"
PAGES = {
    "first page": "/",
    "search": "/?q=say",
    "environment": "/admin/say-env",
    "source": "/admin/say-env/versions/latest/source",
    "source, 1,500 lines": "/admin/long-env/versions/latest/source?file=long_env.py",
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
    "compare": f"/runs/compare?{_PLAYED}",
    "compare, an example": f"/runs/compare/example?{_PLAYED}&example=row-17",
    "training": f"/runs/{TRAINED}",
    "trainings over each other": f"/runs/compare?{_TRAINED}",
    "trainings end to end": f"/runs/compare?{_TRAINED}&joined=true",
    "model": "/models/admin/ttt",
    "sign in": "/login/password",
    "documentation": "/docs",
    "a page of it": "/docs/verification",
    "the longest of it": "/docs/api/commands",
    "a search in it": "/docs/search?q=interval",
    "the API in it": "/docs/api/http",
    "API viewer": "/openapi",
    "llms.txt": "/llms.txt",
}
RATED = ("first page", "environment", "leaderboard", "runs")
ROUNDS, SECONDS = 3, 2
"""Rounds of a rate measurement, and seconds per round."""
SIGNED_IN = {
    "account": "/account",
    "owner's settings": "/admin/settings",
    "environment's settings": "/admin/say-env/settings",
    "hub": "/system",
    **{f"hub, {part}": f"/system/{part}" for part in ("jobs", "users", "organizations", "audit")},
}
"""Pages for an administrator. All others are requested without a login."""


def columns_of(row: Base) -> dict[str, Any]:
    """Return a row's columns for inserting a similar row."""
    return {column.key: getattr(row, column.key) for column in row.__table__.columns}


def multiply_run(database: Database, count: int) -> None:
    """Fill a board with copies of the posted run, each with a different model."""
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
            named["skeleton"] = skeleton(named["model"])
            ends = {"reward_mean": reward, "reward_low": reward - 0.02, "reward_high": reward + 0.02}
            own = {"summary": run.summary | ends, "reward_mean": reward, "sha256": f"{number:064d}"}
            times = {"posted_at": run.posted_at - at, "public_at": run.posted_at - at}
            runs.append(columns_of(run) | named | own | times)
            place = {"shortfall": -reward, "low": reward - 0.02, "high": reward + 0.02, "counts": True}
            entries.append(columns_of(entry) | named | place | {"posted_at": run.posted_at - at})
        session.execute(insert(Run), runs)
        session.execute(insert(BoardEntry), entries)
        of_board = select(BoardEntry).where(BoardEntry.board_id == board.id, BoardEntry.counts)
        counting = session.scalars(of_board).all()
        bounds = Bounds()
        for one in counting:
            bounds.add(one.place)
        board.runs, board.models = board.runs + count, len(counting)
        board.lows, board.highs, board.tiers = bounds.dump()
        environment.run_count += count


def multiply_rest(database: Database, count: int) -> None:
    """Fill a hub with users, finished jobs, and audit log entries."""
    with database.write(HUB) as session:
        entry = columns_of(session.scalars(select(AuditEntry).order_by(AuditEntry.id)).first())
        at = entry["at"]
        entry.pop("id")
        session.execute(insert(AuditEntry), [entry | {"target": f"target {one}"} for one in range(count)])
        named = [{"name": f"user-{one:06d}", "created_at": at} for one in range(count)]
        session.execute(insert(User).values(admin=False), named)
        session.execute(insert(Owner), named)
        told = {"kind": "replay", "payload": {}, "state": "done", "max_attempts": 3, "finished_at": at}
        told |= {"run_after": at, "created_at": at}
        session.execute(insert(Job), [told | {"key": f"made {one}"} for one in range(count)])


def train(hub: LiveHub, manifest: dict[str, Any], seed: int) -> None:
    """Post a training run with made-up numbers."""
    draw = random.Random(seed)
    rows = [
        {"step": step, "seconds/step": 1.0, "reward": draw.random()}
        | {f"metric/{one}": draw.random() for one in range(METRICS - 1)}
        for step in range(1, STEPS + 1)
    ]
    cells = [
        {"step": step, "cell": f"cell-{one}", "reward": 0.5, "interval": [0.4, 0.6], "examples": 100}
        for step in range(0, STEPS + 1, STEPS // 20)
        for one in range(3)
    ]
    lines = [posting.line(number, draw) for number in range(100)]
    samples = [
        json.loads(posting.line(number, draw)) | {"step": step}
        for step in range(0, STEPS + 1, STEPS // 20)
        for number in range(0, 80, 10)
    ]
    artifacts = {"metrics.jsonl": rows, "evaluations.jsonl": cells, "samples.jsonl": samples}
    settings = {"schedule": {"steps": STEPS, "learning_rate": 1e-5 * seed}, "seed": seed}
    files: list[tuple[str, Any]] = [
        ("manifest", ("run.json", json.dumps(manifest | {"kind": "training", "training": settings}))),
        ("rollouts", ("rollouts.jsonl", b"".join(lines))),
    ]
    files += [
        ("artifacts", (name, "".join(json.dumps(one) + "\n" for one in found)))
        for name, found in artifacts.items()
    ]
    head = {"Authorization": f"Bearer {hub.token}"}
    answer = httpx.post(f"{hub.url}/api/v1/runs", files=files, headers=head, timeout=60)
    assert answer.status_code == 201, answer.text


async def push(hub: LiveHub) -> None:
    """Push a model."""
    async with httpx.AsyncClient(base_url=hub.url) as client:
        head = {"Authorization": f"Bearer {hub.token}"}
        answer = await pushed(client, head, checkpoint(), owner="admin")
    assert answer.status_code == 201, answer.text


async def cost_of(client: httpx.AsyncClient, path: str, times: int) -> list[float]:
    """Return processor milliseconds of the first answer and of a later one, and the sizes of the answer."""
    found, first = [], None
    for _ in range(5):
        begun = time.process_time()
        for _ in range(times):
            answer = await client.get(path)
            assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
            first = first or 1000 * (time.process_time() - begun)
        found.append(1000 * (time.process_time() - begun) / times)
    assert first is not None
    return [first, min(found), len(answer.content), answer.num_bytes_downloaded]


async def waits_of(url: str, headers: dict[str, str], path: str) -> list[float]:
    """Return the milliseconds of every answer to concurrent requests."""
    left, waited = iter(range(ASKED)), list[float]()

    async def read(client: httpx.AsyncClient) -> None:
        for _ in left:
            begun = time.perf_counter()
            answer = await client.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code}"
            waited.append(1000 * (time.perf_counter() - begun))

    limits = httpx.Limits(max_connections=READERS)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as client:
        await asyncio.gather(*(read(client) for _ in range(READERS)))
    return waited


def fill(hub: LiveHub, place: Path, runs: int, rollouts: int) -> None:
    """Publish environments, put runs on a board, and add everything else that pages show."""
    wheel = posting.publish(hub.url, hub.token, place)
    lines = [f'LINE_{number} = "{posting.WORDS[number]}"  # a line' for number in range(1_500)]
    for version, sign in (("0.1.0", " ="), ("0.2.0", ": str =")):
        lines[::10] = [line.replace(" =", sign) for line in lines[::10]]
        made = {"name": "long-env", "version": version, "module": ENVIRONMENT + "\n".join(lines)}
        posting.publish(hub.url, hub.token, place, **made)
    for run, count in ((SMALL, ROLLOUTS), (OTHER, ROLLOUTS), (BIG, rollouts)):
        posting.store(place / "hub", posting.manifest_of(wheel, count, run), count)
    for seed, run in enumerate((TRAINED, RETRAINED), 1):
        train(hub, posting.manifest_of(wheel, 100, run), seed)
    asyncio.run(push(hub))
    database = Database(f"sqlite:///{place / 'hub' / 'hub.db'}")
    multiply_run(database, runs)
    multiply_rest(database, runs)
    database.close()


def measured(
    hub: LiveHub, middle: int, times: int, only: tuple[str, ...], *, waits: bool
) -> Iterator[tuple[str, list[float]]]:
    """Yield the figures of each page."""
    settings = Settings(data=hub.data, bundled_packages=False, reads_per_minute=0)
    database = Database(settings.resolved_database_url)
    transport = httpx.ASGITransport(app=create_app(settings, database=database))
    asked = list[str]()
    event.listen(database.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))

    async def cost(path: str, headers: dict[str, str]) -> list[float]:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://hub.test", headers=headers
        ) as client:
            first, kept, *sizes = await cost_of(client, path, times)
            client.headers["Cookie"] = "other=1"  # so that it is rendered each time
            asked.clear()
            drawn = (await cost_of(client, path, times))[1]
        return [first, kept, drawn, *sizes]

    for name, pattern in (PAGES | SIGNED_IN).items():
        if not name.startswith(only):
            continue
        path = pattern.format(middle=middle)
        headers = HEADERS | ({"Authorization": f"Bearer {hub.token}"} if name in SIGNED_IN else {})
        found = asyncio.run(cost(path, headers))
        found.append(len(asked) / (5 * times))
        if waits:
            waited = asyncio.run(waits_of(hub.url, headers, path))
            found += [statistics.median(waited), statistics.quantiles(waited, n=100)[98]]
        yield name, found
    database.close()


def print_rates(place: Path) -> None:
    """Print the requests per second for pages of a filled hub, and their ratios to a bare route."""
    print("| page | bare FastAPI route, a second | kept | 304 | drawn | behind nginx |")
    print("|---|---:|---:|---:|---:|---:|")
    with servers.wander(place, place / "hub", reads_per_minute="0") as hub:
        folder, port = place / "nginx", free_port()
        folder.mkdir()
        upstream = hub.base.removeprefix("http://")
        write_configuration(folder, listen=f"127.0.0.1:{port}", upstreams=[upstream], data=None)
        with servers.nginx(folder, f"include {folder / 'wander.conf'};", port) as process:
            front = servers.Server("nginx", f"http://127.0.0.1:{port}", "", "", process)
            for name in RATED:
                answer = httpx.get(hub.base + PAGES[name], headers={"Accept-Encoding": "identity"})
                static = place / name / "simple" / "page"
                static.mkdir(parents=True)
                (static / "index.json").write_bytes(answer.content)
                asked = {"304": {"If-None-Match": answer.headers["etag"]}, "drawn": {"Cookie": "other=1"}}
                with servers.uvicorn(place, place / name, "app", "FastAPI") as bare:
                    samples: dict[str, list[float]] = {}
                    for _ in range(ROUNDS):
                        own = load(bare, f"{bare.base}/simple/page/", {}, SECONDS)[0]
                        samples.setdefault("bare", []).append(own)
                        for way in ("kept", "304", "drawn", "behind nginx"):
                            server = front if way == "behind nginx" else hub
                            rate = load(server, server.base + PAGES[name], asked.get(way, {}), SECONDS)[0]
                            samples.setdefault(way, []).append(rate / own)
                own, *ratios = (statistics.median(found) for found in samples.values())
                print(f"| {name} | {own:,.0f} | {' | '.join(f'{one:.2g}' for one in ratios)} |", flush=True)


def main() -> None:
    """Fill a hub, request its pages, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, help="runs on the board, each with a different model")
    parser.add_argument("--times", type=int, default=5, help="requests per round (there are five rounds)")
    parser.add_argument("--only", nargs="+", default=[""], help="pages whose names begin with one of these")
    parser.add_argument("--no-waits", action="store_true", help="leave out the fifty concurrent readers")
    parser.add_argument(
        "--rates", action="store_true", help="measure requests per second, next to a bare route"
    )
    given = parser.parse_args()
    runs, rollouts = (500, 5_000) if given.quick else (10_000, 100_000)
    runs = given.runs or runs
    if given.rates:
        with tempfile.TemporaryDirectory() as name:
            with live_hub(Path(name) / "hub") as hub:
                fill(hub, Path(name), runs, ROLLOUTS)
                (Path(name) / "hub" / "token").write_text(hub.token)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {runs:,} runs")
            print_rates(Path(name))
        return
    with (
        tempfile.TemporaryDirectory() as name,
        live_hub(Path(name) / "hub", WANDER_HUB_READS_PER_MINUTE="0") as hub,
    ):
        fill(hub, Path(name), runs, rollouts)
        load = os.getloadavg()[0]
        print(f"load {load:.1f} on {os.cpu_count()} cores; {runs:,} runs, {rollouts:,} rollouts")
        waits = [] if given.no_waits else ["p50 of 50, ms", "p99, ms"]
        heads = ["page", "first, ms", "kept, ms", "drawn, ms", "kB", "kB sent", "statements", *waits]
        print(f"| {' | '.join(heads)} |\n|---{'|---:' * (len(heads) - 1)}|")
        for page, (first, kept, drawn, size, sent, *rest) in measured(
            hub, rollouts // 2, given.times, tuple(given.only), waits=not given.no_waits
        ):
            told = " | ".join(f"{one:.0f}" for one in (size / 1000, sent / 1000, *rest))
            print(f"| {page} | {first:.0f} | {kept:.1f} | {drawn:.1f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
