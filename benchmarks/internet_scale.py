"""Measures the cost of every page and API call for the hub and its PostgreSQL as a hub grows to 100,000
environments, 1,000,000 versions and 10,000,000 rollouts. See README.md.

The environments are those of `discovery.py`. One version and one run with a hundred rollouts are added
through the hub. The database then copies their rows: each environment gets a version and a run, and all
of them share their objects.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import discovery
import httpx
from fastapi.routing import iter_route_contexts
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Text,
    and_,
    cast,
    func,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.orm import Session, joinedload
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import Owner
from wander_hub.app import create_app
from wander_hub.audit import AuditEntry
from wander_hub.database import Base, Database
from wander_hub.environments import search
from wander_hub.environments.models import Downloads, Environment, File, Version
from wander_hub.identity import HUB
from wander_hub.index import service as index
from wander_hub.index.models import IndexPage
from wander_hub.jobs import Job
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.rights.tokens import first_administrator
from wander_hub.runs.models import Run, RunChunk
from wander_hub.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from command_line import make_wheel  # noqa: E402 - the tests' own small environment
from postgres_server import postgres_server  # noqa: E402
from saved_runs import write_run  # noqa: E402

ROLLOUTS, OLDER, DAYS = 100, 9, 10
"""Rollouts per run, additional older versions per environment, and days with downloads of each version."""
_PER_OWNER, _FIRST_FREE, _MADE = 50, 1_000_000_000, 2_000
_ROUNDS = 3
ASKED = {
    "owner": "owner-1", "name": "chess-arena-1", "project": "chess-arena-1",
    "version": "0.1.0", "revision": "main",
    "number": "7", "part": "run", "filename": "chess_arena_1-0.1.0-py3-none-any.whl", "namespace": "owner-1",
}  # fmt: skip
"""Values of the path parameters of requests. The run is added later."""
QUERIES = {
    "/runs": "?model=scripted:say",
    "/api/v1/runs": "?environment=owner-1/chess-arena-1",
    "/api/v1/runs/{run_id}/rollouts": "?offset=50&limit=50",
    "/runs/compare": "?run={run_id}&run={other}",
    "/api/v1/users": "?q=owner-1",
    "/api/v1/audit": "?owner=owner-1",
}
"""Queries that are measured in addition to the plain path."""


def copy(
    session: Session,
    table: type[Base],
    rows: FromClause,
    where: ColumnElement[bool],
    changed: Mapping[str, Any],
) -> None:
    """Copy rows of a table in the database, once for each of `rows`, with some columns changed."""
    columns = [column for column in table.__table__.c if column.name != "id"]
    chosen = [changed.get(column.name, column) for column in columns]
    source = select(*chosen).select_from(table.__table__.join(rows, where))
    session.execute(insert(table).from_select([column.name for column in columns], source))


_COPY_ENVIRONMENTS = """
WITH source AS (
  SELECT n, e.*, replace(e.name, e.id::text, n::text) AS fresh,
    (SELECT id FROM owners WHERE name = 'owner-' || n % {spread}) AS owner
  FROM generate_series({first}, {last}) AS n JOIN environments e ON e.id = 1 + (n - 1) % {base}
)
INSERT INTO environments (id, owner_id, name, {columns})
SELECT n, owner, fresh, {columns} FROM source
"""
_COPY_SEARCH = """
INSERT INTO environment_search (environment_id, head, body)
SELECT e.id, named || ts_delete(s.head, b.token), named || ts_delete(s.body, b.token)
FROM environments e JOIN environment_search s ON s.environment_id = 1 + (e.id - 1) % {base}
JOIN environments o ON o.id = s.environment_id
JOIN tokens a ON a.id = e.owner_id JOIN tokens b ON b.id = o.owner_id,
LATERAL (SELECT setweight(to_tsvector('english', replace(e.name, '-', ' ')), 'A')
  || setweight(array_to_tsvector(ARRAY[a.token]), 'C') AS named) AS made
