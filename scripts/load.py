"""Puts a hub of two servers and two workers under load, and tells how it answers.

    .venv/bin/python scripts/load.py --connections 5000 --posts 10000 --publishers 50

Idle connections are held open while others ask; then posters and readers work at once; then publishers, all
at once. It fails on any answer of 500 or above, and on anything that `fsck` finds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from command_line import make_wheel  # noqa: E402 - the tests' own harness
from hub_cluster import Cluster, Part, hub_cluster  # noqa: E402
from saved_runs import write_run  # noqa: E402

POSTERS, READERS, SECONDS = 10, 50, 600
PATHS = ("/", "/admin/say-env", "/api/v1/environments", "/admin/simple/say-env/", "/runs", "/api/v1/runs")
LIMITS = ("READS", "WRITES", "UPLOADS")


class Answers:
    """Statuses and seconds of answers."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []

    async def of(self, asking: Awaitable[httpx.Response]) -> httpx.Response:
        """Wait for an answer and note it."""
        began = time.perf_counter()
        answer = await asking
        self.seconds.append(time.perf_counter() - began)
        self.statuses[answer.status_code] += 1
        return answer

    def __str__(self) -> str:
        marks = statistics.quantiles(self.seconds, n=100) if len(self.seconds) > 1 else [0.0] * 99
        spread = f"p50 {marks[49] * 1000:.0f} ms, p99 {marks[98] * 1000:.0f} ms"
        return f"{len(self.seconds)} answers {dict(self.statuses)}, {spread}"


def client_of(cluster: Cluster, url: str | None = None) -> httpx.AsyncClient:
    """Return a client with the administrator's token, by nginx or straight."""
    headers = {"Authorization": f"Bearer {cluster.token}"}
    limits = httpx.Limits(max_connections=POSTERS + READERS)
    return httpx.AsyncClient(base_url=url or cluster.front, headers=headers, timeout=SECONDS, limits=limits)


def processor(parts: Iterable[Part]) -> float:
    """Return the seconds of processor that parts and their children have taken."""
    ticks = 0.0
    for pid in itertools.chain.from_iterable(part.family() for part in parts):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += float(words[11]) + float(words[12])
    return ticks / 100


def memory(part: Part) -> float:
    """Return the megabytes that a part holds."""
    told = Path(f"/proc/{part.running.pid}/status").read_text()
    return int(told.partition("VmRSS:")[2].split()[0]) / 1024


async def hold(cluster: Cluster, count: int) -> Answers:
    """Open so many connections to one server and keep them, while another client asks it; use all twice."""
    server, answers, before = cluster.servers[0], Answers(), memory(cluster.servers[0])
    host, _, port = server.address.partition(":")
    request = f"GET /live HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode()
    opened = []

    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        answers.statuses[int(head.split()[1])] += 1

    for _ in range(count // 100):
        some = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(100)))
        await asyncio.gather(*(use(*one) for one in some))
        opened += some
    async with client_of(cluster, server.url) as client:
        for path in PATHS * 5:
            await answers.of(client.get(path))
    more = memory(server) - before
    for start in range(0, len(opened), 100):
        await asyncio.gather(*(use(*one) for one in opened[start : start + 100]))
    for _, writer in opened:
        writer.close()
    print(f"{len(opened)} connections held: {answers}; {more * 1024 / max(1, len(opened)):.1f} kB each")
    return answers


async def share(count: int, at_once: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do some work so many times, so many at once."""
    numbers = iter(range(count))

    async def go_on() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(go_on() for _ in range(at_once)))


async def post_and_read(cluster: Cluster, folder: Path, count: int) -> tuple[Answers, Answers]:
    """Post small runs, each with an id of its own, while readers ask."""
    run = write_run(folder / "runs" / "one", rewards=[1.0, 0.0, 0.5, 1.0])
    manifest, rollouts = json.loads((run / "run.json").read_text()), (run / "rollouts.jsonl.zst").read_bytes()
    posted, read, ended = Answers(), Answers(), asyncio.Event()

    async def post(number: int) -> None:
        own = {**manifest, "run_id": f"01load{number:020d}"}
        own["model"] = {**manifest["model"], "name": f"model-{number % 100}"}
        files = {"manifest": ("run.json", json.dumps(own)), "rollouts": ("rollouts.jsonl.zst", rollouts)}
        await posted.of(client.post("/api/v1/runs", files=files))

    async def ask(number: int) -> None:
        for path in itertools.islice(itertools.cycle(PATHS), number % len(PATHS), None):
            if ended.is_set():
                return
            await read.of(client.get(path))

    parts = [*cluster.parts.values()]
    began, spent = time.perf_counter(), processor(parts)
    async with client_of(cluster) as client:
        readers = [asyncio.create_task(ask(number)) for number in range(READERS)]
        await share(count, POSTERS, post)
        ended.set()
        await asyncio.gather(*readers)
    seconds, spent = time.perf_counter() - began, processor(parts) - spent
    print(f"{POSTERS} posters and {READERS} readers: {seconds:.0f} s, {spent:.0f} s of processor")
    print(f"posts: {posted}\nreads: {read}")
    return posted, read


async def publish(cluster: Cluster, folder: Path, publishers: int) -> Answers:
    """Publish as many versions of one environment and as many new environments at once."""
    answers, form = Answers(), {":action": "file_upload", "protocol_version": "1"}

    async def send(number: int) -> None:
        new = number % 2
        wheel = make_wheel(folder, **({"name": f"say-{number}"} if new else {"version": f"1.{number}.0"}))
        files = {"content": (wheel.name, wheel.read_bytes())}
        await answers.of(client.post("/admin/legacy/", data=form, files=files))

    async with client_of(cluster) as client:
        await asyncio.gather(*(send(number) for number in range(2 * publishers)))
    print(f"{2 * publishers} publications at once: {answers}")
    return answers


def main() -> None:
    """Start, load, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--posts", type=int, default=10_000)
    parser.add_argument("--publishers", type=int, default=50)
    asked = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    settings = {"WANDER_HUB_VERIFICATION": "off", "WANDER_HUB_BUNDLED_PACKAGES": "false"}
    settings |= {f"WANDER_HUB_{one}_PER_MINUTE": "0" for one in LIMITS}
    with (
        tempfile.TemporaryDirectory(prefix="wander-load-") as name,
        hub_cluster(Path(name) / "hub", **settings) as cluster,
    ):
        # The parts that run have what this process was given; this one needs as many files as it opens.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        folder = Path(name)

        async def load() -> list[Answers]:
            first = Answers()
            async with client_of(cluster) as client:
                wheel, form = make_wheel(folder), {":action": "file_upload", "protocol_version": "1"}
                files = {"content": (wheel.name, wheel.read_bytes())}
                await first.of(client.post("/admin/legacy/", data=form, files=files))
            held = await hold(cluster, asked.connections)
            return [
                first,
                held,
                *await post_and_read(cluster, folder, asked.posts),
                await publish(cluster, folder, asked.publishers),
            ]

        answers = asyncio.run(load())
        checked = cluster.run("fsck")
        print(checked.stdout + checked.stderr)
    failed = sum((one.statuses for one in answers), Counter())
    bad = {status: count for status, count in failed.items() if status >= 500}
    raise SystemExit(1 if bad or checked.returncode else 0)


if __name__ == "__main__":
    main()
