"""A hub that keeps sealed sets, in processes that kill themselves with -9 at a chosen point.

`SealingProcesses` starts this file as a program, which has imported the hub and forks for each step.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import zstandard
from wander.evals.stats.summary import summarize
from wander.evals.store.manifest import new_run_id
from wander.types import Rollout
from wander.wire.transfers import NewSealedPlay, SealOpening, commitment_of
from wander_hub.database import Database, now
from wander_hub.http.boundary import Context
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobWorker, TableQueue
from wander_hub.operation.job_queue import settle_failures
from wander_hub.sealed import memory, service
from wander_hub.sealed import worker as sealed_worker
from wander_hub.settings import Settings
from wander_hub.storage import Storage

PLACE = ("alice", "reverse-text", "0.1.0")


@dataclass(frozen=True)
class Step:
    """What a process does, and where it dies."""

    action: str
    """`create`, `play` or `open`, as a route does it, or `work`: do the next job."""
    owner: str
    """Module or `module:Class` that has the function where the process dies."""
    function: str
    when: str = "before"
    nth: int = 1
    user: int = 0
    commitment: str = ""
    content: str = ""
    key: str | None = None


@dataclass(frozen=True)
class Hub:
    """The data of a hub, for all of its processes."""

    settings: str
    database_url: str
    memory: str
    """Folder in memory, in place of `/dev/shm`."""
    wheel: dict[str, Any]
    """Manifest and rollouts of a run of the version that is played."""
    questions: str
    """File with a line for each question that reached an endpoint."""


class Program:
    """Stands for `wander seal check` and `wander eval`."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def answer_in_memory(
        self, context: JobContext, words: list[str], version_id: int, *, folder: Path, **options: Any
    ) -> dict[str, Any]:
        content = (folder / "set.jsonl").read_bytes()
        if words[0] == "seal":
            return {"data": {"examples": 3, "refused": []}}
        manifest: dict[str, Any] = json.loads(json.dumps(self.hub.wheel["manifest"]))
        manifest["run_id"], manifest["environment"]["sealed"] = new_run_id(), commitment_of(content)
        run = folder / "run"
        run.mkdir()
        (run / "run.json").write_text(json.dumps(manifest))
        for _ in self.hub.wheel["rollouts"]:
            send_question(self.hub, context)
        text = "".join(json.dumps(line) + "\n" for line in self.hub.wheel["rollouts"]).encode()
        (run / "rollouts.jsonl.zst").write_bytes(zstandard.compress(text))
        rollouts = [Rollout.model_validate(line) for line in self.hub.wheel["rollouts"]]
        return {"data": {"summary": summarize(rollouts, expected=len(rollouts)).model_dump(mode="json")}}


def send_question(hub: Hub, context: JobContext) -> None:
    """Note that an endpoint received a question of a job."""
    with Path(hub.questions).open("a") as file:
        file.write(f"{context.lease.job_id}\n")


def sealing_worker(hub: Hub, database: Database, *, lease_seconds: float) -> JobWorker:
    """Return a worker for the jobs of sealed sets, which takes the jobs of killed workers immediately."""
    settings = Settings.model_validate_json(hub.settings)
    queue = settle_failures(TableQueue(database, lease_seconds=lease_seconds, retry_seconds=0.0))
    memory.ROOT, memory._NEW_SECONDS = Path(hub.memory), 0.0
    sealed_worker.client_program = lambda *_: Program(hub)  # type: ignore[assignment,return-value]
    worker = sealed_worker.worker(settings, database, Storage.of(settings), queue, "http://hub")
    assert worker is not None
    return worker


class SealingProcesses:
    """A process that has imported the hub, and forks one for each step that dies."""

    def __init__(self) -> None:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill_at(self, hub: Hub, step: Step) -> None:
        """Do a step in a process, which must be killed at the point of the step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asdict(hub), asdict(step)]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{-signal.SIGKILL}\n", step

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


def _die_at(step: Step) -> None:
    """Replace the function of a step by one that kills this process."""
    module, _, name = step.owner.partition(":")
    owner = importlib.import_module(module)
    owner = getattr(owner, name) if name else owner
    original: Callable[..., Any] = getattr(owner, step.function)
    left = [step.nth]

    def fatal(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and step.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, step.function, fatal)


def _do(hub: Hub, step: Step) -> None:
    database, settings = Database(hub.database_url), Settings.model_validate_json(hub.settings)
    worker = sealing_worker(hub, database, lease_seconds=0.0)
    context = Context(replace(HUB, user_id=step.user), database, Storage.of(settings), settings)
    _die_at(step)
    if step.action == "create":
        service.create(context, PLACE, step.content.encode(), now() + timedelta(days=7))
    elif step.action == "play":
        wanted = NewSealedPlay(model="echo", endpoint="https://model.example/v1", key=step.key)
        service.request_play(context, step.commitment, wanted)
    elif step.action == "open":
        service.open_earlier(context, step.commitment, SealOpening())
    else:
        worker.run_one()
    answer()


def answer() -> None:
    """Stands for the answer to a request."""


def main() -> None:
    for line in sys.stdin:
        hub, step = json.loads(line)
        if (child := os.fork()) == 0:
            _do(Hub(**hub), Step(**step))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    sys.modules["killed_sealing"] = sys.modules["__main__"]
    main()
