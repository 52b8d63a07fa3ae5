"""Puts a hub of two servers and two workers under load, and measures its answers.

    .venv/bin/python scripts/load.py --posts 10000 --connections 5000 --megabytes 200 --slow 300

First, idle connections are held open while another client sends requests. Then a large run is posted. Then
readers send requests next to clients that send and read one byte per second, until the servers have closed
those, and next to a client that posts a run with very many rollouts. Then posters and readers work at the
same time, and finally publishers. The script fails on any answer of 500 or above, if a board differs from the
posted runs, if slow clients are not disconnected, and if `fsck` finds any fault.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from command_line import make_wheel  # noqa: E402 - the tests' own harness
from hub_cluster import FRONT, Cluster, Part, hub_cluster  # noqa: E402
from live_hub import BIN, clean_environment  # noqa: E402
from saved_runs import write_run  # noqa: E402

POSTERS, READERS, SECONDS, MODELS = 10, 50, 600, 100
SLOW_SECONDS, ROLLOUT_BYTES = 100, 100_000
PATHS = ("/", "/admin/say-env", "/api/v1/environments", "/admin/simple/say-env/", "/runs", "/api/v1/runs")
LIMITS = ("READS", "WRITES", "UPLOADS")


class Answers:
    """Statuses and durations of answers."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []

    async def of(self, asking: Awaitable[httpx.Response]) -> httpx.Response:
        """Wait for an answer and record it."""
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
    """Return a client with the administrator's token, through nginx or to a server directly."""
    headers = {"Authorization": f"Bearer {cluster.token}"}
    limits = httpx.Limits(max_connections=POSTERS + READERS)
    return httpx.AsyncClient(base_url=url or cluster.front, headers=headers, timeout=SECONDS, limits=limits)


def processor(parts: Iterable[Part]) -> float:
    """Return the processor seconds used by parts and their children."""
    ticks = 0.0
    for pid in itertools.chain.from_iterable(part.family() for part in parts):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(float, words[11:15]))  # includes exited children
    return ticks / 100


def memory(part: Part, figure: str = "VmRSS") -> float:
    """Return the megabytes that a part uses, or its peak (`VmHWM`)."""
    status = Path(f"/proc/{part.running.pid}/status").read_text()
    return int(status.partition(f"{figure}:")[2].split()[0]) / 1024


async def hold(cluster: Cluster, count: int) -> Answers:
    """Open connections to one server and keep them while another client sends requests.

    Use all of them twice.
    """
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
        batch = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(100)))
        await asyncio.gather(*(use(*one) for one in batch))
        opened += batch
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