WHERE e.id BETWEEN {first} AND {last}
"""


def fill(database: Database, first: int, last: int, spread: int) -> None:
    """Add environments with these numbers: the first with the hub's own functions, the others as copies."""
    if first <= _MADE:
        discovery.fill(database, first, min(last, _MADE) + 1, spread)
    copied = {"first": max(first, _MADE + 1), "last": last, "base": _MADE}
    if copied["first"] > last:
        return
    with database.write(HUB) as session:
        own = {"id", "owner_id", "name"}
        columns = ", ".join(column.name for column in Environment.__table__.c if column.name not in own)
        session.execute(text(_COPY_ENVIRONMENTS.format(columns=columns, spread=spread, **copied)))
        session.execute(
            text("CREATE TEMPORARY TABLE tokens (id integer PRIMARY KEY, token text) ON COMMIT DROP")
        )
        for owner in session.scalars(select(Owner.id)).all():
            told = {"id": owner, "token": search._token(f"by {owner}")}
            session.execute(text("INSERT INTO tokens VALUES (:id, :token)"), told)
        session.execute(text(_COPY_SEARCH.format(**copied)))
        numbered = select(Environment.id, (1 + (Environment.id - 1) % _MADE).label("source"))
        numbered = numbered.where(Environment.id >= copied["first"], Environment.id <= last).subquery()
        same = and_(Version.environment_id == numbered.c.source, Version.version == "0.1.0")
        copy(session, Version, numbered, same, {"environment_id": numbered.c.id})


def multiply(database: Database, first: int, last: int, run_id: str, older: int) -> None:
    """Give the environments with these numbers older versions, files, downloads, a run, a board and jobs."""
    steps = select(func.generate_series(1, older).label("n")).subquery()
    mine = and_(Version.environment_id >= first, Version.environment_id <= last)
    newest = select(Version.id, Version.environment_id, Environment.name, Environment.owner_id).join(
        Version.environment
    )
    newest = newest.where(mine, Version.version == "0.1.0").subquery()
    stem, number = func.replace(newest.c.name, "-", "_"), cast(newest.c.environment_id, Text)
    own_id = literal("01scale") + func.lpad(number, 19, "0")
    at = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, cast(newest.c.environment_id, Integer))
    template = Run.run_id == run_id
    with database.write(HUB) as session:
        of_version = {"version": literal("0.0.") + cast(steps.c.n, Text)}
        copy(session, Version, steps, and_(mine, Version.version == "0.1.0"), of_version)
        session.execute(
            text(
                "UPDATE environments SET version_count = :n, run_count = 1 WHERE id BETWEEN :first AND :last"
            ),
            {"n": older + 1, "first": first, "last": last},
        )
        all_of = select(Version.id, Version.environment_id, Version.version, Environment.name)
        all_of = all_of.join(Version.environment).where(mine).subquery()
        sample = session.scalars(select(File.id).limit(1)).one()
        name = func.replace(all_of.c.name, "-", "_") + "-" + all_of.c.version + "-py3-none-any.whl"
        ids = {"environment_id": all_of.c.environment_id, "version_id": all_of.c.id}
        copy(session, File, all_of, File.id == sample, {**ids, "filename": name})
        entry = session.scalars(select(AuditEntry.id).order_by(AuditEntry.id).limit(1)).one()
        copy(
            session, AuditEntry, all_of, AuditEntry.id == entry, {"owner": literal("owner-1"), "target": name}
        )
        page = {
            "owner_id": newest.c.owner_id,
            "project": newest.c.name,
            "environment_id": newest.c.environment_id,
        }
        copy(
            session,
            IndexPage,
            newest,
            and_(IndexPage.environment_id == 1, newest.c.environment_id >= 10),
            page,
        )
        days = select(func.generate_series(1, DAYS).label("n")).subquery()
        counts = select(newest.c.id, func.current_date() - days.c.n, days.c.n * 3).select_from(
            newest.join(days, literal(True))
        )
        session.execute(insert(Downloads).from_select(["version_id", "day", "count"], counts))
        of_run = {
            "run_id": own_id, "environment_id": newest.c.environment_id, "version_id": newest.c.id,
            "posted_at": at, "public_at": at,
            "sha256": func.encode(func.sha256(func.convert_to(stem, "UTF8")), "hex"),
        }  # fmt: skip
        copy(session, Run, newest, template, of_run)
        copy(session, RunChunk, newest, RunChunk.run_id == run_id, {"run_id": own_id})
        board, job = session.scalars(select(Board.id)).first(), session.scalars(select(Job.id)).first()
        copy(session, Board, newest, Board.id == board, {"version_id": newest.c.id})
        copy(
            session, Job, newest, Job.id == job, {"key": literal("scale ") + number, "state": literal("done")}
        )
        boards = (
            select(Board.id, newest.c.environment_id).join(newest, Board.version_id == newest.c.id).subquery()
        )
        of_entry = {
            "board_id": boards.c.id,
            "run_id": literal("01scale") + func.lpad(cast(boards.c.environment_id, Text), 19, "0"),
        }
        copy(session, BoardEntry, boards, BoardEntry.run_id == run_id, of_entry)


