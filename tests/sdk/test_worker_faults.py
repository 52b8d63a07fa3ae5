"""Whatever an environment's code does in its worker: its rollout fails, the others finish, nothing stays."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import Rollout, ScriptedClient
from wander.clients.base import ModelRequest
from wander.errors import LoadError
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

BODY = """
import asyncio, builtins, ctypes, os, resource, signal, subprocess, sys, threading, time
from wander import MultiTurnEnv, Rubric, cleanup, stop, teardown

class Panic(BaseException):
    pass

def recursion():
    recursion()

def memory():
    own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    kept = []
    while True:
        kept.append(bytearray(1 << 20))

def raising(error):
    def run():
        raise error
    return run

def linger():
    if os.fork() == 0:  # shares every descriptor, and outlives the worker
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(600)
        os._exit(0)
    os.wait()

def linger_and_die():
    linger()
    os._exit(5)

def fall_through():
    os.fork()  # the child goes on in the same loop

def noise():
    print("a line of noise\\n" * 200_000)
    os.write(1, bytes(range(256)) * 4096)
    sys.stderr.write("and on the other one\\n")

def shut():
    for number in (1, 2):
        try:
            os.close(number)
        except OSError:
            pass
    try:
        print("to nobody", flush=True)
    except OSError:
        pass

def streams():
    sys.stdout.close()
    sys.stderr = None
    raise ValueError("said to nobody")

def elsewhere():
    os.chdir("/")
    os.umask(0o777)

def handlers():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)

def patched():
    async def at_once(*arguments, **options):
        pass
    asyncio.sleep = at_once
    asyncio.run = asyncio.get_event_loop = None
    asyncio.get_event_loop_policy().set_event_loop(asyncio.new_event_loop())
    builtins.print = None

def cancels():
    asyncio.current_task().cancel()

FAULTS = {
    "none": lambda: None,
    "exit": lambda: sys.exit(3),
    "keyboard": raising(KeyboardInterrupt()),
    "panic": raising(Panic("poisoned")),
    "canceled": raising(asyncio.CancelledError()),
    "recursion": recursion,
    "memory": memory,
    "_exit": lambda: os._exit(3),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "stop_loop": lambda: asyncio.get_running_loop().stop(),
    "every_descriptor": lambda: os.closerange(3, 256),
    "block": lambda: time.sleep(600),
    "block_all_threads": lambda: ctypes.PyDLL(None).sleep(600),
}
FAULTS.update({each.__name__: each for each in (
    linger, linger_and_die, fall_through, noise, shut, streams, elsewhere, handlers, patched, cancels)})
HOOKS = ("setup_state", "env_response", "over", "tidy", "reward")

def struck(state, hook):
    if state["info"].get("hook") == hook:
        FAULTS[state["info"]["fault"]]()

def reward(state):
    struck(state, "reward")
    return 1.0

class Env(MultiTurnEnv):
    def setup_state(self, state):
        struck(state, "setup_state")

    def env_response(self, messages, state):
        struck(state, "env_response")
        return [{"role": "user", "content": str(os.getpid())}]

    @stop
    def over(self, state):
        struck(state, "over")
        return False

    @cleanup
    def tidy(self, state):
        struck(state, "tidy")

    @teardown
    def torn_down(self):
        FAULTS[self.last]()

def load_environment(faults, last="none", **arguments):
    rows = [{"question": "q", "info": {"hook": hook, "fault": fault}} for hook, fault in faults]
    env = Env(eval_dataset=rows, rubric=Rubric([reward]), max_turns=2, name="odd", **arguments)
    env.last = last
    return env
"""
HOOKS = ("setup_state", "env_response", "over", "tidy", "reward")
FINE = ("env_response", "none")


@asynccontextmanager
async def worker(
    folder: Path, faults: list[tuple[str, str]], body: str = BODY, last: str = "none", **options: Any
) -> AsyncIterator[WorkerEnvironment]:
    module = folder / "odd_environment.py"
    module.write_text(body)
    environment = await WorkerEnvironment.start(
        None,
        None,
        path=module,
        arguments={"faults": faults, "last": last},
        log_path=folder / "worker.log",
        **options,
    )
    try:
        yield environment
    finally:
        await environment.close()


async def played(environment: WorkerEnvironment, **plan: Any) -> list[Rollout]:
    """Play every row, and return the rollouts in the rows' order."""
    pin = EnvironmentPin(name="odd", info=environment.info)
    client = ScriptedClient(lambda request: "end" if request.turn else "go")
    result = await evaluate(environment, client, EvaluationPlan(**plan), None, pin)
    return sorted(result.rollouts, key=lambda each: int(each.example_id))


