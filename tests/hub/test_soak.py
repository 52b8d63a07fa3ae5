"""Two servers and two workers on one PostgreSQL and one bucket, under mixed load, one killed every minute.

    WANDER_SOAK_MINUTES=30 python -m pytest tests/hub/test_soak.py -m slow -s --timeout 3600

Nothing that was acknowledged is lost, nothing is there twice, no answer is an error of the hub's, and the
processes that live for half of the time grow neither in memory nor in descriptors.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from judging_hub import confined
from live_hub import LiveHub, free_port, hub_command
from machine import Machine
from package_mirror import build_client_mirror
from run_parcels import Parcel
from small_project import pyproject
from sqlalchemy import select, text
from staged_uploads import posted, published
from wander_hub.accounts import service as accounts
from wander_hub.database import Database
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.rights.tokens import add_token
from wander_hub.runs.models import Run
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.verification.models import Verification
from webhook_receiver import Receiver, webhook_receiver

MINUTES = float(os.environ.get("WANDER_SOAK_MINUTES", "3"))
ENVIRONMENTS, REPLAYED = 4, 3
REAL = """
from wander import MultiTurnEnv, Rubric

def length(completion):
    return float(len(completion))

def parrot(request):
    return "again " * 40

class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": "go on"}]

def load_environment():
    return Env(eval_dataset=[{"question": f"q{i}"} for i in range(9)], rubric=Rubric([length]), max_turns=4)
