"""Measures how fast and with how much memory a run is posted to a hub, and how fast one rollout is opened.

    python benchmarks/posting.py            posts 100,000 rollouts, opens rollout 500,000 of a million
    python benchmarks/posting.py --quick    5,000 and 20,000

The hub (SQLite, a folder) and `wander post` are separate processes, connected over loopback. The rollouts are
made up: one turn of about 600 bytes, half of them varying. The million is stored directly through the hub's
own functions, because only reading is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
from wander.types import Rollout
from wander.wire.postings import ROLLOUTS, RolloutsDigest, line_digest
from wander.wire.transfers import NewRun, RunFile
from wander_hub.database import Database
from wander_hub.http.boundary import Context
from wander_hub.identity import HUB
from wander_hub.posting.arrival import RUNS, announce
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from command_line import make_wheel  # noqa: E402 - the tests' own small environment
from live_hub import BIN, clean_environment, live_hub  # noqa: E402

WORDS = [hashlib.sha256(str(n).encode()).hexdigest()[:7] for n in range(20_000)]
PER_EXAMPLE = 10


def publish(url: str, token: str, place: Path, **made: str) -> Path:
    """Publish the tests' small environment, or a variant of it, and return its wheel."""
    wheel = make_wheel(place, **made)
    answer = httpx.post(
        f"{url}/admin/legacy/",
        data={":action": "file_upload", "protocol_version": "1"},
        files={"content": (wheel.name, wheel.read_bytes())},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 200, answer.text
    return wheel


def manifest_of(wheel: Path, rollouts: int, run_id: str) -> dict[str, object]:
    examples = rollouts // PER_EXAMPLE
    info = {"name": "say-env", "kind": "single_turn", "reward_functions": [{"name": "right", "weight": 1.0}]}
    pin = {"owner": "admin", "name": "say-env", "version": "0.1.0", "info": info}
    return {
        "schema": "wander.run/1",
        "run_id": run_id,
        "environment": {**pin, "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
        "model": {"name": "made-up", "kind": "ScriptedClient"},
        "example_ids": [f"row-{n}" for n in range(examples)],
        "rollouts_per_example": PER_EXAMPLE,
        "task_set_sha256": hashlib.sha256(b"").hexdigest(),
        "started_at": "2026-11-20T12:00:00Z",
        "platform": {"wander": "0.1.0", "python": "3.11", "system": "Linux", "machine": "x86_64"},
    }


def line(number: int, rng: random.Random) -> bytes:
    """Return the line of a rollout with unique texts, as `wander eval` writes it."""
    text = " ".join(rng.choices(WORDS, k=40))
    reply = {"role": "assistant", "content": text}
    rollout = {
        "example_id": f"row-{number // PER_EXAMPLE}",
        "index": number % PER_EXAMPLE,
        "seed": number // PER_EXAMPLE,
        "prompt": [{"role": "user", "content": "Say what you think of this, in forty words."}],
        "completion": [reply],
        "turns": [{"message": reply, "context_messages": 1, "usage": {"completion_tokens": 160}}],
        "stop_reason": "max_turns_reached",
        "reward": rng.random(),
        "metrics": {"right": rng.random()},
        "usage": {"prompt_tokens": 20, "completion_tokens": 160},
        "seconds": 1.0,
    }
    return json.dumps(rollout, separators=(",", ":")).encode() + b"\n"


def many(rollouts: int) -> Iterator[tuple[Rollout, bytes]]:
    """Yield rollouts that differ only in key and reward.

    They are created quickly, because there are a million.
    """
    first = line(0, random.Random(1))
    rollout, reward = Rollout.model_validate_json(first), json.loads(first)["reward"]
    head, tail = first.split(b',"seed"', 1)[1].split(f'"reward":{reward!r}'.encode())
    rng = random.Random(2)
    for number in range(rollouts):
        example, index, value = f"row-{number // PER_EXAMPLE}", number % PER_EXAMPLE, rng.random()
        start = f'{{"example_id":"{example}","index":{index},"seed"'.encode()
        changed = {"example_id": example, "index": index, "reward": value}
        yield rollout.model_copy(update=changed), start + head + f'"reward":{value!r}'.encode() + tail


def peak_of(pid: int) -> float:
    """Return the peak memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def post(hub, folder: Path, rollouts: int) -> dict[str, float]:
    """Post a run with `wander post` and return rates and memory."""
    environ = clean_environment() | {"WANDER_HUB": hub.url, "WANDER_TOKEN": hub.token}
    started = time.perf_counter()
    process = subprocess.Popen(
        [BIN / "wander", "post", folder, "--json"], env=environ, stdout=subprocess.PIPE
    )
    peak = [0.0]

    def watch() -> None:
        while process.poll() is None:
            try:
                peak[0] = max(peak[0], peak_of(process.pid))
            except (OSError, ValueError, IndexError):
                return
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    before = peak_of(hub.process.pid)
    watcher.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - started
    watcher.join()
    assert process.returncode == 0, out[-2000:]
    assert json.loads(out)["data"]["summary"]["rollouts"] == rollouts
    return {
        "seconds": seconds,
        "rate": rollouts / seconds,
        "uploader MB": peak[0],
        "hub MB": peak_of(hub.process.pid),
        "hub MB before": before,
    }


def store(data: Path, manifest: dict[str, object], rollouts: int) -> None:
    """Store a big run through the hub's own functions, with a thousand rollouts per chunk."""
    digest, size = RolloutsDigest(), 0
    for _, rollout_line in many(rollouts):
        digest.add(line_digest(rollout_line))
        size += len(rollout_line.rstrip(b"\n")) + 1
    file = RunFile(filename=ROLLOUTS, size=size, sha256=str(digest.hexdigest()))
    database, storage = Database(f"sqlite:///{data / 'hub.db'}"), Storage.open(None, data / "objects")
    settings = Settings(max_run_bytes=2**50)
    context = Context(replace(HUB, user_id=1), database, storage, settings)
    info, _ = announce(context, NewRun(manifest=json.dumps(manifest), files=[file]))
    found, offset = many(rollouts), 0
    for _ in range(rollouts // 1000):
        lines = b"".join(line.rstrip(b"\n") + b"\n" for _, line in itertools.islice(found, 1000))
        stated = hashlib.sha256(lines).hexdigest()
        transfers.receive(context, RUNS, info.id, ROLLOUTS, offset, stated, io.BytesIO(lines))
        offset += len(lines)
    started = time.perf_counter()
    transfers.finish(context, RUNS, info.id)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"finishing {rollouts:,}: {time.perf_counter() - started:.1f} s, {peak:.0f} MB")
    database.close()


def opened(hub, path: str, times: int = 30) -> float:
    """Return the median time of an answer in milliseconds."""
    with httpx.Client(base_url=hub.url, timeout=60) as client:
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            assert client.get(path, headers={"Accept": "text/html"}).status_code == 200, path
            taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5,000 rollouts posted, 20,000 opened")
    quick = parser.parse_args().quick
    posted, big = (5_000, 20_000) if quick else (100_000, 1_000_000)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name, live_hub(Path(name) / "hub") as hub:
        place = Path(name)
        wheel = publish(hub.url, hub.token, place)
        folder, rng = place / "run", random.Random(0)
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(manifest_of(wheel, posted, "01bench0000000000000000001")))
        with (folder / "rollouts.jsonl").open("wb") as file:
            for number in range(posted):
                file.write(line(number, rng))
        size = (folder / "rollouts.jsonl").stat().st_size / 1e6
        figures = post(hub, folder, posted)
        print(
            f"posting {posted:,} ({size:.0f} MB): {figures['seconds']:.1f} s, {figures['rate']:.0f} a second"
        )
        print(
            f"most memory: uploader {figures['uploader MB']:.0f} MB, hub {figures['hub MB']:.0f} MB "
            f"({figures['hub MB before']:.0f} MB before)"
        )
        small, run = f"/runs/{'01bench0000000000000000001'}", "/runs/01bench0000000000000000002"
        store(place / "hub", manifest_of(wheel, big, "01bench0000000000000000002"), big)
        middle = big // 2
        for what, path in (
            (f"rollout {posted // 2:,} of {posted:,}", f"/api/v1{small}/rollouts/{posted // 2}"),
            (f"rollout {middle:,} of {big:,}", f"/api/v1{run}/rollouts/{middle}"),
            ("50 rows from there", f"/api/v1{run}/rollouts?offset={middle}&limit=50"),
            ("its page, by number", f"{run}?offset={middle}"),
            ("its page, by reward", f"{run}?sort=reward&offset={middle}"),
            ("its page, the failed ones", f"{run}?only=failed"),
        ):
            print(f"{what}: {opened(hub, path):.1f} ms")


if __name__ == "__main__":
    main()
