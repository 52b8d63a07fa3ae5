"""Injects random faults into a hub of several servers and workers, and checks that nothing is lost or done
twice.

    sudo .venv/bin/python scripts/faults.py --faults 200 --seed 1

Two servers and two workers share one PostgreSQL and one bucket, behind nginx. Each has its own network, which
needs root (`--loopback` runs without them, and without network cuts and full disks). While programs publish,
post, read, and receive a webhook, several parts at a time are killed, stopped, disconnected, given a wrong
clock or a full disk, and then restarted as by a supervisor. At the end, everything that was acknowledged must
exist exactly once, and `fsck` must find no fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from command_line import make_wheel  # noqa: E402 - the tests' own harness
from hub_cluster import BUCKET, DATABASE, FRONT, Cluster, Loopback, Namespaces, hub_cluster  # noqa: E402
from saved_runs import write_run  # noqa: E402
from webhook_receiver import Receiver, webhook_receiver  # noqa: E402

PATIENCE = 300.0
PAGES = ("/", "/runs", "/admin/say-env", "/api/v1/environments", "/admin/simple/say-env/", "/api/v1/runs")
DISKS = {DATABASE: "postgres", BUCKET: "bucket"}
_DISK_MEGABYTES = 600
_AGAIN = frozenset({429, 500, 502, 503, 504, 507})
"""Statuses after which a client repeats its request."""


class Users:
    """Programs that publish, post and read until they are stopped, and the hub's acknowledgments."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.headers = {"Authorization": f"Bearer {cluster.token}"}
        self.versions: list[tuple[str, bytes]] = []
        self.runs: list[str] = []
        self.refused: list[str] = []
        self.answers: Counter[str] = Counter()
        self.enough = threading.Event()
        self._lock = threading.Lock()
        works = [self._publish, *[self._post] * 2, *[self._read] * 2]
        self.threads = [threading.Thread(target=self._work, args=(work, n)) for n, work in enumerate(works)]

    def _work(self, work: Callable[[int, int], None], number: int) -> None:
        count = 0
        while not self.enough.wait(0.5):
            count += 1
            work(number, count)

    def send(self, path: str, **parts: Any) -> httpx.Response:
        """Post until the hub gives a final answer."""
        give_up = time.monotonic() + PATIENCE
        while True:
            answer: Any = None
            try:
                address = f"{self.cluster.front}{path}"
                answer = httpx.post(address, headers=self.headers, timeout=60, trust_env=False, **parts)
                self._count("write", answer)
            except httpx.TransportError as error:
                self._count("write", type(error).__name__)
            if answer is not None and answer.status_code not in _AGAIN:
                return answer
            if time.monotonic() > give_up:
                raise TimeoutError(f"nobody accepted {path}: {answer.text if answer is not None else ''}")
            time.sleep(0.3)

    def _count(self, what: str, answer: httpx.Response | str) -> None:
        name = answer if isinstance(answer, str) else str(answer.status_code)
        if not isinstance(answer, str) and answer.status_code >= 500:
            kind = answer.headers.get("content-type", "")
            name = f"{name} {answer.json()['code']}" if "problem" in kind else f"{name} of nginx"
        with self._lock:
            self.answers[f"{what} {name}"] += 1

    def publish(self, version: str) -> None:
        """Publish a version. Repeat it if its outcome is unknown."""
        place = self.folder / version
        place.mkdir()
        wheel = make_wheel(place, version=version)
        form, content = {":action": "file_upload", "protocol_version": "1"}, wheel.read_bytes()
        answer = self.send("/admin/legacy/", data=form, files={"content": (wheel.name, content)})
        self._note(answer, self.versions, (wheel.name, content))

    def _publish(self, _number: int, count: int) -> None:
        self.publish(f"0.{count + 1}.0")

    def _post(self, number: int, count: int) -> None:
        place = self.folder / f"poster{number}" / "runs" / str(count)
        place.parent.parent.mkdir(exist_ok=True)
        run = write_run(
            place, rewards=[rollout % 5 / 4 for rollout in range(4 + count % 40)], model=f"m{number}-{count}"
        )
        files = {name: (name, (run / name).read_bytes()) for name in ("run.json", "rollouts.jsonl.zst")}
        parts = {"manifest": files["run.json"], "rollouts": files["rollouts.jsonl.zst"]}
        self._note(
            self.send("/api/v1/runs", files=parts), self.runs, json.loads(files["run.json"][1])["run_id"]
        )

    def _read(self, number: int, count: int) -> None:
        try:
            path = PAGES[(count + number) % len(PAGES)]
            self._count("read", httpx.get(f"{self.cluster.front}{path}", timeout=30, trust_env=False))
        except httpx.TransportError as error:
            self._count("read", type(error).__name__)

    def _note(self, answer: httpx.Response, done: list[Any], what: Any) -> None:
        if answer.status_code in (200, 201):
            done.append(what)
        else:
            self.refused.append(f"{answer.status_code} {answer.text[:300]}")


