"""A box behaves like a container of `verifiers.v1`. The library itself is not needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from pydantic import BaseModel
from sandboxes import needs_sandbox
from wander.boxes.backends import start_box
from wander.errors import SandboxError
from wander_compat.tasksets.boxes import BOXES, BoxMethods, RolloutBoxes, box_spec
from wander_compat.tasksets.harness import _run_tool


class Settings(BaseModel):
    image: str = "default:1"
    workdir: str | None = None
    memory: float | None = None
    disk: float | None = None
    gpu: str | None = None
    allow: list[str] = ["*"]


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Refused(Exception):
    """An error of the library."""


class Runtime(BoxMethods):
    config = Settings(memory=0.25, disk=0.015625)

    def process_env(self, env: dict[str, str]) -> dict[str, str]:
        return {"WHO": "task", **env}


@pytest.fixture
async def runtime(monkeypatch):
    """A started runtime."""
    errors = SimpleNamespace(SandboxError=Refused, TaskError=Refused)
    for name, module in (("runtimes", SimpleNamespace(ProgramResult=Result)), ("errors", errors)):
        monkeypatch.setitem(sys.modules, f"verifiers.v1.{name}", module)
    boxes = RolloutBoxes(SimpleNamespace(start_box=start_box))
    BOXES.set(boxes)
    runtime = Runtime()
    await runtime.start()
    assert boxes.images == [runtime.box.image_digest]
    yield runtime
    await runtime.teardown()


@needs_sandbox
async def test_commands_and_files_reach_the_box(runtime):
    await runtime.write("folder/name.txt", b"content\n")
    assert await runtime.read("/app/folder/name.txt") == b"content\n"
    script = "cat folder/name.txt; printf $WHO; echo wrong >&2; exit 3"
    assert await runtime.run(["sh", "-c", script], {}) == (3, "content\ntask", "wrong\n")
    assert await runtime.run(["printf", "%s", "two words"], {}) == (0, "two words", "")
    await runtime.run_background(["sh", "-c", "echo started"], {}, "log.txt")
    assert await runtime.run_command("until grep -s started log.txt; do sleep 0.01; done") == "started\n"
    bash = {"name": "bash", "arguments": '{"command": "echo seen"}'}
    assert await _run_tool(bash, runtime) == "seen\n"
    assert "unknown tool" in await _run_tool({**bash, "name": "edit"}, runtime)
    assert "must be a JSON object" in await _run_tool({**bash, "arguments": "["}, runtime)


@needs_sandbox
async def test_unsupported_box_features_raise_errors_of_the_library(runtime):
    with pytest.raises(Refused):
        await runtime.read("missing.txt")
    await runtime.write("large.txt", b"too large")
    with pytest.raises(Refused):
        await runtime.read("large.txt", 3)
    with pytest.raises(Refused):
        await runtime.prepare_uv_script("print()")


def test_the_box_has_the_image_and_the_limits_of_the_task():
    spec = box_spec(Settings(image="acme/task:2", workdir="/src", memory=1.5, allow=[]))
    assert (spec.image, spec.working_folder, spec.limits.memory_mb) == ("acme/task:2", "/src", 1536)
    assert box_spec(Settings()).image is None
    with pytest.raises(SandboxError, match="GPU"):
        box_spec(Settings(gpu="1"))
