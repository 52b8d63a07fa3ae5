"""Support for sandboxes on this machine, and small environments to run in them."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import Rollout, ScriptedClient
from wander.errors import SandboxError
from wander.sandbox import SandboxPolicy, parse_limits
from wander.sandbox.control_groups import new_control_group
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.process.sandbox_check import start_sandbox

SMALL = ("memory=512M", "processes=64", "cpu=60", "rollout=120", "tmp=8M", "shm=4M", "file=4M", "log=1M")
"""Limits under which nothing that a test does can hurt the machine."""

ENVIRONMENT = '''
import asyncio, json, os, signal, subprocess, sys, time
from wander import MultiTurnEnv, Rubric

class Env(MultiTurnEnv):
    """Runs what the model says, which the test wrote."""

    async def env_response(self, messages, state):
        names = {**globals(), "self": self, "messages": messages, "state": state}
        exec(messages[-1]["content"], names)
        answer = names.get("answer")
        if asyncio.iscoroutine(answer):
            answer = await answer
        return [{"role": "user", "content": json.dumps(answer)}]

def load_environment(at_load=""):
    exec(at_load, globals())
    return Env(eval_dataset=[{"question": "go"}], rubric=Rubric(), max_turns=2, name="obedient")
'''


def small(*limits: str) -> SandboxPolicy:
    """Return the small policy with changed limits."""
    return parse_limits([*SMALL, *limits])


@functools.cache
def why_not() -> str | None:
    """Return why this machine does not support sandboxes, or None; Wander's own faults do not count."""
    try:
        start_sandbox(small())
    except SandboxError as error:
        return None if "could not be created" in str(error) else f"no sandbox on this machine: {error}"
    return None


@functools.cache
def bounds_memory() -> bool:
    """Return whether this process may make control groups."""
    group = new_control_group(SandboxPolicy())
    while not group.close():
        time.sleep(0.01)
    return group.memory_bound == "cgroup"


needs_sandbox = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
needs_groups = pytest.mark.skipif(
    why_not() is not None or not bounds_memory(), reason="no control group can be made here"
)


@asynccontextmanager
async def confined(
    folder: Path, *limits: str, body: str = ENVIRONMENT, **options: Any
) -> AsyncIterator[WorkerEnvironment]:
    """Run an environment's source code in the sandbox."""
    module = folder / "obedient_environment.py"
    module.write_text(body)
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=folder / "worker.log", sandbox=small(*limits), **options
    )
    try:
        yield environment
    finally:
        await environment.close()


async def played(environment: WorkerEnvironment, code: str) -> Rollout:
    """Have the environment run code that stores its result in `answer`."""
    (example,) = await environment.examples("eval", 0, 1)
    return await environment.rollout(ScriptedClient([code, "end"]), example)


async def answered(environment: WorkerEnvironment, code: str) -> Any:
    """Have the environment run code and return its result."""
    rollout = await played(environment, code)
    assert rollout.failure is None, rollout.failure
    return json.loads(str(rollout.completion[1]["content"]))


def marked(mark: str) -> list[int]:
    """Return the processes with this word in their environment variables; root sees all of them."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


async def came_up(mark: str, count: int) -> bool:
    """Wait until at least `count` processes have this word in their environment variables."""
    return await _eventually(lambda: len(marked(mark)) >= count)


async def none_left(mark: str) -> bool:
    """Wait until all processes with this word in their environment variables have ended."""
    return await _eventually(lambda: not marked(mark))


async def _eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(1200):
        if holds():
            return True
        await asyncio.sleep(0.05)
    return False