class Faults:
    """The faults that can be injected into the parts of a hub. Each ends with its block."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        hubs = [part.name for part in (*cluster.servers, *cluster.workers)]
        every = list(cluster.parts)
        self.kinds: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
            "kill": (self.kill, every), "kill under load": (self.kill, every), "stop": (self.stop, every),
            "clock": (self.clock, hubs),
        }  # fmt: skip
        if isinstance(cluster.network, Namespaces):
            self.kinds |= {
                "cut": (self.cut, hubs), "cut again": (self.cut, hubs), "full disk": (self.fill, list(DISKS))
            }  # fmt: skip

    @contextmanager
    def some(self, count: int) -> Iterator[list[tuple[str, str]]]:
        """Inject faults into several parts at a time, one fault each. Yields the kinds and the parts."""
        chosen: dict[str, str] = {}
        while len(chosen) < count:
            kind = self.chance.choice(list(self.kinds))
            if free := [one for one in self.kinds[kind][1] if one not in chosen]:
                chosen[self.chance.choice(free)] = kind
        # Each part after the parts that it depends on, and before them if it is not healthy.
        needed = (DATABASE, BUCKET, *(one.name for one in self.cluster.servers))
        order = sorted(chosen, key=lambda one: needed.index(one) if one in needed else len(needed))
        faults = {one: self.kinds[chosen[one]][0](self.cluster.parts[one]) for one in order}
        told = [(chosen[one], faults[one].__enter__()) for one in reversed(order)]
        yield told
        for one in sorted(order, key=lambda one: (not chosen[one].startswith("cut"), order.index(one))):
            faults[one].__exit__(None, None, None)

    @contextmanager
    def kill(self, part: Any) -> Iterator[str]:
        """Kill a part, and start it again later."""
        part.kill()
        yield part.name
        part.start()

    @contextmanager
    def stop(self, part: Any) -> Iterator[str]:
        """Freeze a part."""
        part.tell(signal.SIGSTOP)
        yield part.name
        part.tell(signal.SIGCONT)

    @contextmanager
    def clock(self, part: Any) -> Iterator[str]:
        """Give a server or worker a clock that is wrong by some minutes, and then the right one again."""
        minutes = self.chance.choice([-10, -2, 2, 10])
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))  # from the package `faketime`
        wrong = {"LD_PRELOAD": str(library), "FAKETIME": f"{minutes:+}m", "DONT_FAKE_MONOTONIC": "1"}
        right = dict(part.environment)
        part.end()
        part.environment |= wrong
        part.start(wait=False)  # a bucket rejects a clock that is too wrong, so the part may be unhealthy
        yield f"{part.name} {minutes:+} minutes"
        part.end()
        part.environment = right
        part.start()

    @contextmanager
    def cut(self, hub: Any) -> Iterator[str]:
        """Drop everything that two parts send each other."""
        network = self.cluster.network
        assert isinstance(network, Namespaces)
        other = self.chance.choice([DATABASE, BUCKET, FRONT])
        network.cut(hub.name, other)
        yield f"{hub.name} from {other}"
        network.join(hub.name, other)

    @contextmanager
    def fill(self, part: Any) -> Iterator[str]:
        """Fill the disk of the database or of the bucket."""
        disk = self.cluster.folder / DISKS[part.name]
        ballast = disk / "ballast"
        if part.name == DATABASE:
            ballast = disk / "base" / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * 1024 * 1024)
                    file.flush()
            except OSError:
                pass
        yield part.name
        ballast.unlink()
        if part.running.poll() is not None:
            part.start()


def small_disk(stack: ExitStack) -> Callable[[Path], None]:
    """Return a function that mounts a separate disk at a folder."""

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MEGABYTES}m", "tmpfs", folder], check=True
        )
        stack.callback(subprocess.run, ["umount", "-l", folder], check=True)

    return mount


def recovered(users: Users, began: float) -> float:
    """Wait until one request of each kind sent after a fault is acknowledged.

    Returns the seconds since then.
    """
    had = len(users.versions), len(users.runs)
    while len(users.versions) == had[0] or len(users.runs) == had[1]:
        if time.monotonic() - began > PATIENCE or users.refused:
            raise TimeoutError(f"the hub has not recovered: {users.refused or users.answers}")
        time.sleep(0.1)
    return time.monotonic() - began


def hurt(
    cluster: Cluster, users: Users, chance: random.Random, *, count: int, seconds: float, together: int
) -> Counter[str]:
    """Inject faults, some at the same time, until their number or the time is reached."""
    faults, done, end = Faults(cluster, chance), Counter[str](), time.monotonic() + seconds
    while done.total() < count and time.monotonic() < end:
        hold = chance.uniform(0.2, 6)
        with faults.some(min(together, count - done.total())) as made:
            time.sleep(hold)
        took = recovered(users, time.monotonic())
        done += Counter(kind for kind, _ in made)
        told = ", ".join(f"{kind}: {what}" for kind, what in made)
        print(f"{done.total():>4} {hold:4.1f} s, recovered after {took:4.1f} s: {told}", flush=True)
    return done


def judge(cluster: Cluster, users: Users, receiver: Receiver) -> list[str]:
    """Return descriptions of everything that is lost, duplicated or wrong."""
    wrong = list(users.refused)

    client = httpx.Client(base_url=cluster.front, headers=users.headers, timeout=PATIENCE, trust_env=False)
    get = client.get
    shown = get("/api/v1/environments/admin/say-env").json()
    for what, told, had in (
        ("versions", shown["versions"], users.versions),
        ("runs", shown["runs"], users.runs),
    ):
        if told != len(had) or len(set(had)) != len(had):
            wrong.append(f"{told} {what} exist, {len(had)} were acknowledged")
    for name, content in users.versions:
        if get(f"/admin/files/say-env/{name}").content != content:
            wrong.append(f"`{name}` is lost")
    for run in users.runs:
        detail = get(f"/api/v1/runs/{run}")
        lines = get(f"/api/v1/runs/{run}/rollouts.jsonl").content.splitlines()
        if detail.status_code != 200 or len(lines) != detail.json()["summary"]["rollouts"]:
            wrong.append(f"the run `{run}` is lost")
    give_up = time.monotonic() + PATIENCE
    while True:
        told = [one.payload for one in receiver.received]
        untold = set(users.runs) - {one.data.run_id for one in told if one.type == "run.posted"}
        queue = get("/metrics").text
        waiting = [
            line
            for line in queue.splitlines()
            if line.startswith("wander_hub_jobs{") and not line.endswith(" 0.0")
        ]
        if not untold and not waiting:
            break
        if time.monotonic() > give_up:
            wrong.append(f"the webhook was not called for {sorted(untold)[:5]}; jobs: {waiting}")
            break
        time.sleep(1)
    different = {one.headers["webhook-id"] for one in receiver.received}
    print(f"deliveries: {len(receiver.received)}, different: {len(different)}")
    checked = cluster.run("fsck")
    if checked.returncode:
        wrong.append(checked.stdout + checked.stderr)
    return wrong


def print_failures(cluster: Cluster) -> None:
    """Print the servers' logs for each answer with status 500, because no fault here justifies one."""
    for part in cluster.servers:
        lines = part.log.read_text().splitlines()
        for number, line in enumerate(lines):
            if "unexpected failure" in line:
                print(part.name, *lines[number : number + 120], sep="\n  ")