def pid_in(rollout: Rollout) -> int:
    assert rollout.failure is None
    return int(rollout.completion[1]["content"])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test: no folder of a socket and no process whose variables name this test's folder."""
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    monkeypatch.setenv("HOME", str(tmp_path))  # which every worker and its children get
    yield
    assert list(short.iterdir()) == []
    short.rmdir()
    if sys.platform == "linux":
        mark = f"HOME={tmp_path}".encode()
        give_up = time.monotonic() + 90  # what was killed takes its time to go on a busy machine
        while left := [each for each in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(each)]:
            assert time.monotonic() < give_up, left
            time.sleep(0.1)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_an_exception_in_a_hook_fails_only_its_rollout(tmp_path: Path) -> None:
    names = {
        "exit": "SystemExit: 3",
        "keyboard": "KeyboardInterrupt",
        "panic": "Panic: poisoned",
        "canceled": "CancelledError",
        "recursion": "RecursionError",
    }
    faults = [(hook, fault) for hook in HOOKS for fault in names]
    rows = [each for fault in faults for each in (fault, FINE)]
    async with worker(tmp_path, rows) as environment:
        rollouts = await played(environment, concurrency=8)
    assert len({pid_in(rollout) for rollout in rollouts[1::2]}) == 1
    for (hook, fault), rollout in zip(faults, rollouts[::2], strict=True):
        failure = rollout.failure
        assert failure is not None, (hook, fault)
        assert failure.boundary == ("rubric" if hook == "reward" else "environment")
        assert failure.message.startswith(f"`{hook}` raised `{names[fault]}")
        assert not failure.retryable


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS binds nothing elsewhere")
async def test_using_too_much_memory_fails_one_rollout(tmp_path: Path) -> None:
    async with worker(tmp_path, [FINE, ("env_response", "memory"), FINE]) as environment:
        first, eater, last = await played(environment, concurrency=1)
    assert eater.failure is not None
    assert "`env_response` raised `MemoryError" in eater.failure.message
    assert pid_in(first) == pid_in(last)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("_exit", "ProcessEnded"),
        pytest.param("abort", "ProcessEnded", marks=pytest.mark.full),
        pytest.param("linger_and_die", "ProcessEnded", marks=pytest.mark.full),
        # These may come from outside as well, or are not noticed before the next rollout's turn.
        ("kill", "WorkerLost"),
        pytest.param("stop_loop", "WorkerLost", marks=pytest.mark.full),
        pytest.param("every_descriptor", "WorkerLost", marks=pytest.mark.full),
    ],
)
async def test_a_rollout_that_kills_its_worker_fails_and_others_finish(
    tmp_path: Path, fault: str, kind: str
) -> None:
    rows = [FINE, ("env_response", fault), FINE, FINE]
    async with worker(tmp_path, rows) as environment:
        first, culprit, *others = await played(environment, concurrency=1, max_retries=1)
    assert culprit.failure is not None
    assert (culprit.failure.type, culprit.failure.boundary) == (kind, "environment")
    assert culprit.failure.retryable is (kind == "WorkerLost")
    pids = {pid_in(each) for each in (first, *others)}
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


@pytest.mark.full
async def test_a_worker_killed_in_any_hook_is_restarted(tmp_path: Path) -> None:
    rows = [each for hook in HOOKS for each in ((hook, "_exit"), FINE)]
    async with worker(tmp_path, rows) as environment:
        # All at once, in one worker: each death is its own rollout's, and costs the others one attempt.
        rollouts = await played(environment, concurrency=16, max_retries=len(HOOKS))
    assert [rollout.failure is None for rollout in rollouts[1::2]] == [True] * len(HOOKS)
    for rollout in rollouts[::2]:
        assert rollout.failure is not None
        assert (rollout.failure.type, rollout.failure.retryable) == ("ProcessEnded", False)
        assert "ended with status 3" in rollout.failure.message


@pytest.mark.parametrize(
    "fault", ["noise", "shut", "elsewhere", "handlers", "patched", "interrupt", "linger", "fall_through"]
)
async def test_unusual_but_valid_behavior_is_accepted(tmp_path: Path, fault: str) -> None:
    async with worker(
        tmp_path, [FINE, ("env_response", fault), FINE, ("reward", fault), FINE]
    ) as environment:
        rollouts = await played(environment, concurrency=1)
        examples = await environment.examples("eval")
    assert len({pid_in(rollout) for rollout in rollouts}) == 1
    assert {rollout.reward for rollout in rollouts} == {1.0}
    assert len(examples) == 5
    if fault == "noise":
        log = (tmp_path / "worker.log").read_bytes()
        assert log.count(b"a line of noise\n") == 400_000
        assert bytes(range(256)) in log


