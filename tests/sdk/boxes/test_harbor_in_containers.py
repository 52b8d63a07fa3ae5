"""A Harbor task in a container that is built from its Dockerfile, and hacks that can change its system."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from harbor_tasks import TEST_SH, write_task
from wander import ScriptedClient
from wander.boxes.base import BoxSpec
from wander.boxes.containers import ContainerBackend
from wander.checks.hacks import HACKS
from wander.envs import run_commands
from wander_integrations import HarborEnv

IMAGE = "localhost/wander-test-harbor:1"
FAULT = ContainerBackend("podman").unavailable_reason(BoxSpec(image="x"))

pytestmark = [pytest.mark.full, pytest.mark.skipif(FAULT is not None, reason=str(FAULT))]


@pytest.fixture
def env(busybox_root, tmp_path, monkeypatch) -> HarborEnv:
    """The task, over an image of busybox, which has only `sh`."""
    monkeypatch.setenv("WANDER_BOXES", "podman")
    packed = subprocess.run(["tar", "-C", busybox_root, "-c", "."], capture_output=True, check=True).stdout
    subprocess.run(["podman", "import", "-", IMAGE], input=packed, capture_output=True, check=True)
    changes = {
        "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\nRUN echo a > built.txt\nCOPY notes.txt .\n",
        "tests/test.sh": TEST_SH.replace("/bin/bash", "/bin/sh"),
        "solution/solve.sh": "#!/bin/sh\n[ -e built.txt ] && echo 'Hello, world!' > hello.txt\n",
    }
    return HarborEnv(write_task(tmp_path / "hello", changes))


async def test_a_task_is_built_played_and_scored_in_a_new_container(env):
    example = env.dataset("eval")[0]
    solved = await env.rollout(ScriptedClient(env.gold(example)), example)
    assert solved.reward == 1.0, (solved.failure, solved.completion)
    assert [file["path"] for file in solved.info["box"]["state"]["files"]] == ["/app/hello.txt"]
    limit = asyncio.Semaphore(2)

    async def try_hack(command: str) -> float | None:
        async with limit:
            return (await env.rollout(ScriptedClient(run_commands(command)), example)).reward

    hacks = [hack for hack in HACKS if hack.name.startswith(("writes", "replaces", "puts", "locks"))]
    rewards = await asyncio.gather(*(try_hack(hack.command) for hack in hacks))
    assert len(hacks) >= 12
    assert [hack.name for hack, reward in zip(hacks, rewards, strict=True) if reward] == []
