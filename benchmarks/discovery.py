"""Measures the growth of the processor time of pages and API from a hundred environments to a hundred
thousand, and the quality of searches. See README.md.

Rows are inserted into the database as publishing would leave them. The answers come from the application
itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, select, text
from sqlalchemy.orm import joinedload
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import Owner
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.environments import search
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.index import service as index
from wander_hub.settings import Settings

SIZES = (100, 20_000, 100_000)
OWNERS = 2
TOPICS = {
    "chess": "play positions of chess and find the mate",
    "sudoku": "fill a grid so that no digit repeats",
    "algebra": "solve equations and simplify expressions",
    "geometry": "reason about triangles and circles",
    "python": "write programs that pass hidden tests",
    "database": "answer questions by queries to tables",
    "translation": "carry a sentence to another language",
    "summaries": "shorten an article and keep its facts",
    "wordle": "guess a word of five letters",
    "negotiation": "share goods with another player",
    "navigation": "walk a maze by what is seen",
    "chemistry": "balance reactions and name molecules",
}
SHAPES = ("arena", "bench", "drills", "gym", "ladder", "puzzles", "quiz", "tasks", "trials", "world")
KINDS = ("single_turn", "multi_turn", "tool")
LICENSES = ("MIT", "Apache-2.0", "BSD-3-Clause", "Proprietary")
REQUESTS = {
    "first page": "/",
    "second of list": "/api/v1/environments?limit=5&sort=newest",
    "most used": "/api/v1/environments?limit=5&sort=downloads",
    "search of a topic": "/api/v1/environments?limit=5&q=chess",
    "search of two words": "/api/v1/environments?limit=5&q=hidden+tests",
    "search with a slip": "/api/v1/environments?limit=5&q=sudoko",
    "search for nothing": "/api/v1/environments?limit=5&q=qwertz",
    "search page": "/?q=algebra&sort=downloads",
    "a tag and a kind": "/api/v1/environments?limit=5&tag=python&kind=tool",
    "a rare license": "/api/v1/environments?limit=5&license=Proprietary&checked=true",
    "owner page": "/owner-1",
    "list of an owner": "/api/v1/environments?limit=5&owner=owner-1",
    "environment page": "/owner-1/chess-arena-1",
    "environment": "/api/v1/environments/owner-1/chess-arena-1",
    "a name that nobody has": "/api/v1/environments/owner-1/chess-arana-1",
    "index page": "/owner-1/simple/chess-arena-1/",
}
_BACKENDS = (
    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()"
)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH, _LEARNED = 500, 30
"""Environments per transaction, and per update of the search index. The hub indexes a hundred at a time."""


def describe(number: int) -> dict[str, Any]:
    """Return the content of environment `number`, which is always the same for a number."""
    draw = random.Random(number)
    topic = list(TOPICS)[number % len(TOPICS)] if number > 1 else "chess"
    other = draw.choice(list(TOPICS))
    shape = SHAPES[number // len(TOPICS) % len(SHAPES)] if number > 1 else "arena"
    return {
        "name": f"{topic}-{shape}-{number}",
        "summary": f"{TOPICS[topic].capitalize()}, as {shape}.",
        "tags": [topic, shape],
        "readme": f"# {topic} {shape}\n\n{TOPICS[topic]}. Unlike {other}, where models {TOPICS[other]}.\n"
        * 3,
        "kind": draw.choice(KINDS),
        "license": LICENSES[3] if number % 1000 == 7 else draw.choice(LICENSES[:3]),
        "downloads": int(draw.paretovariate(1)),
    }


def published(number: int, owners: dict[str, Owner], spread: int) -> tuple[Environment, Version]:
    """Return environment `number` with its version, as publishing would leave them."""
    one, at = describe(number), BEGAN + timedelta(seconds=number)
    owner = owners[f"owner-{number % spread}"]
    environment = Environment(
        id=number, owner=owner, owner_id=owner.id, name=one["name"], listed=True, latest_version="0.1.0",
        summary=one["summary"], tags=one["tags"], version_count=1, run_count=0, created_at=at,
        updated_at=at, download_count=one["downloads"], private=False, internal=False,
    )  # fmt: skip
    version = Version(
        id=number, environment_id=number, version="0.1.0", summary=one["summary"],
        requires_dist=["wander-sdk"], tags=one["tags"], readme=one["readme"], license=one["license"],
        readme_html=f"<p>{one['readme']}</p>", yanked=False, uploaded_at=at, environment_kind=one["kind"],
        deterministic=number % 3 > 0, checked=number % 2 == 0,
    )  # fmt: skip
    return environment, version


def fill(database: Database, start: int, end: int, spread: int = OWNERS) -> None:
    """Add environments with one version each, and update search and index for them."""
    for first in range(start, end, _BATCH):
        with database.write(HUB) as session:
            owners = {
                owner.name: Owner(id=owner.id, name=owner.name) for owner in session.scalars(select(Owner))
            }
            found = [published(number, owners, spread) for number in range(first, min(end, first + _BATCH))]
            for environment, version in found:
                environment.marks = search.marks_of(environment, version)
            for rows in zip(*found, strict=True):
                table = rows[0].__table__
                values = [{one.key: getattr(row, one.key) for one in table.columns} for row in rows]
                given = [{key: value for key, value in one.items() if value is not None} for one in values]
                session.execute(insert(table), given)
            for start in range(0, len(found), _LEARNED):
                search.add(session, found[start : start + _LEARNED])
            for environment in session.scalars(
                select(Environment)
                .options(joinedload(Environment.owner))
                .where(Environment.id >= first, Environment.id < min(end, 10))
            ):
                index.write_pages(session, environment)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def processor_seconds(backends: list[int]) -> float:
    """Return the processor seconds of this process and of a PostgreSQL on this machine."""
    spent = sum(int(Path(f"/proc/{one}/schedstat").read_text().split()[0]) for one in backends)
    return time.process_time() + spent / 1e9


async def measure(client: httpx.AsyncClient, database: Database, path: str, times: int) -> float:
    """Return the processor time of a request in milliseconds: the minimum of several rounds."""
    found, backends = [], list[int]()
    for _ in range(5):
        if database.engine.dialect.name == "postgresql":
            with database.engine.connect() as connection:
                backends = list(connection.scalars(text(_BACKENDS)))
        begun = processor_seconds(backends)
        for _ in range(times):
            answer = await client.get(path)
            assert answer.status_code in (200, 404), f"{path}: {answer.text}"
        found.append((processor_seconds(backends) - begun) / times * 1000)
    return min(found)


def judge(number: int, words: str) -> bool:
    """Return whether an environment is about the query: all words occur in its name, summary or tags."""
    one = describe(number)
    told = f"{one['name'].replace('-', ' ')} {one['summary']} {' '.join(one['tags'])}".lower()
    return all(word in told for word in words.split())


async def relevance(client: httpx.AsyncClient) -> dict[str, float]:
    """Return the share of relevant results among the first ten, over a set of queries."""
    plain = [*TOPICS, *(f"{topic} {shape}" for topic in TOPICS for shape in SHAPES)]
    slips = {topic[:2] + topic[3:]: topic for topic in TOPICS} | {f"{topic}x": topic for topic in TOPICS}
    shares: dict[str, list[float]] = {"words": [], "slips": [], "names": []}
    for group, queries in (("words", {one: one for one in plain}), ("slips", slips)):
        for query, meant in queries.items():
            answer = (await client.get("/api/v1/environments", params={"q": query, "limit": 10})).json()[
                "data"
            ]
            right = [judge(int(one["name"].rpartition("-")[2]), meant) for one in answer]
            shares[group].append(sum(right) / max(1, len(right)))
    for number in range(1, 1000, 50):
        name = describe(number)["name"]
        answer = (await client.get("/api/v1/environments", params={"q": name, "limit": 1})).json()["data"]
        shares["names"].append(float([one["name"] for one in answer] == [name]))
    return {group: statistics.mean(some) for group, some in shares.items()}


@contextmanager
def opened(url: str | None) -> Iterator[tuple[Database, Settings]]:
    """Yield an empty hub."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder), bundled_packages=False, database_url=url)
        database = Database(settings.resolved_database_url)
        database.migrate()
        with database.write(HUB) as session:
            for number in range(OWNERS):
                accounts.add_user(session, f"owner-{number}")
        yield database, settings
        database.close()


