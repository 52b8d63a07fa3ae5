"""Task sets of `verifiers.v1` are played by the real library, and the model is the host's.

    python -m pytest tests/compat/test_task_sets.py -m slow

The packages are built as wheels and installed with verifiers from PyPI; `marble-v1` is a published one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from compat_environments import ROOT, environment_with, wheel_of
from wander.boxes.base import BoxSpec
from wander.boxes.containers import ContainerBackend
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.envs import run_commands
from wander.errors import ContextOverflow, LoadError, RateLimited
from wander.worker.host.environment import WorkerEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=["0.3.1", "0.4.0"])
def python(request, tmp_path_factory) -> Path:
    """The interpreter of a virtual environment with a release of the library."""
    folder = tmp_path_factory.mktemp(f"tasks-{request.param}")
    sources = ("sdk", "compat", "tests/compat/task_sets")
    wheels = [str(wheel_of(ROOT / each, folder / "wheels" / each)) for each in sources]
    wanted = [f"verifiers=={request.param}", *wheels]
    return environment_with(
        folder / "venv", [*wanted, *(["marble-v1==0.1.0"] if request.param > "0.4" else [])]
    )


@pytest.fixture
async def opened(python, tmp_path):
    """Start environments; all are closed in the end."""
    started = []

    async def start(module: str, **arguments) -> WorkerEnvironment:
        env = await WorkerEnvironment.start(
            python, module, arguments=arguments, log_path=tmp_path / f"{module}.log"
        )
        started.append(env)
        return env

    yield start
    for env in started:
        await env.close()


async def replayed(env, rollout, example) -> None:
    again = await env.rollout(ReplayClient([rollout]), example, index=rollout.index)
    fields = ("prompt", "completion", "reward", "metrics", "stop_reason", "failure")
    assert [getattr(again, name) for name in fields] == [getattr(rollout, name) for name in fields]


async def test_a_conversation_is_scored_and_replayed(opened):
    env = await opened("by_heart_v1", add=2)
    assert (env.info.kind, env.info.eval_examples) == ("taskset", None)
    assert {each.name: each.weight for each in env.info.reward_functions} == {"right": 2.0, "length": 0.0}
    assert env.info.deterministic
    first, second, third = await env.examples("eval", 5, 3)
    assert first.prompt == [
        {"role": "system", "content": "Say the sum."}, {"role": "user", "content": "5 + 2"}
    ]  # fmt: skip
    right = await env.rollout(ScriptedClient(["7"]), first)
    wrong = await env.rollout(ScriptedClient(["70"]), second)
    assert (right.reward, right.metrics) == (2.0, {"length": 1.0, "right": 1.0})
    assert (wrong.reward, wrong.metrics) == (0.0, {"length": 2.0, "right": 0.0})
    assert [turn.message["content"] for turn in right.turns] == ["7"]
    assert right.completion == [{"role": "assistant", "content": "7"}]
    for rollout, example in ((right, first), (wrong, second)):
        await replayed(env, rollout, example)
    broken = await env.rollout(ScriptedClient(["break"]), third)
    assert (broken.reward, broken.failure.boundary) == (None, "environment")
    assert "the metric broke" in broken.failure.message


async def test_model_errors_have_the_model_boundary(opened):
    class Fails(ScriptedClient):
        async def complete(self, request):
            raise (RateLimited("too many") if request.rollout_id == "0/0" else ContextOverflow("too long"))

    env = await opened("by_heart_v1")
    first, second = await env.examples("eval", 0, 2)
    limited = await env.rollout(Fails([]), first)
    assert (limited.failure.boundary, limited.failure.type) == ("model", "RateLimited")
    overlong = await env.rollout(Fails([]), second)
    assert (overlong.failure, overlong.truncated, overlong.stop_reason) == (None, True, "context_overflow")


async def test_tools_of_the_task_are_called(opened):
    def script(request):
        last = request.messages[-1]
        if last["role"] == "tool":
            return last["content"]
        arguments = json.dumps({"x": int(last["content"].split()[1])})
        function = {"name": request.tools[0]["function"]["name"], "arguments": arguments}
        call = {"id": "c", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    env = await opened("adder_v1", count=2)
    examples = await env.examples("eval")
    assert len(examples) == 2
    rollout = await env.rollout(ScriptedClient(script), examples[1])
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    assert [message["role"] for message in rollout.completion] == ["assistant", "tool", "assistant"]
    assert len(rollout.turns) == 2
    await replayed(env, rollout, examples[1])


IMAGE = "localhost/wander-test-repairs:1"
NO_PODMAN = ContainerBackend("podman").unavailable_reason(BoxSpec(image="x"))


@pytest.fixture
def busybox_image(tmp_path) -> str:
    """An image with a static busybox and nothing else."""
    (tmp_path / "root/bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", tmp_path / "root/bin/busybox")
    for name in ("sh", "cat", "mktemp", "rm", "sleep"):
        (tmp_path / "root/bin" / name).symlink_to("busybox")
    packed = subprocess.run(["tar", "-C", tmp_path / "root", "-c", "."], capture_output=True, check=True)
    subprocess.run(["podman", "import", "-", IMAGE], input=packed.stdout, capture_output=True, check=True)
    return IMAGE


@pytest.mark.parametrize("names_image", [False, True])
async def test_a_task_that_needs_a_container_is_played_in_a_box(opened, request, names_image):
    if names_image and NO_PODMAN is not None:
        pytest.skip(NO_PODMAN)
    image = request.getfixturevalue("busybox_image") if names_image else None
    env = await opened("repairs_v1", image=image)
    assert not env.info.deterministic
    example = (await env.examples("eval"))[0]
    repair = ScriptedClient(run_commands("cat greeting.txt; echo hello > greeting.txt"))
    repaired = await env.rollout(repair, example)
    assert (repaired.failure, repaired.reward, repaired.metrics["checked"]) == (None, 1.0, 1.0)
    assert [message["content"] for message in repaired.completion if message["role"] == "tool"] == [
        "goodbye\n"
    ]
    assert repaired.info["box_images"][0].startswith("image:" if names_image else "system:")
    nothing = await env.rollout(ScriptedClient(["done"]), example)
    assert (nothing.failure, nothing.reward) == (None, 0.0)


async def test_a_missing_image_has_the_sandbox_boundary(opened):
    env = await opened("repairs_v1", image="localhost/wander-test-missing:1")
    rollout = await env.rollout(ScriptedClient(["done"]), (await env.examples("eval"))[0])
    assert (rollout.reward, rollout.failure.boundary) == (None, "sandbox")


async def test_programs_that_install_themselves_in_the_box_are_rejected(opened):
    with pytest.raises(LoadError, match="installs its program"):
        await opened("repairs_v1", harness="codex")


async def test_settings_rejected_by_the_library_are_reported(opened):
    with pytest.raises(LoadError, match="by_heart_v1"):
        await opened("by_heart_v1", nothing=1)


async def test_a_published_task_set_plays(opened, python):
    if not list((python.parents[1] / "lib").glob("python*/site-packages/marble_v1")):
        pytest.skip("marble-v1 is for 0.4")
    env = await opened("marble_v1")
    examples = await env.examples("eval", 0, 3)
    for example in examples:
        rollout = await env.rollout(ScriptedClient(["nothing"]), example)
        assert rollout.failure is None
        await replayed(env, rollout, example)
