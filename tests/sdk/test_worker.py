"""Environments in a process of their own: the same rollouts, and every way a worker can end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import Example, LocalEnvironment, Rollout, ScriptedClient
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import (
    ArgumentsRefused,
    ArgumentsUnfit,
    AuthenticationFailed,
    ContextOverflow,
    DatasetError,
    EnvironmentFault,
    LoadError,
    ModelError,
    NeedsKey,
)
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.system import child_environ
from wander.system.locked_folders import LockedFolder
from wander.wire import EnvironmentPin
from wander.worker.host import link as worker_link
from wander.worker.host import session as worker_session
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.host.link import make_socket_folder
from wander.worker.protocol import PROTOCOL, Cancel, Close, Fault, Hello, to_host, to_worker

BODY = """
import asyncio, os, signal, subprocess, sys, threading, time
from wander import MultiTurnEnv, Rubric, teardown

def length(completion):
    return float(len(completion[-1]["content"]))

class Env(MultiTurnEnv):
    async def env_response(self, messages, state):
        said = messages[-1]["content"]
        if said == "exit":
            os._exit(3)
        if said == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "raise":
            raise ValueError("odd")
        if said == "sys.exit":
            sys.exit(1)
        if said == "print":
            print("to stdout")
            os.system("echo from a child")
            sys.stderr.write("to stderr")
        if said == "environ":
            said = ",".join(sorted(os.environ))
        if said == "child":
            said = str(subprocess.Popen(["sleep", "600"]).pid)
        if said == "block":
            time.sleep(600)
        if said == "state":
            state["public"]["object"] = object()
        if said == "pid":
            said = str(os.getpid())
        if said == "roll":
            said = str(self.rng(state, "dice").random())
        return [{"role": "user", "content": f"you said {said}"}]

    @teardown
    async def torn_down(self):
        print("torn down", flush=True)

def load_environment(rows=4, **arguments):
    return Env(eval_dataset=[{"question": f"q{i}"} for i in range(rows)],
               rubric=Rubric([length]), max_turns=2, name="odd", **arguments)