async def post_large(cluster: Cluster, folder: Path, count: int, size: int) -> str:
    """Post a run of `count` different rollouts with `wander post`, and read it. Returns its id."""
    chance = random.Random(count)  # noqa: S311 - only noise
    said = (chance.randbytes(size // 4).hex() for _ in range(count))  # hexadecimal digits double its size
    name = f"large-{count}"
    run = await asyncio.to_thread(
        write_run, folder / "runs" / name, rewards=[1.0] * count, said=said, model=name
    )
    environment = {**clean_environment(), "WANDER_HUB": cluster.front, "WANDER_TOKEN": cluster.token}
    parts = [*cluster.servers, *cluster.workers]
    held, began = [memory(one) for one in parts], time.perf_counter()
    spent = processor(cluster.servers), processor(cluster.workers)
    posting = await asyncio.create_subprocess_exec(
        str(BIN / "wander"), "post", str(run), "--json", env=environment, stdout=subprocess.PIPE
    )
    told, _ = await posting.communicate()
    if posting.returncode:
        raise SystemExit(f"error: posting the large run failed: {told.decode()}")
    seconds = time.perf_counter() - began
    async with client_of(cluster) as client:
        waiting = re.compile(r"^wander_hub_jobs{.*} [1-9]", re.MULTILINE)  # until a worker has processed it
        while waiting.search((await client.get("/metrics")).text):  # noqa: ASYNC110 - only polling is possible
            await asyncio.sleep(1)
    most = [memory(one, "VmHWM") for one in parts]
    spread = ", ".join(
        f"{part.name} {one:.0f} MB (before {before:.0f})"
        for part, one, before in zip(parts, most, held, strict=True)
    )
    servers, workers = processor(cluster.servers) - spent[0], processor(cluster.workers) - spent[1]
    print(
        f"{count:,} rollouts of {size:,} bytes posted: {seconds:.0f} s; processor: servers {servers:.0f} s, "
        f"workers {workers:.0f} s; at most {spread}"
    )
    return str(json.loads(told)["data"]["run_id"])


async def read_on(
    client: httpx.AsyncClient, answers: Answers, number: int, ended: Callable[[], bool]
) -> None:
    """Request one page after the other until the event is set."""
    for path in itertools.islice(itertools.cycle(PATHS), number % len(PATHS), None):
        if ended():
            return
        await answers.of(client.get(path))


async def post_next_to_readers(cluster: Cluster, folder: Path, count: int) -> Answers:
    """Post a run of very many small rollouts while five readers send requests."""
    answers = Answers()
    posting = asyncio.create_task(post_large(cluster, folder, count, 1000))
    async with client_of(cluster) as client:
        readers = [read_on(client, answers, number, posting.done) for number in range(5)]
        await asyncio.gather(posting, *readers)
    print(f"readers next to it: {answers}")
    return answers


def open_at(port: int) -> int:
    """Count the connections of a port from addresses that only slow clients use."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in lines if int(row[1].partition(":")[2], 16) == port and row[3] == "01"]
    return sum(not row[2].startswith("0100007F") for row in ours)


async def slow(cluster: Cluster, count: int, run: str) -> tuple[Answers, Answers]:
    """Read without other clients, then next to clients that send headers and bodies and read slowly."""
    host, _, port = cluster.parts[FRONT].address.partition(":")
    sign = f"Host: {host}:{port}\r\nAuthorization: Bearer {cluster.token}\r\n"
    upload = f"POST /api/v1/runs HTTP/1.1\r\n{sign}Content-Type: multipart/form-data; boundary=b\r\n"
    upload += "Content-Length: 100000000\r\n\r\n--b\r\n"
    heads = (f"GET / HTTP/1.1\r\n{sign}X-Long: ", upload)
    download = f"GET /api/v1/runs/{run}/rollouts.jsonl HTTP/1.1\r\n{sign}\r\n"

    async def dawdle(number: int) -> None:
        loop, here = asyncio.get_running_loop(), socket.socket()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        here.setblocking(False)
        here.bind((f"127.0.0.{2 + number % 8}", 0))
        with here:
            await loop.sock_connect(here, (host, int(port)))
            await loop.sock_sendall(here, (heads[number % 3] if number % 3 < 2 else download).encode())
            try:
                while True:
                    await asyncio.sleep(1)
                    if number % 3 == 2:
                        await loop.sock_recv(here, 1)
                    else:
                        await loop.sock_sendall(here, b"x")
            except OSError:
                return

    async def read(answers: Answers, seconds: float) -> float:
        end, spent = time.monotonic() + seconds, processor(cluster.servers)

        def over() -> bool:
            return time.monotonic() > end

        await asyncio.gather(*(read_on(client, answers, number, over) for number in range(5)))
        return 1000 * (processor(cluster.servers) - spent) / len(answers.seconds)

    alone, beside = Answers(), Answers()
    async with client_of(cluster) as client:
        cost = await read(alone, 20)
        dawdlers = [asyncio.create_task(dawdle(number)) for number in range(count)]
        await asyncio.sleep(5)
        began = open_at(int(port))
        cost_beside = await read(beside, SLOW_SECONDS)
        left = open_at(int(port))
        await asyncio.wait(dawdlers, timeout=SLOW_SECONDS if left else 0)
        stayed = open_at(int(port))
        for dawdler in dawdlers:
            dawdler.cancel()
        await asyncio.gather(*dawdlers, return_exceptions=True)
    print(f"readers without other clients: {alone}, {cost:.1f} ms of processor each")
    print(f"next to {count} slow clients: {beside}, {cost_beside:.1f} ms of processor each")
    print(f"slow connections open after 5 s: {began}, after {SLOW_SECONDS + 5} s: {left}")
    if stayed:
        raise SystemExit("error: slow clients are not disconnected")
    return alone, beside


async def share(count: int, at_once: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do some work `count` times, with `at_once` tasks at the same time."""
    numbers = iter(range(count))

    async def go_on() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(go_on() for _ in range(at_once)))


async def post_and_read(cluster: Cluster, folder: Path, count: int, asking: int) -> tuple[Answers, Answers]:
    """Post small runs with different ids while readers send requests."""
    run = write_run(folder / "runs" / "one", rewards=[1.0, 0.0, 0.5, 1.0])
    manifest, rollouts = json.loads((run / "run.json").read_text()), (run / "rollouts.jsonl.zst").read_bytes()
    posted, read, ended = Answers(), Answers(), asyncio.Event()

    async def post(number: int) -> None:
        own = {**manifest, "run_id": f"01load{number:020d}"}
        own["model"] = {**manifest["model"], "name": f"model-{number % MODELS}"}
        files = {"manifest": ("run.json", json.dumps(own)), "rollouts": ("rollouts.jsonl.zst", rollouts)}
        await posted.of(client.post("/api/v1/runs", files=files))
        if len(posted.seconds) % 1000 == 0:
            some = posted.seconds[-1000:]
            each = (processor(cluster.servers) - spent_by_servers) / len(posted.seconds)
            told = (
                f"p50 {1000 * statistics.median(some):.0f} ms, {1000 * each:.0f} ms of processor each so far"
            )
            print(
                f"{len(posted.seconds)} posts after {time.perf_counter() - began:.0f} s: {told}", flush=True
            )

    parts = [*cluster.parts.values()]
    began, spent, spent_by_servers = time.perf_counter(), processor(parts), processor(cluster.servers)
    async with client_of(cluster) as client:
        readers = [
            asyncio.create_task(read_on(client, read, number, ended.is_set)) for number in range(asking)
        ]
        await share(count, POSTERS, post)
        ended.set()
        await asyncio.gather(*readers)
        board, rewards = await read_board(client)
    seconds, spent = time.perf_counter() - began, processor(parts) - spent
    print(f"{POSTERS} posters and {asking} readers: {seconds:.0f} s, {spent:.0f} s of processor")
    print(f"posts: {posted}\nreads: {read}")
    print(f"board: {board['runs']} runs, {board['models']} models; rows by mean reward: {dict(rewards)}")
    if board["runs"] != count or rewards.total() != count:
        raise SystemExit(f"error: the board does not contain the {count} posted runs")
    return posted, read


async def read_board(client: httpx.AsyncClient) -> tuple[dict[str, Any], Counter[float]]:
    """Return the board with the most runs, and the number of its rows by mean reward."""

    async def read_page(**parameters: str) -> dict[str, Any]:
        asked = {"runs": "all", "limit": "200", **parameters}
        response = await client.get("/api/v1/environments/admin/say-env/leaderboard", params=asked)
        page: dict[str, Any] = response.raise_for_status().json()
        return page

    shown = await read_page()
    largest = max([shown, *shown["others"]], key=lambda board: board["runs"])
    board = page = await read_page(board=largest["board"])
    rewards = Counter[float](row["reward_mean"] for row in page["rows"])
    while page["next"] is not None:
        page = await read_page(board=largest["board"], cursor=page["next"])
        rewards.update(row["reward_mean"] for row in page["rows"])
    return board, rewards


async def publish(cluster: Cluster, folder: Path, publishers: int) -> Answers:
    """Publish versions of one environment, and the same number of new environments, at the same time."""
    answers, form = Answers(), {":action": "file_upload", "protocol_version": "1"}

    async def send(number: int) -> None:
        new = number % 2
        wheel = make_wheel(folder, **({"name": f"say-{number}"} if new else {"version": f"1.{number}.0"}))
        files = {"content": (wheel.name, wheel.read_bytes())}
        await answers.of(client.post("/admin/legacy/", data=form, files=files))

    async with client_of(cluster) as client:
        await asyncio.gather(*(send(number) for number in range(2 * publishers)))
    print(f"{2 * publishers} concurrent publications: {answers}")
    return answers


def main() -> None:
    """Start the hub, put it under load, and check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--posts", type=int, default=10_000)
    parser.add_argument(
        "--readers", type=int, default=READERS, help="number of readers while runs are posted"
    )
    parser.add_argument("--publishers", type=int, default=50)
    parser.add_argument(
        "--slow", type=int, default=300, help="number of clients that send and read one byte per second"
    )
    parser.add_argument("--megabytes", type=int, default=200, help="size of the large run")
    parser.add_argument(
        "--rollouts", type=int, default=100_000, help="rollouts of the run posted next to readers"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends everything that was started
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    settings = {"WANDER_HUB_VERIFICATION": "off", "WANDER_HUB_BUNDLED_PACKAGES": "false"}
    settings |= {f"WANDER_HUB_{one}_PER_MINUTE": "0" for one in LIMITS}
    with (
        tempfile.TemporaryDirectory(prefix="wander-load-") as name,
        hub_cluster(Path(name) / "hub", **settings) as cluster,
    ):
        # Child processes inherit the original limit. Only this process needs more open files.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        folder = Path(name)

        async def load() -> list[Answers]:
            first = Answers()
            async with client_of(cluster) as client:
                wheel, form = make_wheel(folder), {":action": "file_upload", "protocol_version": "1"}
                files = {"content": (wheel.name, wheel.read_bytes())}
                await first.of(client.post("/admin/legacy/", data=form, files=files))
            held = [await hold(cluster, asked.connections)] if asked.connections else []
            if asked.slow:
                count = asked.megabytes * 1_000_000 // ROLLOUT_BYTES
                large = await post_large(cluster, folder, count, ROLLOUT_BYTES)
                held += await slow(cluster, asked.slow, large)
            if asked.rollouts:
                held.append(await post_next_to_readers(cluster, folder, asked.rollouts))
            return [
                first,
                *held,
                *await post_and_read(cluster, folder, asked.posts, asked.readers),
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