async def run(url: str | None, sizes: list[int], times: int) -> dict[str, Any]:
    """Return the request times at each size, and the relevance of searches at 10,000 environments."""
    figures: dict[str, Any] = {"milliseconds": {name: {} for name in REQUESTS}}
    with opened(url) as (database, settings):
        app, filled = create_app(settings, database=database), 1
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.test") as client:
            for size in sorted({*sizes, *([10_000] if max(sizes) >= 10_000 else [])}):
                fill(database, filled, size + 1)
                filled = size + 1
                if size == 10_000:
                    figures["relevance"] = await relevance(client)
                if size not in sizes:
                    continue
                for name, path in REQUESTS.items():
                    await client.get(path)
                    figures["milliseconds"][name][size] = round(
                        await measure(client, database, path, times), 2
                    )
                    print(f"{size:>7} {name:<24} {figures['milliseconds'][name][size]:>8} ms", flush=True)
    for name, found in figures["milliseconds"].items():
        print(f"{name:<24} times {found[max(sizes)] / found[min(sizes)]:.1f}")
    print(figures.get("relevance"))
    return figures


def main() -> None:
    """Measure, print, and write the figures to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="URL of an empty PostgreSQL database (default: SQLite)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--times", type=int, default=10, help="requests per round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = asyncio.run(run(options.database, options.sizes, options.times))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