"""


@asynccontextmanager
async def worker(folder: Path, body: str = BODY, **options: Any) -> AsyncIterator[WorkerEnvironment]:
    module = folder / "odd_environment.py"
    module.write_text(body)
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=folder / "log" / "worker.log", **options
    )
    try:
        yield environment
    finally:
        await environment.close()


def saying(*texts: str) -> ScriptedClient:
    return ScriptedClient([*texts, "end"])


async def play(environment: EnvironmentHandle, client: Client, number: int = 0) -> Rollout:
    (example,) = await environment.examples("eval", number, 1)
    return await environment.rollout(client, example, run_seed=7)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2] if sys.platform == "linux" else True


async def gone(pid: int) -> bool:
    for _ in range(200):
        if not alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def log_of(environment: WorkerEnvironment) -> str:
    return environment.log_path.read_text()


async def pid_of(environment: WorkerEnvironment) -> int:
    rollout = await play(environment, saying("pid"))
    return int(rollout.completion[1]["content"].split()[-1])


async def test_a_worker_plays_the_same_rollouts_as_this_process(tmp_path: Path) -> None:
    async with worker(tmp_path, arguments={"rows": 3, "seed": 4}) as environment:
        local = LocalEnvironment(load_path(tmp_path / "odd_environment.py", rows=3, seed=4))
        assert environment.info == local.info
        assert await environment.examples("eval") == await local.examples("eval")
        for number in range(3):
            theirs, ours = [
                (await play(each, saying("roll"), number)).model_dump(
                    exclude={"started_at", "seconds", "scoring_seconds", "turns"}
                )
                for each in (environment, local)
            ]
            assert theirs == ours
            assert ours["reward"] == 3.0


async def test_many_rollouts_share_one_worker(tmp_path: Path, chat_server: Any) -> None:
    async def model(request: ModelRequest) -> str:
        await asyncio.sleep(0.01)
        return request.rollout_id + "."

    async with worker(tmp_path, arguments={"rows": 60}) as environment:
        result = await evaluate(
            environment,
            ScriptedClient(model),
            EvaluationPlan(rollouts_per_example=2, concurrency=50),
            tmp_path / "run",
            EnvironmentPin(name="odd", info=environment.info),
        )
    assert (result.summary.rollouts, result.summary.failed) == (120, 0)
    assert result.summary.turns_mean == 2.0


async def test_closing_runs_teardown_and_leaves_nothing(tmp_path: Path) -> None:
    async with worker(tmp_path) as environment:
        pid = await pid_of(environment)
        child = int((await play(environment, saying("child"))).completion[1]["content"].split()[-1])
        assert alive(pid)
        assert alive(child)
    assert not alive(pid)
    assert await gone(child)
    assert "torn down" in log_of(environment)
    assert "Traceback" not in log_of(environment)
    await environment.close()


async def test_output_of_the_environment_goes_to_the_log(tmp_path: Path) -> None:
    async with worker(tmp_path, "print('loading')\n" + BODY) as environment:
        rollout = await play(environment, saying("print"))
        assert rollout.failure is None
    for text in ("loading", "to stdout", "from a child", "to stderr"):
        assert text in log_of(environment)


@pytest.mark.parametrize("names", [(), ("WANDER_TEST_GIVEN", "WANDER_TEST_UNSET")])
async def test_only_named_variables_reach_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WANDER_TEST_SECRET", "s")
    monkeypatch.setenv("WANDER_TEST_GIVEN", "g")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with worker(tmp_path, environ=names) as environment:
        rollout = await play(environment, saying("environ"))
    seen = set(rollout.completion[1]["content"].split()[-1].split(","))
    python = {"PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONUTF8", "PYTHONHASHSEED", "LC_CTYPE"}
    # The host's endpoint and its token, not the variables here; and the worker's mark.
    host = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "WANDER_WORKER"}
    allowed = {*child_environ.ALWAYS, *python, *host, *({"WANDER_TEST_GIVEN"} if names else ())}
    assert seen <= allowed
    assert "PATH" in seen
    assert ("WANDER_TEST_GIVEN" in seen) is bool(names)


@pytest.mark.parametrize(
    ("said", "boundary", "message"),
    [
        ("raise", "environment", "odd"),
        ("sys.exit", "environment", "SystemExit"),
        ("state", "environment", "JSON"),
    ],
)
async def test_an_exception_of_the_environment_fails_one_rollout(
    tmp_path: Path, said: str, boundary: str, message: str
) -> None:
    async with worker(tmp_path) as environment:
        rollout = await play(environment, saying(said))
        assert rollout.failure is not None
        assert rollout.failure.boundary == boundary
        assert message in rollout.failure.message
        assert not rollout.failure.retryable
        assert (await play(environment, saying("fine"))).failure is None


@pytest.mark.parametrize(
    ("said", "how"),
    [
        pytest.param("exit", "ended with status 3", marks=pytest.mark.full),
        ("kill", "was killed by SIGKILL"),
    ],
)
async def test_a_dead_worker_fails_its_rollouts_and_restarts(tmp_path: Path, said: str, how: str) -> None:
    async with worker(tmp_path, "print('first words')\n" + BODY) as environment:
        first = await pid_of(environment)
        hanging = asyncio.create_task(play(environment, Waiting()))
        await asyncio.sleep(0.1)
        rollouts = [await play(environment, saying(said)), await hanging]
        # What ended the process itself would do so again; the others only were there.
        own = ("ProcessEnded", False) if said == "exit" else ("WorkerLost", True)
        for rollout, kind in zip(rollouts, (own, ("WorkerLost", True)), strict=True):
            assert rollout.failure is not None
            assert (rollout.failure.type, rollout.failure.retryable) == kind
            assert how in rollout.failure.message
            # What is posted names no folder of this machine and nothing that was printed here.
            assert "first words" not in rollout.failure.message
            assert str(tmp_path) not in rollout.failure.message
        assert await pid_of(environment) != first
        assert log_of(environment).count("first words") == 2


FOREIGN = BODY.replace(
    "def load_environment(",
    """
