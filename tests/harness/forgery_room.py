"""A hub that accepts real uploads and replays them with the client's code, all in one process.

Requests reach the real application over ASGI. Its jobs run as on any hub, in the examiner and in `wander
replay`, but without separate processes, so that a hundred forgeries take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import HubRoom, Result, make_wheel
from starlette.testclient import TestClient
from wander import ScriptedClient
from wander.environment import LocalEnvironment
from wander.evals.store.manifest import new_manifest
from wander.handle import RolloutRequest
from wander.loading import load_path
from wander.types import Rollout, SamplingArgs
from wander.wire import EnvironmentPin, ModelPin
from wander.worker.host.environment import WorkerEnvironment
from wander_client.main import main
from wander_client.names import EnvironmentName
from wander_client.packages.interpreters import HERE
from wander_client.packages.store import LOCK, RECORD, EnvironmentStore, InstalledRecord
from wander_client.packages.virtualenvs import stage_folder
from wander_hub.accounts.service import add_user
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.jobs import JobContext, JobRefused, JobWorker, TableQueue
from wander_hub.rights.tokens import add_token, first_administrator
from wander_hub.settings import Settings
from wander_hub.verification import evidence, service
from wander_hub.verification.evidence import Examiner
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.worker import Replayer

Record = dict[str, Any]
HUB_URL = "http://testserver"
NAME, MODULE = "guess-env", "guess_env"
SOURCE = """
from wander import MultiTurnEnv, Rubric


def found(completion, answer):
    return sum(answer in m["content"] for m in completion if m["role"] == "assistant") / len(completion)


def words(completion):
    return float(sum(len(m["content"].split()) for m in completion))


def passed(completion):
    return float(any("TESTS PASSED" in m["content"] for m in completion if m["role"] != "assistant"))


