"""Steps whose workers are killed: nothing is lost, and where no worker is left, nothing that was learned."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from wander.errors import RunError
from wander.handle import EnvironmentHandle
from wander.models.engines.transformers import TransformersEngine
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.records.step_hash import STEPS, read_steps
from wander.train.rollouts.environments import EnvironmentChoice, EnvironmentOpener
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.types import SamplingArgs
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.remote import link
from wander.worker.remote.address import WorkerAddress

SOURCE = """
import asyncio, os, signal
from pathlib import Path
from wander import MultiTurnEnv, Rubric, stop

HERE = Path(__file__).parent


class Env(MultiTurnEnv):
    playing = most = 0

    def setup_state(self, state):
        self.playing += 1
        self.most = max(self.most, self.playing)
        (HERE / "most").write_text(str(self.most))

    async def env_response(self, messages, state):
        # Ends in another order than rollouts began, and each time in another one.
        await asyncio.sleep(self.rng(state, "pause", HERE.joinpath("most").stat().st_mtime_ns).random() / 50)
        if state["index"] == 2 and len(state.turns) == 2 and is_to_be_killed():
            os.kill(os.getpid(), signal.SIGKILL)
        luck = self.rng(state, "lever", len(state.turns)).random()
        return [{"role": "user", "content": f"Pull again: {luck:.3f}"}]

    @stop
    def has_said_enough(self, state):
        done = len(state.turns) > 1 + state["index"] % 3
        self.playing -= done
        return done


def is_to_be_killed():
    try:  # two processes may come here at once, and one of them takes the file away
        if (HERE / "kill").read_text() == "once":
            (HERE / "kill").unlink()
    except FileNotFoundError:
        return False
    return True


def vowels(completion):
    text = "".join(str(each["content"]) for each in completion if each["role"] == "assistant")
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def ranked(completions):
    return [vowels(each) for each in completions]


def load_environment(together=False):
    rows = [{"question": f"Machine {n}."} for n in range(4)]
    return Env(rows, rubric=Rubric([ranked if together else vowels]), max_turns=4)