from wander import LocalEnvironment
from wander.worker.child import service
honest = LocalEnvironment.play_request

async def forged(self, request):
    (rollout,) = await honest(self, request)
    said = rollout.completion[0]["content"]
    if said == "garbage":
        service.Played.model_dump_json = lambda self, **_: '{"type": "nonsense"}'
    return [rollout.model_copy(update={"example_id": "3"}) if said == "forge" else rollout]

LocalEnvironment.play_request = forged

def load_environment(""",
)


async def test_a_worker_cannot_answer_for_other_rollouts(tmp_path: Path) -> None:
    async with worker(tmp_path, FOREIGN) as environment:
        forged = await play(environment, saying("forge"))
        assert forged.example_id == "0"
        assert forged.failure is not None
        assert forged.failure.type == "ForeignRollouts"
        assert (await play(environment, saying("fine"))).failure is None


async def test_a_worker_that_sends_garbage_is_stopped(tmp_path: Path) -> None:
    async with worker(tmp_path, FOREIGN) as environment:
        rollout = await play(environment, saying("garbage"))
        assert rollout.failure is not None
        assert "an invalid message" in rollout.failure.message
        assert (await play(environment, saying("fine"))).failure is None


async def test_a_worker_that_keeps_dying_is_not_restarted(tmp_path: Path) -> None:
    async with worker(tmp_path, "print('last words')\n" + BODY, restarts=1) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        failures = [(await environment.rollout(saying("kill"), example)).failure for _ in range(4)]
        assert [failure.retryable for failure in failures if failure] == [True, True, False, False]
        with pytest.raises(EnvironmentFault, match="was killed by SIGKILL") as caught:
            await environment.examples("eval")
        assert str(environment.log_path) in str(caught.value)
        assert "last words" in str(caught.value)


async def test_an_evaluation_survives_a_dead_worker(tmp_path: Path) -> None:
    died: list[str] = []

    def model(request: ModelRequest) -> str:
        if request.rollout_id == "5/0" and not died:
            died.append("5/0")
            return "kill"
        return "fine"

    async with worker(tmp_path, arguments={"rows": 20}) as environment:
        pin = EnvironmentPin(name="odd", info=environment.info)
        plan = EvaluationPlan(concurrency=4)
        result = await evaluate(environment, ScriptedClient(model), plan, None, pin)
    assert (result.summary.rollouts, result.summary.failed) == (20, 0)
    assert result.retried >= 1


async def test_an_evaluation_without_workers_stops_and_keeps_its_rollouts(tmp_path: Path) -> None:
    def model(request: ModelRequest) -> str:
        return "exit" if int(request.rollout_id.split("/")[0]) >= 10 else "fine"

    async with worker(tmp_path, arguments={"rows": 500}, restarts=0) as environment:
        pin = EnvironmentPin(name="odd", info=environment.info)
        plan = EvaluationPlan(concurrency=1, max_retries=0)
        with pytest.raises(EnvironmentFault, match=r"ended with status 3; log: .*worker\.log"):
            await evaluate(environment, ScriptedClient(model), plan, tmp_path / "run", pin)
    assert (tmp_path / "run" / "rollouts.jsonl").read_bytes().count(b"\n") >= 10


class Waiting(Client):
    """Never answers, and tells when its call was canceled."""

    model = "waiting"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.canceled = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.canceled.set()
        raise AssertionError


async def test_a_canceled_rollout_ends_on_both_sides(tmp_path: Path) -> None:
    client = Waiting()
    body = BODY.replace("@teardown", "@__import__('wander').cleanup\n    def tidy(self, state):\n"
                        "        print('tidied', flush=True)\n\n    @teardown")  # fmt: skip
    async with worker(tmp_path, body) as environment:
        playing = asyncio.create_task(play(environment, client))
        await client.asked.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        async with asyncio.timeout(60):
            await client.canceled.wait()
        assert (await play(environment, saying("fine"))).failure is None
        assert "tidied" in log_of(environment)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AuthenticationFailed("bad key"), None),
        (ModelError("busy", retryable=True), None),
        (ContextOverflow("too long"), "context_overflow"),
        (KeyError("client bug"), None),
    ],
)
async def test_model_errors_reach_the_worker_unchanged(
    tmp_path: Path, error: Exception, reason: str | None
) -> None:
    class Failing(Client):
        model = "failing"

        async def complete(self, request: ModelRequest) -> ModelResponse:
            raise error

    async with worker(tmp_path) as environment:
        rollout = await play(environment, Failing())
    assert rollout.stop_reason == reason
    if reason is None:
        assert rollout.failure is not None
        assert rollout.failure.boundary == "model"
        assert rollout.failure.retryable is getattr(error, "retryable", False)
        assert str(error) in rollout.failure.message
        if isinstance(error, ModelError):
            assert rollout.failure.type == type(error).__name__


async def test_the_client_gets_start_end_and_request(tmp_path: Path) -> None:
    told: list[str] = []

    class Telling(ScriptedClient):
        def begin(self, rollout_id: str) -> None:
            told.append(f"begin {rollout_id}")
            super().begin(rollout_id)

        def end(self, rollout_id: str) -> None:
            told.append(f"end {rollout_id}")
            super().end(rollout_id)

        async def complete(self, request: ModelRequest) -> ModelResponse:
            told.append(f"turn {request.turn} of {len(request.messages)}")
            return await super().complete(request)

    async with worker(tmp_path) as environment:
        await play(environment, Telling(["a", "b"]), 2)
    assert told == ["begin 2/0", "turn 0 of 1", "turn 1 of 3", "end 2/0"]


async def test_large_messages_work_in_both_directions(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    body = BODY.replace(
        '"content": f"you said {said}"', f'"content": [{{"type": "text", "text": "x"}}, {image}]'
    )

    def model(request: ModelRequest) -> str:
        return "y" * 3_000_000

    async with worker(tmp_path, body) as environment:
        rollouts = await asyncio.gather(*(play(environment, ScriptedClient(model), i) for i in range(4)))
    for rollout in rollouts:
        assert rollout.failure is None
        assert rollout.completion[1]["content"][1] == image
        assert rollout.reward == 3_000_000.0


async def test_many_examples_are_split_into_messages(tmp_path: Path) -> None:
    async with worker(tmp_path, arguments={"rows": 1201}) as environment:
        every = await environment.examples("eval")
        assert [example.index for example in every] == list(range(1201))
        assert await environment.examples("eval", 400, 300) == every[400:700]
        assert await environment.examples("eval", 1190, 300) == every[1190:]
        assert await environment.examples("eval", 5000, 3) == []


ENDLESS = """
from wander import ProceduralRows, Rubric, SingleTurnEnv

def row(index):
    return {"question": str(index)}

def load_environment():
    return SingleTurnEnv(dataset=ProceduralRows(row), rubric=Rubric([lambda completion: 1.0]))
"""


async def test_endless_datasets_are_read_by_count_only(tmp_path: Path) -> None:
    async with worker(tmp_path, ENDLESS) as environment:
        assert len(await environment.examples("train", 3, 600)) == 600
        with pytest.raises(DatasetError, match="endless"):
            await environment.examples("train")


async def test_groups_are_scored_together_in_the_worker(tmp_path: Path) -> None:
    body = """
from wander import Rubric, SingleTurnEnv

def best(completions):
    lengths = [len(each[-1]["content"]) for each in completions]
    return [float(length == max(lengths)) for length in lengths]

def load_environment():
    return SingleTurnEnv(eval_dataset=[{"question": "q"}], rubric=Rubric([best]))
"""
    client = ScriptedClient(lambda request: "x" * int(request.rollout_id[-1]))
    async with worker(tmp_path, body) as environment:
        assert environment.info.group_rewards
        (example,) = await environment.examples("eval")
        rollouts = await environment.rollout_group(client, example, indices=[1, 3, 2])
    assert [(each.index, each.reward) for each in rollouts] == [(1, 0.0), (3, 1.0), (2, 0.0)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("import not_a_module_anywhere", "not_a_module_anywhere"),
        ("x = 1", "load_environment"),
        ("def load_environment():\n    raise KeyError('missing')", "missing"),
        ("def load_environment():\n    return 3", "int"),
        ("import sys; sys.exit('bye')", "bye"),
        ("syntax error here", "SyntaxError"),
        ("import os; os._exit(9)", "ended with status 9"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
async def test_load_errors_show_their_original_cause(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        async with worker(tmp_path, body):
            pass
    assert "log" in f"{caught.value} {caught.value.hint}"
    assert (tmp_path / "log" / "worker.log").exists()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            "from wander.errors import ConfigError\n"
            "def load_environment():\n    raise ConfigError('too small')",
            ArgumentsRefused,
        ),
        ("def load_environment(size):\n    return None", ArgumentsUnfit),
        # A class of the author's own, which only has the name of one of ours.
        (
            "class ConfigError(Exception): pass\ndef load_environment():\n    raise ConfigError('mine')",
            LoadError,
        ),
    ],
)
async def test_loading_errors_keep_their_class(tmp_path: Path, body: str, kind: type) -> None:
    with pytest.raises(LoadError) as caught:
        async with worker(tmp_path, body):
            pass
    assert type(caught.value) is kind


FORGED = '{"type": "load_failed", "fault": {"type": "SandboxError", "message": "no space left"}}'
GARBAGE = """
from wander.worker import channel
def load_environment():
    send = channel.Channel.send
    channel.Channel.send = lambda self, message: send(self, '{"type": "nonsense"}')
"""


@pytest.mark.parametrize(
    "body",
    [
        *(
            f"from wander import errors\ndef load_environment():\n    raise errors.{name}('no space left')"
            for name in (
                *("SandboxError", "WorkerUnreachable", "WorkerRefusedToken", "RunError"),
                *("ModelError", "AuthenticationFailed", "RateLimited", "WanderError"),
            )
        ),
        GARBAGE,
        GARBAGE.replace('{"type": "nonsense"}', FORGED),
    ],
)
async def test_errors_while_loading_are_not_blamed_on_the_host(tmp_path: Path, body: str) -> None:
    with pytest.raises(LoadError) as caught:
        async with worker(tmp_path, body):
            pass
    assert type(caught.value) is LoadError


def test_errors_keep_their_class_across_worker_versions() -> None:
    for error in (DatasetError("x", hint="y"), ArgumentsRefused("x", hint="y"), NeedsKey("x", hint="y")):
        again = Fault.model_validate_json(Fault.of(error).model_dump_json()).load_error()
        assert (type(again), str(again), again.hint) == (type(error), "x", "y")
    old = Fault(type="LoadError", message="`load_environment` of `x` raised `ConfigError: y`").load_error()
    assert type(old) is LoadError
    own = Fault.of(type("DatasetError", (Exception,), {"__module__": "theirs"})("rows")).load_error()
    assert (type(own), str(own)) == (LoadError, "the environment raised `theirs.DatasetError: rows`")


async def test_a_name_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no_such_environment_anywhere"):
        await WorkerEnvironment.start(None, "no_such_environment_anywhere", log_path=tmp_path / "log")


async def test_a_missing_interpreter_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot start") as caught:
        await WorkerEnvironment.start(tmp_path / "python", "x", log_path=tmp_path / "log")
    assert "install" in (caught.value.hint or "")


async def test_an_interpreter_without_the_sdk_is_reported(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(LoadError, match="No module named"):
        await WorkerEnvironment.start(bare, "x", log_path=tmp_path / "log")


async def test_loading_has_a_time_limit(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="not loaded within 1 s"):
        async with worker(tmp_path, "import time\ntime.sleep(600)", startup_timeout=1):
            pass


async def test_an_environment_may_run_an_event_loop_while_loading(tmp_path: Path) -> None:
    body = BODY.replace("def load_environment(", "asyncio.run(asyncio.sleep(0))\n\ndef load_environment(")
    async with worker(tmp_path, body) as environment:
        assert (await play(environment, saying("fine"))).failure is None


async def test_another_protocol_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_session, "PROTOCOL", 99)
    with pytest.raises(LoadError, match=f"uses protocol {PROTOCOL}, this"):
        async with worker(tmp_path):
            pass


async def test_a_blocked_worker_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_session, "CLOSE_SECONDS", 0.2)
    async with worker(tmp_path) as environment:
        pid = await pid_of(environment)
        blocked = asyncio.create_task(play(environment, saying("block")))
        await asyncio.sleep(0.2)
        await environment.close()
        async with asyncio.timeout(60):
            rollout = await blocked
    assert rollout.failure is not None
    assert not alive(pid)


async def test_the_socket_is_private_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def spy() -> LockedFolder:
        folder = make_socket_folder()
        made.append(folder.path)
        return folder

    monkeypatch.setattr(worker_link, "make_socket_folder", spy)
    async with worker(tmp_path):
        (folder,) = made
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(folder / "s")) < 104
    assert not folder.exists()


def test_a_long_temporary_folder_does_not_break_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = make_socket_folder()
    folder.close()
    assert len(str(folder.path)) < 100
    assert list(deep.iterdir()) == []


HOST = """
import asyncio, sys
from pathlib import Path
from wander import ScriptedClient
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.protocol import Cancel, Close, Hello, to_host, to_worker

async def main():
    folder = Path(sys.argv[1])
    environment = await WorkerEnvironment.start(
        None, None, path=folder / "odd_environment.py", log_path=folder / "log.txt"
    )
    (example,) = await environment.examples("eval", 0, 1)
    rollout = await environment.rollout(ScriptedClient(["pid", "end"]), example)
    print(rollout.completion[1]["content"].split()[-1], flush=True)
    if sys.argv[2] == "block":
        await environment.rollout(ScriptedClient(["block", "end"]), example)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.parametrize("doing", ["wait", "block"])
async def test_a_killed_host_leaves_no_worker(tmp_path: Path, doing: str) -> None:
    module = tmp_path / "odd_environment.py"
    module.write_text(BODY)
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, str(tmp_path), doing, stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    async with asyncio.timeout(60):
        pid = int(await host.stdout.readline())
    assert alive(pid)
    if doing == "block":
        await asyncio.sleep(0.5)
    host.send_signal(signal.SIGKILL)
    await host.wait()
    assert await gone(pid)
    if doing == "wait":
        assert "torn down" in (tmp_path / "log.txt").read_text()


async def test_a_host_may_close_while_a_model_call_is_under_way(tmp_path: Path) -> None:
    client = Waiting()
    async with worker(tmp_path) as environment:
        playing = asyncio.create_task(play(environment, client))
        await client.asked.wait()
    async with asyncio.timeout(60):
        rollout = await playing
    assert rollout.failure is not None
    assert client.canceled.is_set()
    example = Example(example_id="0", index=0, seed=1, prompt=[{"role": "user", "content": "q"}])
    after = await environment.rollout(saying("x"), example)
    assert after.failure is not None
    assert not after.failure.retryable


def test_messages_are_json_lines_of_the_documented_form() -> None:
    hello = Hello(protocol=3, wander="0", python="3", pid=1)
    assert json.loads(hello.model_dump_json())["type"] == "hello"
    assert to_host.validate_json(hello.model_dump_json()) == hello
    for message in (Cancel(id=3), Close()):
        assert to_worker.validate_json(message.model_dump_json()) == message
        assert "\n" not in message.model_dump_json()


def test_the_log_tail_is_short(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from wander.worker.process.start import WorkerProcess

        async def main():
            log = Path(sys.argv[1])
            process = await WorkerProcess.start(None, Path("/nowhere/s"), environ=(), log_path=log)
            await process.wait()
            print(len(process.log_tail().splitlines()), process.ending())

        asyncio.run(main())
        """
    )
    log = tmp_path / "log"
    log.write_text("a line of the log\n" * 100_000)
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=True, timeout=60
    )
    lines, *ending = done.stdout.split()
    assert int(lines) <= 15
    assert ending == ["ended", "with", "status", "1"]