@pytest.mark.full
@pytest.mark.parametrize("fault", ["streams", "cancels"])
async def test_every_rollout_gets_a_result(tmp_path: Path, fault: str) -> None:
    async with worker(tmp_path, [FINE, ("env_response", fault), FINE]) as environment:
        async with asyncio.timeout(60):
            first, odd, last = await played(environment, concurrency=1)
    assert odd.failure is not None
    assert odd.failure.boundary == "environment"
    assert pid_in(first) == pid_in(last)


@pytest.mark.full
@pytest.mark.parametrize("hook", ["env_response", "reward"])
async def test_endless_code_is_stopped_at_its_limit_and_others_finish(tmp_path: Path, hook: str) -> None:
    rows = [FINE, (hook, "block"), FINE, FINE, FINE, FINE]
    async with worker(tmp_path, rows, rollout_timeout=3.0, stall_seconds=0.5) as environment:
        rollouts = await played(environment, concurrency=3)
    blocked = rollouts.pop(1)
    assert blocked.failure is not None
    assert blocked.failure.type == "RolloutTimeout"
    assert blocked.failure.boundary == ("rubric" if hook == "reward" else "environment")
    assert not blocked.failure.retryable
    assert "odd_environment.py" in blocked.failure.message
    assert all(rollout.failure is None for rollout in rollouts)
    assert "in struck" in (tmp_path / "worker.log").read_text()


@pytest.mark.full
async def test_code_that_blocks_all_threads_is_stopped_by_the_host(tmp_path: Path) -> None:
    rows = [FINE, ("env_response", "block_all_threads"), FINE]
    async with worker(tmp_path, rows, rollout_timeout=2.0, stall_seconds=0.5) as environment:
        first, blocked, last = await played(environment, concurrency=1, max_retries=0)
    assert blocked.failure is not None
    assert (blocked.failure.type, blocked.failure.retryable) == ("WorkerLost", True)
    assert "blocked everything else" in blocked.failure.message
    assert pid_in(first) != pid_in(last)


@pytest.mark.full
async def test_a_worker_may_block_longer_than_the_heartbeat(tmp_path: Path) -> None:
    body = BODY.replace('"block": lambda: time.sleep(600)', '"block": lambda: time.sleep(3)')
    rows = [("env_response", "block"), FINE]
    async with worker(tmp_path, rows, body, stall_seconds=0.2) as environment:
        rollouts = await played(environment, concurrency=1)
    assert len({pid_in(rollout) for rollout in rollouts}) == 1


@pytest.mark.full
async def test_a_rollout_over_its_time_limit_fails_alone(tmp_path: Path) -> None:
    async def model(request: ModelRequest) -> str:
        if request.rollout_id == "1/0":
            await asyncio.sleep(3600)
        return "end"

    async with worker(tmp_path, [FINE, FINE, FINE], rollout_timeout=3.0) as environment:
        pin = EnvironmentPin(name="odd", info=environment.info)
        result = await evaluate(environment, ScriptedClient(model), EvaluationPlan(concurrency=3), None, pin)
    failures = {each.example_id: each.failure for each in result.rollouts}
    assert failures["0"] is failures["2"] is None
    assert failures["1"] is not None
    assert (failures["1"].type, failures["1"].boundary) == ("RolloutTimeout", "model")
    assert "3 s" in failures["1"].message


@pytest.mark.parametrize(
    "last",
    [
        *("exit", "_exit", "block"),
        *(
            pytest.param(last, marks=pytest.mark.full)
            for last in ("keyboard", "panic", "recursion", "canceled", "kill")
        ),
    ],
)
async def test_teardown_cannot_block_the_host(
    tmp_path: Path, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander.worker.host.session.CLOSE_SECONDS", 1.0)
    async with worker(tmp_path, [FINE], last=last) as environment:
        (rollout,) = await played(environment)
    assert gone(pid_in(rollout))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", "SystemExit: 3"),
        ("keyboard", "KeyboardInterrupt"),
        ("panic", "Panic: poisoned"),
        ("recursion", "RecursionError"),
        ("_exit", "ended with status 3"),
        ("linger_and_die", "ended with status 5"),
    ],
)
async def test_every_failed_load_is_reported_and_leaves_nothing(
    tmp_path: Path, fault: str, says: str
) -> None:
    body = BODY.replace("    rows = [", "    FAULTS[last]()\n    rows = [")
    with pytest.raises(LoadError, match=says):
        async with worker(tmp_path, [FINE], body, last=fault):
            pass