def main() -> None:
    """Start the hub, inject faults, and check. The exit status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument(
        "--together", type=int, default=3, help="number of concurrent faults, in different parts"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120, help="at most")
    parser.add_argument(
        "--loopback", action="store_true", help="use no separate networks and disks; does not need root"
    )
    options = parser.parse_args()
    if not options.loopback and os.getuid() != 0:
        parser.error("separate networks and disks need root; run it with `sudo`, or with `--loopback`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends everything that was started
    chance = random.Random(options.seed)  # noqa: S311 - the same faults for the same seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wander-faults-")))
        network = Loopback() if options.loopback else Namespaces()
        if not options.loopback:
            for disk in DISKS.values():
                small_disk(stack)(folder / "hub" / disk)
        host = "127.0.0.1" if options.loopback else f"{Namespaces.NET}.1"
        receiver = stack.enter_context(webhook_receiver(host=host))
        settings = {
            "WANDER_HUB_VERIFICATION": "off",
            "WANDER_HUB_JOB_LEASE_SECONDS": "5",
            "WANDER_HUB_WEBHOOK_HTTP": "true",
            "WANDER_HUB_WEBHOOK_NETWORKS": json.dumps([f"{host}/32"]),
            "WANDER_HUB_BUNDLED_PACKAGES": "false",
        }
        cluster = stack.enter_context(hub_cluster(folder / "hub", network=network, **settings))
        users = Users(cluster, folder)
        hook = {"url": f"http://{host}:{receiver.port}/hook", "events": ["run.posted", "version.published"]}
        answer = httpx.post(
            f"{cluster.front}/api/v1/webhooks", json={"owner": "admin", **hook}, headers=users.headers
        )
        if not answer.is_success:
            raise SystemExit(f"error: no webhook: {answer.text}")
        users.publish("0.1.0")
        for thread in users.threads:
            thread.start()
        try:
            limits = {"count": options.faults, "seconds": options.minutes * 60, "together": options.together}
            done = hurt(cluster, users, chance, **limits)
        finally:
            users.enough.set()
            for thread in users.threads:
                thread.join()
        wrong = judge(cluster, users, receiver)
        print(f"faults: {done.total()} {dict(done)}; versions {len(users.versions)}, runs {len(users.runs)}")
        print(f"answers: {dict(sorted(users.answers.items()))}")
        print_failures(cluster)
        print("\n".join(wrong) or "nothing lost, nothing duplicated, fsck found no faults")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