class Processor:
    """Processor time of this process and of the database's processes in nanoseconds."""

    def __init__(self, database: Database) -> None:
        with database.read() as session:
            self._parent = int(session.scalar(text("SELECT pg_read_file('postmaster.pid')")).split()[0])

    def now(self) -> tuple[int, int]:
        """Return both times. Exited database processes are counted in hundredths of a second."""
        children = Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split()
        spent = int(
            sum(map(float, Path(f"/proc/{self._parent}/stat").read_text().rpartition(")")[2].split()[13:15]))
            * 1e7
        )
        for child in children:
            try:
                spent += int(Path(f"/proc/{child}/schedstat").read_text().split()[0])
            except FileNotFoundError:
                continue
        return time.process_time_ns(), spent


class Bench:
    """A hub in this process, which measures the cost of its requests."""

    def __init__(self, client: httpx.AsyncClient, database: Database, folder: Path, token: str) -> None:
        self.client, self.database, self.folder = client, database, folder
        self.headers = {"Authorization": f"Bearer {token}"}
        self.processor, self.number = Processor(database), 0

    async def publish(self, owner: str, name: str, version: str) -> None:
        """Publish a wheel like package tools do."""
        wheel = make_wheel(self.folder, name=name, version=version)
        form = {":action": "file_upload", "protocol_version": "1"}
        files = {"content": (wheel.name, wheel.read_bytes())}
        answer = await self.client.post(f"/{owner}/legacy/", data=form, files=files, headers=self.headers)
        assert answer.status_code == 200, answer.text

    async def post(self) -> str:
        """Post a run with a hundred rollouts."""
        self.number += 1
        rewards = [(rollout + self.number) % 7 / 6 for rollout in range(ROLLOUTS)]
        run = write_run(self.folder / "runs" / str(self.number), rewards=rewards, owner="owner-1")
        files = {
            "manifest": ("run.json", (run / "run.json").read_bytes()),
            "rollouts": ("rollouts.jsonl.zst", (run / "rollouts.jsonl.zst").read_bytes()),
        }
        answer = await self.client.post("/api/v1/runs", files=files, headers=self.headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run_id"])

    async def cost(self, ask: Any, times: int) -> tuple[float, float] | None:
        """Return the processor milliseconds of hub and database for a call: the median of several rounds."""
        if await ask() is False:
            return None
        found = []
        for _ in range(_ROUNDS):
            before = self.processor.now()
            for _ in range(times):
                await ask()
            found.append([(b - a) / times / 1e6 for a, b in zip(before, self.processor.now(), strict=True)])
        hub, database = (round(statistics.median(one), 2) for one in zip(*found, strict=True))
        return hub, database

    async def costs(self, paths: Mapping[str, str], times: int, only: str) -> dict[str, tuple[float, float]]:
        """Return the cost of each request. Requests that are not answered with 200 are left out."""

        def asks(path: str) -> Any:
            accept = "text/html" if not path.startswith(("/api", "/simple")) else "*/*"

            anybody = any(part in path for part in ("/simple/", "/index/", "/files/"))  # like installers
            headers = {"Accept": accept} if anybody else {**self.headers, "Accept": accept}

            async def ask() -> bool:
                answer = await self.client.get(path, headers=headers)
                return answer.status_code == 200

            return ask

        async def version() -> None:
            self.number += 1
            await self.publish("owner-1", "say-env", f"1.{self.number}.0")

        async def environment() -> None:
            self.number += 1
            await self.publish("owner-1", f"fresh-{self.number}", "0.1.0")

        calls = {name: asks(path) for name, path in paths.items()}
        calls |= {"publish a version": version, "publish a new one": environment, "post a run": self.post}
        found = {}
        for name, call in calls.items():
            if not re.search(only, name):
                continue
            few = 2 if name.startswith(("publish", "post")) else times
            cost = await self.cost(call, few)
            if cost is not None:
                print(f"{name:<60} {cost}", flush=True)
                found[name] = cost
        return found


def requests_of(app: Any, run_id: str) -> dict[str, str]:
    """Return every readable path, from the application's routes, and some searches."""
    requests: dict[str, str] = {}
    values = {**ASKED, "run_id": run_id, "other": "01scale" + "3".zfill(19)}
    for context in iter_route_contexts(app.router.routes):
        path = context.path or ""
        if "GET" not in (getattr(context.original_route, "methods", None) or ()) or "jsonl" in path:
            continue
        for query in {"", QUERIES.get(path, "")}:
            try:
                requests[path + query] = (path.replace(":path", "") + query).format(**values)
            except KeyError:
                continue
    return requests | {name: path for name, path in discovery.REQUESTS.items() if "?" in path}


async def run(url: str, sizes: list[int], times: int, older: int = OLDER, only: str = "") -> dict[str, Any]:
    """Return the cost of each request at each size. `only` is a pattern for the names of requests."""
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = {"reads_per_minute": 0, "writes_per_minute": 0, "uploads_per_minute": 0}
        settings = Settings(
            data=folder, bundled_packages=False, database_url=url, verification="off", **limits
        )
        database = Database(url)
        database.migrate()
        with database.write(HUB) as session:
            token = first_administrator(session)
            for number in range(max(2, max(sizes) // _PER_OWNER)):
                accounts.add_user(session, f"owner-{number}")
        app = create_app(settings, database=database)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.test", timeout=None) as client:
            with database.engine.begin() as connection:
                for table in ("environments", "versions"):  # filling numbers both from 1
                    connection.execute(text(f"ALTER SEQUENCE {table}_id_seq RESTART {_FIRST_FREE}"))
            bench = Bench(client, database, folder, token or "")
            await bench.publish("owner-1", "say-env", "0.1.0")
            run_id, filled = await bench.post(), 0
            with database.write(HUB) as session:
                if session.scalars(select(Job.id)).first() is None:
                    began = {"run_after": discovery.BEGAN, "created_at": discovery.BEGAN}
                    job = Job(kind="verify", key="sample", payload={}, state="done", max_attempts=3, **began)
                    session.add(job)
            for size in sizes:
                began = time.perf_counter()
                fill(database, filled + 1, size, max(2, size // _PER_OWNER))
                multiply(database, filled + 1, size, run_id, older)
                with database.write(HUB) as session:
                    for one in session.scalars(
                        select(Environment).options(joinedload(Environment.owner)).where(Environment.id < 10)
                    ):
                        index.write_pages(session, one)
                filled = size
                with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(text("VACUUM ANALYZE"))
                    rows = {
                        t: connection.scalar(text(f"SELECT count(*) FROM {t}"))
                        for t in ("environments", "versions", "files", "runs", "run_chunks")
                    }
                    rows["bytes"] = connection.scalar(text("SELECT pg_database_size(current_database())"))
                rows["rollouts"] = rows["run_chunks"] * ROLLOUTS
                figures[str(size)] = {"filled in": round(time.perf_counter() - began), "rows": rows}
                print(size, figures[str(size)], flush=True)
                paths = requests_of(app, "01scale" + "1".zfill(19))
                figures[str(size)]["milliseconds"] = await bench.costs(paths, times, only)
        database.close()
    return figures


def show(figures: Mapping[str, Any]) -> None:
    """Print the cost of each request, and its ratio to the cost at the smallest size."""
    costs = [one["milliseconds"] for one in figures.values()]
    print(f"| request | {' | '.join(f'{int(size):,}: hub, database ms' for size in figures)} | times |")
    for name, first in sorted(costs[0].items()):
        each = [one.get(name, (float("nan"), float("nan"))) for one in costs]
        times = sum(each[-1]) / sum(first)
        print(f"| {name} | {' | '.join(f'{hub:.1f}, {base:.1f}' for hub, base in each)} | {times:.1f} |")


def main() -> None:
    """Fill, measure, print, and write the figures to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--database",
        help="URL of an empty database on a PostgreSQL of this machine (default: start a PostgreSQL)",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(discovery.SIZES))
    parser.add_argument("--times", type=int, default=3, help="requests per round")
    parser.add_argument("--older", type=int, default=OLDER, help="older versions per environment")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only requests whose names match")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        url = options.database
        if url is None:
            url = stack.enter_context(stack.enter_context(postgres_server()).database())
        figures = asyncio.run(run(url, sorted(options.sizes), options.times, options.older, options.only))
    show(figures)
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