class Live(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": "1 test failed"}]


class Guess(MultiTurnEnv):
    def env_response(self, messages, state):
        state["public"]["last"] = self.rng(state, "word", len(messages)).choice(["ace", "king", "queen"])
        return [{"role": "user", "content": f"No, it is not that; think of a {state['public']['last']}."}]


def load_environment(size: int = 4, most: int = 3, live: bool = False) -> MultiTurnEnv:
    rows = [{"question": f"Which number is meant by {n}?", "answer": str(n)} for n in range(size)]
    easy = [{"question": f"Say {n}.", "answer": str(n)} for n in range(size)]
    if live:
        return Live(easy, rows, rubric=Rubric([passed]), max_turns=most, deterministic=False)
    rubric = Rubric([found, words], weights=[1.0, 0.0])
    return Guess(easy, rows, rubric=rubric, max_turns=most, reward_bounds=(0.0, 1.0))
"""
"""An environment of several turns that draws, publishes what it drew, and has a metric of weight 0.

A `live` one is told by something outside whether tests passed."""


THOUGHTS = (
    "Some hold one thing of it and some another, and nobody asked the numbers what they think of that. " * 3
)
"""So much that equal completions are no coincidence."""


def answer(request: Any) -> str:
    """Answer with the last message and its last word."""
    said = request.messages[-1]["content"]
    number = said.rpartition(" ")[2].rstrip("?.")
    return f"I was told: {said} {THOUGHTS} I answer {number}."


@dataclass
class ForgeryRoom:
    """The hub, its jobs, and a real run."""

    hub: HubRoom
    mallory: str
    """The token of somebody else."""
    worker: JobWorker
    manifest: Record
    rollouts: list[Record]
    source: Path

    def play(self, **arguments: Any) -> tuple[Record, list[Record]]:
        """Evaluate the environment with these arguments."""
        return asyncio.run(_play(self.source, self.manifest["environment"]["wheel_sha256"], arguments))

    def post(self, manifest: Record | bytes, rollouts: list[Record] | bytes, token: str | None = None) -> Any:
        """Upload a run folder as the client does."""
        head = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        body = rollouts
        if not isinstance(body, bytes):
            body = b"".join(json.dumps(one).encode() + b"\n" for one in rollouts)
        files = {"manifest": ("run.json", head), "rollouts": ("rollouts.jsonl", body)}
        headers = {"Authorization": f"Bearer {token or self.hub.token}"}
        return self.hub.http.post("/api/v1/runs", files=files, headers=headers)

    def judge(self) -> None:
        """Complete all waiting jobs."""
        while self.worker.run_one():
            pass

    def get(self, path: str) -> Any:
        found = self.hub.http.get(path, headers={"Authorization": f"Bearer {self.hub.token}"})
        assert found.status_code == 200, found.text
        return found.json()


class SameProcess(ClientProgram):
    """Runs `wander` for jobs in this process."""

    def __init__(self, hub: HubRoom) -> None:
        self._hub = hub

    def run(
        self, context: JobContext, words: list[str], version_id: int, seconds: float | None = None
    ) -> Record:
        answer = self._hub.wander(*words, "--json", "--no-sandbox")
        said: Record = json.loads(answer.out.rstrip("\n").rpartition("\n")[2])
        if "error" in said:
            raise JobRefused(said["error"]["message"])
        return cast(Record, said["data"])


@contextlib.contextmanager
def forgery_room(place: Path, database_file: Path) -> Iterator[ForgeryRoom]:
    """Yield a hub with an environment and an honest run of it, not posted yet."""
    (place / "hub").mkdir()
    settings = Settings(data=place / "hub", bundled_packages=False, verification="unconfined")
    shutil.copy(database_file, settings.data / "hub.db")
    database = Database(settings.resolved_database_url)
    with database.write() as session:
        token = first_administrator(session)
        mallory = add_token(session, add_user(session, "mallory"), "forgeries")
    assert token is not None
    source = place / NAME
    source.mkdir()
    (source / f"{MODULE}.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDER_HUB", HUB_URL)
        patch.setenv("WANDER_TOKEN", token)
        for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE"):
            patch.setenv(f"WANDER_{name}_DIR", str(place / name.lower()))

        def wander(*words: str) -> Result:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                status = main(words, transport=hub.transport)
            return Result(status, out.getvalue(), "")

        async def start(python: Path, target: str, *, arguments: Record, **more: Any) -> LocalEnvironment:
            return LocalEnvironment(load_path(source, **arguments))

        patch.setattr(WorkerEnvironment, "start", start)
        app = create_app(settings, database=database)
        with TestClient(app, base_url=HUB_URL) as client:
            hub = HubRoom(client, token, wander)
            hub.publish(make_wheel(place, NAME, module=SOURCE))
            (file,) = client.get(f"/api/v1/environments/admin/{NAME}/versions/0.1.0").json()["files"]
            _install(EnvironmentStore(place / "data"), file)
            handlers = {
                service.KIND: Replayer(SameProcess(hub), database, app.state.storage),
                evidence.KIND: Examiner(database, app.state.storage),
            }
            worker = JobWorker(TableQueue(database), handlers, "judge")
            manifest, rollouts = asyncio.run(_play(source, file["sha256"], {}))
            yield ForgeryRoom(hub, mallory, worker, manifest, rollouts, source)
    database.close()


def _install(store: EnvironmentStore, file: Record) -> None:
    """Mark the version as installed, with this Python."""
    record = InstalledRecord(
        hub=HUB_URL, owner="admin", name=NAME, version="0.1.0", wheel=file["filename"],
        wheel_sha256=file["sha256"], wheel_url=file["url"], unlocked="none_published",
        packages_sha256="b" * 64, virtualenv="here", sdk="0.1.0", python="3.11",
        installed_at=datetime.now(UTC),
    )  # fmt: skip
    with stage_folder(
        store.folder_for(HUB_URL, EnvironmentName("admin", NAME, "0.1.0"), file["sha256"])
    ) as work:
        (work / LOCK).write_text("")
        record.write(work / RECORD)

    def build(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)

    with store.virtualenvs.hold("here", HERE, build):
        pass


async def _play(source: Path, wheel_sha256: str, arguments: Record) -> tuple[Record, list[Record]]:
    """Evaluate the environment with a scripted model."""
    env = LocalEnvironment(load_path(source, **arguments))
    examples, sampling = await env.examples("eval"), SamplingArgs(max_tokens=200, temperature=0.0)
    rollouts: list[Rollout] = []
    for example in examples:
        for index in (0, 1):
            request = RolloutRequest.of(
                ScriptedClient(answer), example, [index], run_seed=7, sampling=sampling, together=False
            )
            rollouts += await env.play_request(request)
    pin = EnvironmentPin(
        owner="admin", name=NAME, version="0.1.0", wheel_sha256=wheel_sha256, unlocked="none_published",
        packages_sha256="b" * 64, arguments=arguments, info=env.info,
    )  # fmt: skip
    manifest = new_manifest(
        environment=pin,
        model=ModelPin(name="thinker", kind="ScriptedClient"),
        examples=examples,
        rollouts_per_example=2,
        sampling=sampling,
        seed=7,
    )
    return (
        json.loads(manifest.model_dump_json(by_alias=True)),
        [json.loads(one.model_dump_json()) for one in rollouts],
    )