"""
ASSIGNMENTS = [Assignment(position, index) for position in range(2) for index in range(4)]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "pulling.py").write_text(SOURCE)
    return folder / "pulling.py"


def opener(path: Path, **options: Any) -> EnvironmentOpener:
    @contextlib.asynccontextmanager
    async def opened(choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
        handle = await WorkerEnvironment.start(
            None,
            None,
            path=None if "addresses" in options else path,
            arguments=choice.arguments,
            log_path=path.with_suffix(".log"),
            **options,
        )
        try:
            yield handle
        finally:
            await handle.close()

    return opened


@contextlib.contextmanager
def listening(path: Path) -> Iterator[WorkerAddress]:
    """A worker of another machine, as far as the trainer can tell."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "wander.worker", "--listen", f"unix://{path.with_suffix('.sock')}"),
            *("--environment", str(path), "--log", str(path.with_suffix(".log")), "--workers", "4"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield WorkerAddress.parse(process.stderr.readline().split()[-1])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def played(tiny: Path, path: Path, *, at_once: int | None = None, **arguments: Any) -> list[Any]:
    """What a step's rollouts came to, by its bits."""
    loaded = load_model(str(tiny), device="cpu")
    client = PolicyClient(loaded.model.eval(), loaded.tokenizer)
    source = RolloutSource(
        opener(path, workers=2),
        client,
        sampling=SamplingArgs(temperature=1.0, max_tokens=12),
        run_seed=3,
        choices=[EnvironmentChoice(arguments=arguments)],
        at_once=at_once,
    )
    try:
        step = source.play(ASSIGNMENTS)
    finally:
        source.close()
    assert (step.retried, [rollout.failure for rollout in step.rollouts]) == (0, [None] * len(ASSIGNMENTS))
    return [
        (rollout.completion, rollout.reward, [t.tokens for t in rollout.turns]) for rollout in step.rollouts
    ]


@pytest.mark.parametrize(
    "together", [False, pytest.param(True, marks=pytest.mark.full)], ids=["single rollouts", "groups"]
)
def test_a_worker_killed_in_a_step_changes_nothing(tiny: Path, environment: Path, together: bool) -> None:
    undisturbed = played(tiny, environment, together=together)
    kill = environment.with_name("kill")
    kill.write_text("once")
    assert played(tiny, environment, together=together) == undisturbed
    assert not kill.exists()


def test_concurrency_and_early_answers_change_nothing(
    tiny: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = played(tiny, environment, at_once=3)
    assert int(environment.with_name("most").read_text()) <= 3
    held: list[Any] = []
    sample = TransformersEngine._sample
    monkeypatch.setattr(
        TransformersEngine, "_sample", lambda engine, jobs, tell: sample(engine, jobs, held.extend)
    )
    assert played(tiny, environment, at_once=3) == first
    assert held, "some would have been answered before the others of their batch"


def settings_for(tiny: Path, **sections: Any) -> GRPOSettings:
    data = {
        "model": {"path": str(tiny), "device": "cpu"},
        "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8},
        "sampling": {"max_tokens": 5},
        "schedule": {"steps": 3, "learning_rate": 5e-3},
        "data": {"curriculum": True},
    }
    return GRPOSettings.model_validate(data | sections)


@pytest.mark.full  # above, a worker of this machine is killed in a step
def test_training_resumes_exactly_locally_and_remotely(tiny: Path, environment: Path, tmp_path: Path) -> None:
    kill = environment.with_name("kill")
    train_grpo(opener(environment), settings_for(tiny), tmp_path / "whole")

    def disturb(entry: dict[str, Any]) -> None:
        assert not kill.exists(), "the step before was not disturbed"
        kill.write_text("once")

    with listening(environment) as address:
        far = settings_for(tiny, environment={"workers": [str(address)]})
        train_grpo(opener(environment, addresses=[address]), far, tmp_path / "far", progress=disturb)
    whole, far = (read_steps(tmp_path / name / STEPS) for name in ("whole", "far"))
    # After which steps between the first and the last the weights are hashed, the clock decides.
    assert [one.first_difference(other) for one, other in zip(far, whole, strict=True)] == [None] * 3
    assert None not in (far[0].weights, far[2].weights, whole[0].weights, whole[2].weights)
    assert [entry["failed"] + entry["retried"] for entry in read_metrics(tmp_path / "far")] == [0, 0, 0]
    training = json.loads((tmp_path / "far" / "run.json").read_text())["training"]
    assert training["environment"]["workers"] == 1, "where a worker listens is not for the record"


@pytest.mark.full
def test_a_worker_that_sends_garbage_stops_the_run(
    tiny: Path, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_CONNECT_SECONDS", 1.0)
    spoiled = threading.Event()
    with listening(environment) as address, spoiling(address, spoiled) as spoiler:
        with pytest.raises(RunError, match="no worker is left to play the environment") as caught:
            train_grpo(
                opener(environment, addresses=[spoiler]),
                settings_for(tiny),
                tmp_path / "cut",
                progress=lambda entry: spoiled.set() if entry["step"] == 2 else None,
            )
        assert f"resume after step 2 with `wander train --resume {tmp_path / 'cut'}`" in str(
            caught.value.hint
        )
        sound = opener(environment, addresses=[address])
        done = train_grpo(sound, settings_for(tiny), tmp_path / "cut", resume=True)
    assert (done.steps, done.interrupted) == (3, False)


@contextlib.contextmanager
def spoiling(address: WorkerAddress, spoiled: threading.Event) -> Iterator[WorkerAddress]:
    """Passes on what a worker says, and nothing but garbage once it is spoiled."""

    def carry(source: socket.socket, target: socket.socket, *, spoils: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(b"\x00\xffHTTP/1.1 nonsense{" * 50 if spoils and spoiled.is_set() else data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    class Passing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as far:
                far.connect(str(address).removeprefix("unix://"))
                back = threading.Thread(target=carry, args=(far, self.request), kwargs={"spoils": True})
                back.start()
                carry(self.request, far, spoils=False)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield WorkerAddress.parse(f"tcp://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


@pytest.mark.full
def test_a_run_that_lost_its_workers_resumes(tiny: Path, environment: Path, tmp_path: Path) -> None:
    kill = environment.with_name("kill")
    train_grpo(opener(environment), settings_for(tiny), tmp_path / "whole")
    with pytest.raises(RunError, match="no worker is left") as caught:
        train_grpo(
            opener(environment, restarts=0),
            settings_for(tiny),
            tmp_path / "cut",
            progress=lambda entry: kill.write_text("always") if entry["step"] == 2 else None,
        )
    assert f"resume after step 2 with `wander train --resume {tmp_path / 'cut'}`" in str(caught.value.hint)
    kill.unlink()
    done = train_grpo(opener(environment), settings_for(tiny), tmp_path / "cut", resume=True)
    assert (done.steps, done.interrupted) == (3, False)
    same = [read_steps(tmp_path / name / STEPS) for name in ("whole", "cut")]
    assert [(line.rollouts, line.rewards, line.update) for line in same[0]] == [
        (line.rollouts, line.rewards, line.update) for line in same[1]
    ]