"""
"""The environment whose runs are played again."""
PAGES = (
    "/",
    "/?q=reverse",
    "/runs",
    "/alice",
    "/alice/env-0",
    "/alice/env-1/leaderboard",
    "/api/v1/environments?q=reverse+text",
    "/api/v1/environments/alice/env-2/leaderboard",
    "/api/v1/environments/alice/env-3",
    "/api/v1/runs?limit=20",
    "/api/v1/owners/alice/audit",
    "/api/v1/owners/alice/quota",
    "/alice/simple/env-0/",
    "/simple/",
    "/ready",
)


class Program:
    """A server or a worker, which is killed and started again."""

    def __init__(self, folder: Path, number: int, kind: str, settings: dict[str, str], hub: str = "") -> None:
        self.kind, self.name, self.port = kind, f"{kind} {number}", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{kind}-{number}.log"
        words = ["serve", "--no-jobs", "--port", str(self.port)]
        if kind == "worker":
            words = ["work", "--hub", hub, "--listen", f"127.0.0.1:{self.port}"]
        self.command, environment = hub_command(folder / f"{kind}-{number}", *words)
        self.environment = environment | settings
        self.samples: list[tuple[int, int]] = []
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=out, stderr=out)
        self.samples.clear()

    async def answers(self) -> None:
        """Return once it does; on a machine that does much else that takes its time."""
        async with asyncio.timeout(900), httpx.AsyncClient() as client:
            while True:
                assert self.process.poll() is None, self.log.read_text()
                try:
                    if (await client.get(f"{self.url}/health", timeout=30)).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def look(self) -> None:
        """Note the resident kilobytes and the open descriptors."""
        place = Path(f"/proc/{self.process.pid}")
        resident = next(line for line in (place / "status").read_text().splitlines() if "VmRSS" in line)
        self.samples.append((int(resident.split()[1]), len(list((place / "fd").iterdir()))))


class Spread(httpx.AsyncBaseTransport):
    """Asks the servers in turn, and the next one when one does not answer: what nginx does."""

    def __init__(self, servers: list[Program]) -> None:
        self._turns = itertools.cycle(servers)
        self._inner = httpx.AsyncHTTPTransport()
        self.answers: Counter[int] = Counter()
        self.unanswered = 0
        self.bad: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        give_up = time.monotonic() + 120
        while True:
            server = next(self._turns)
            url = request.url.copy_with(port=server.port)
            try:
                answer = await self._inner.handle_async_request(
                    httpx.Request(request.method, url, headers=request.headers, content=body)
                )
                await answer.aread()
            except httpx.TransportError:
                self.unanswered += 1
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.1)
                continue
            self.answers[answer.status_code] += 1
            if answer.status_code >= 400:
                self.bad.append(
                    f"{request.method} {request.url.path} {answer.status_code} {answer.text[:200]}"
                )
            return answer

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Load:
    """People at work, and what the hub told them is kept."""

    client: httpx.AsyncClient
    tokens: dict[str, str]
    make_wheel: Any
    run_of: Any
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    files: dict[str, str] = field(default_factory=dict)
    """Paths of wheels, and their digests."""
    versions: list[tuple[str, str, str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    real: list[str] = field(default_factory=list)
    """Runs that can be played again."""
    replays: set[int] = field(default_factory=set)
    yanks: int = 0

    def auth(self, user: str = "alice") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    async def again_and_again(self, act: Callable[[int], Awaitable[None]], seconds: float) -> None:
        for number in itertools.count(ENVIRONMENTS):
            if self.ended.is_set():
                return
            await act(number)
            await asyncio.sleep(seconds)

    async def publish(self, number: int) -> None:
        name = f"env-{number % ENVIRONMENTS}"
        spec = self.make_wheel(name=name, version=f"0.{number}.0")
        body = spec.build()
        if number % 3 == 0:
            stated = {"name": name, "version": spec.version}
            await published(self.client, self.auth(), {spec.wheel_name: body}, **stated)
        else:
            files = {"content": (spec.wheel_name, body, "application/octet-stream")}
            await self.client.post("/alice/legacy/", files=files, headers=self.auth())
        digest = hashlib.sha256(body).hexdigest()
        self.files[f"/alice/files/{name}/{spec.wheel_name}"] = digest
        self.versions.append((name, spec.version, digest))

    async def post(self, number: int) -> None:
        if not self.versions:
            return
        name, version, digest = self.versions[-1 - number % min(len(self.versions), 8)]
        run_id = f"01SOAK{number:020d}"
        manifest, rollouts = self.run_of(
            digest,
            run_id=run_id,
            name=name,
            version=version,
            model=f"m{number % 50}",
            reward=number % 97 / 97,
            examples=4,
        )
        user = ("alice", "bob")[number % 2]
        parcel = Parcel.of(manifest, rollouts, per_chunk=3)
        client, headers = self.client, self.auth(user)
        await posted(client, headers, parcel)
        self.runs.append(run_id)
        if number % 10 == 9:
            await client.delete(f"/api/v1/runs/{run_id}?reason=wrong", headers=headers)
            self.withdrawn.append(run_id)

    async def read(self, number: int) -> None:
        await self.client.get(PAGES[number % len(PAGES)], headers=self.auth())
        if self.files:
            path = random.choice(list(self.files))
            body = (await self.client.get(path, follow_redirects=True)).content
            assert hashlib.sha256(body).hexdigest() == self.files[path], path

    async def replay(self, number: int) -> None:
        path = f"/api/v1/runs/{self.real[number % len(self.real)]}/verifications"
        asked = await self.client.post(path, json={"sample": None}, headers=self.auth())
        self.replays.add(asked.json()["id"])

    async def change(self, number: int) -> None:
        if not self.versions:
            return
        name, version, _ = random.choice(self.versions)
        place, headers = f"/api/v1/environments/alice/{name}", self.auth()
        await self.client.put(
            f"{place}/versions/{version}/yank", json={"reason": "for a while"}, headers=headers
        )
        await self.client.delete(f"{place}/versions/{version}/yank", headers=headers)
        made = await self.client.post(
            "/api/v1/tokens", json={"name": f"{number}", "scopes": ["read"]}, headers=headers
        )
        await self.client.delete(f"/api/v1/tokens/{made.json()['prefix']}", headers=headers)
        self.yanks += 2


async def disturb(programs: list[Program], load: Load) -> list[str]:
    """Kill one of the second of each in the first half, of the first in the second half; tell what grew."""
    ended = asyncio.get_running_loop().time() + MINUTES * 60
    figures, killed = [], 0
    halves = [programs[1::2], programs[0::2]]
    for half, victims in enumerate(halves):
        stays = [one for one in programs if one not in victims]
        for one in stays:
            one.samples.clear()
        until = ended - (1 - half) * MINUTES * 30
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(min(60, MINUTES * 10))
            for one in stays:
                one.look()
            victim = victims[killed % len(victims)]
            victim.kill()
            await asyncio.sleep(1)
            victim.start()
            killed += 1
            await victim.answers()
        figures += [f"{one.name} half {half + 1} (kB, descriptors): {one.samples}" for one in stays]
        for one in stays:
            tail = one.samples[len(one.samples) // 3 :]
            if len(tail) >= 6:
                first, last = tail[: len(tail) // 2], tail[len(tail) // 2 :]
                for column in (0, 1):
                    means = [sum(one[column] for one in part) / len(part) for part in (first, last)]
                    assert means[1] < 1.1 * means[0] + 3 * column, figures[-2:]
    load.ended.set()
    return [f"{killed} kills", *figures]


async def quiet(database: Database, receiver: Receiver) -> None:
    """Wait until no job and no delivery waits."""
    waits = text(
        "SELECT (SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')) +"
        " (SELECT count(*) FROM webhook_deliveries WHERE state <> 'delivered')"
    )
    give_up = time.monotonic() + 600
    while True:
        with database.engine.connect() as connection:
            left = connection.scalar(waits)
        if not left:
            return
        assert time.monotonic() < give_up, (
            f"{left} jobs and deliveries are left, {len(receiver.received)} came"
        )
        await asyncio.sleep(1)


def account_for(database: Database, storage: Storage, load: Load, receiver: Receiver) -> dict[str, int]:
    """Compare what is there with what the hub said it keeps: all of it, each once."""
    with database.read(HUB) as session:
        runs = dict(session.execute(select(Run.run_id, Run.withdrawn_at)).all())
        assert set(runs) == {*load.runs, *load.real}, "runs"
        assert {one for one, gone in runs.items() if gone} == set(load.withdrawn)

        def rows(statement: str) -> list[Any]:
            return list(session.execute(text(statement)))

        ours = "JOIN environments e ON e.id = environment_id WHERE e.name LIKE 'env-%'"
        files = rows(f"SELECT filename, sha256 FROM files {ours}")
        assert sorted(one.sha256 for one in files) == sorted(load.files.values())
        assert {one.filename for one in files} == {Path(one).name for one in load.files}
        told = Counter(
            one.payload.data.run_id for one in receiver.received if one.payload.type == "run.posted"
        )
        ids = {one.headers["webhook-id"] for one in receiver.received}
        deliveries = rows("SELECT event, message_id FROM webhook_deliveries")
        assert len({one.message_id for one in deliveries}) == len(deliveries)
        assert {one.message_id for one in deliveries} == ids
        events = Counter(one.event for one in deliveries)
        assert events["run.posted"] == len(runs)
        assert set(told) == set(runs)
        assert events["version.published"] == len(load.versions) + 1
        acts = Counter(dict(rows("SELECT action, count(*) FROM audit WHERE owner = 'alice' GROUP BY action")))
        assert acts["run.post"] == len(runs)
        assert acts["run.withdraw"] == len(load.withdrawn)
        assert acts["version.publish"] == len(load.versions) + 1
        replays = session.execute(select(Verification.id, Verification.report).join(Verification.job)).all()
        assert {number for number, _ in replays} == load.replays
        wrong = [(number, report) for number, report in replays if not report or report["differing"]]
        assert wrong == []
        levels = session.scalars(select(Run.level).where(Run.run_id.in_(load.real)))
        assert set(levels) == {"replayed"}
        jobs = Counter(dict(rows("SELECT state, count(*) FROM jobs GROUP BY state")))
        assert set(jobs) <= {"done", "canceled"}, jobs
        unread = rows(
            "SELECT run_id FROM runs WHERE withdrawn_at IS NULL"
            " AND run_id NOT IN (SELECT run_id FROM run_examinations)"
        )
        assert unread == []
    assert list(fsck.find_mismatches(database, storage)) == []
    twice = len(receiver.received) - len(ids)
    played = sum(report["same"] for _, report in replays)
    told = {"replays": len(replays), "rollouts played again": played}
    return {"deliveries": len(ids), "delivered_again": twice, "jobs": jobs["done"], **told, **acts}


async def play(machine: Machine, load: Load) -> None:
    """Publish an environment that plays, and post runs of it."""
    folder = machine.home / "real-env"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(pyproject("real-env"))
    (folder / "README.md").write_text("# real-env\n")
    (folder / "real_env.py").write_text(REAL)
    await asyncio.to_thread(machine.wander, "publish", folder, "--owner", "alice", "--no-check", "--no-lock")
    for number in range(REPLAYED):
        words = ("alice/real-env", "-m", "scripted:real_env:parrot", "-n", 9 - number)
        run = await asyncio.to_thread(machine.wander, "eval", *words)
        posted = await asyncio.to_thread(machine.wander, "post", machine.home / run["run_dir"])
        load.real.append(posted["run_id"])


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 90 + 1800)
async def test_nothing_is_lost_or_twice_while_processes_are_killed(
    tmp_path, postgres, objects, monkeypatch, make_wheel, run_of
):
    mirror = build_client_mirror(tmp_path / "mirror")
    for name, value in objects.variables.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        receiver = stack.enter_context(webhook_receiver())
        url, bucket = stack.enter_context(postgres.database()), objects.bucket()
        database = Database(url)
        stack.callback(database.close)
        with database.write() as session:
            accounts.add_user(session, "operator", admin=True)  # in whose name jobs read runs
            tokens = {
                one: add_token(session, accounts.add_user(session, one), "t") for one in ("alice", "bob")
            }
        settings = {
            **objects.variables,
            "WANDER_HUB_DATABASE_URL": url,
            "WANDER_HUB_STORAGE_URL": bucket,
            "WANDER_HUB_VERIFICATION": confined(),
            "WANDER_HUB_VERIFY_POSTS": "false",  # most runs are of environments that do not play
            "WANDER_HUB_CHECK_VERSIONS": "false",
            "UV_DEFAULT_INDEX": mirror,
            "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
            "WANDER_HUB_WEBHOOK_HTTP": "true",
            "WANDER_HUB_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
            "WANDER_HUB_JOB_LEASE_SECONDS": "10",
        }
        programs = [Program(tmp_path, number, "server", settings) for number in (0, 1)]
        programs += [Program(tmp_path, number, "worker", settings, programs[number].url) for number in (0, 1)]
        for one in programs:
            stack.callback(one.kill)
        for one in programs:
            await one.answers()
        spread = Spread(programs[:2])
        async with httpx.AsyncClient(transport=spread, base_url="http://127.0.0.1", timeout=60) as client:
            load = Load(client, tokens, make_wheel, run_of)
            hook = {"owner": "alice", "url": receiver.url}
            made = await client.post("/api/v1/webhooks", json=hook, headers=load.auth())
            assert made.status_code == 201, made.text
            for number in range(ENVIRONMENTS):
                await load.publish(number)
            first = programs[0]
            there = LiveHub(first.url, tokens["alice"], tmp_path, first.process, first.log)
            settled = {"UV_CACHE_DIR": settings["UV_CACHE_DIR"]}
            await play(Machine(tmp_path / "home", there, mirror, settled), load)
            loops = [
                (load.publish, 3.0),
                (load.post, 0.7),
                (load.read, 0.2),
                (load.read, 0.2),
                (load.change, 2.0),
                (load.replay, 10.0),
            ]
            figures, *_ = await asyncio.gather(
                disturb(programs, load), *(load.again_and_again(act, seconds) for act, seconds in loops)
            )
            assert spread.bad == [], "\n".join(spread.bad[:40])
            await quiet(database, receiver)
        found = account_for(database, Storage.of(Settings(storage_url=bucket)), load, receiver)
        logs = "".join(one.log.read_text() for one in programs)
    counts = {"runs": len(load.runs), "versions": len(load.versions), "answers": dict(spread.answers)}
    print("\n".join([*figures, f"{counts}", f"unanswered {spread.unanswered}", f"{found}"]))
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 300 :][:3000]
