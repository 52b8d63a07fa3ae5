"""The choice of a backend."""

from __future__ import annotations

import pytest
from sandboxes import needs_sandbox
from wander.boxes.backends import choose_backend, start_box
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.policy import BACKEND, LIMITS
from wander.errors import SandboxError


@needs_sandbox
async def test_bubblewrap_is_the_default(monkeypatch):
    monkeypatch.delenv(BACKEND, raising=False)
    assert choose_backend(BoxSpec()).name == "bwrap"
    box = await start_box(BoxSpec())
    assert (await box.exec("echo hi")).output == "hi\n"
    await box.stop()


@needs_sandbox
async def test_commands_run_in_a_box_whose_limits_the_machine_lowers(monkeypatch):
    monkeypatch.setenv(LIMITS, "memory_mb=256,disk_mb=16,processes=32,seconds=60")
    box = await start_box(BoxSpec(limits=BoxLimits(memory_mb=3072, processes=512)))
    ran = await box.exec("ulimit -u")
    await box.stop()
    assert (ran.exit_status, ran.output) == (0, "32\n")


@pytest.mark.parametrize(
    ("value", "said"),
    [("none", "does not run boxes"), ("bwarp", "not a backend"), ("bwrap", "no images")],
)
async def test_a_box_that_cannot_be_started_is_an_error_with_a_hint(value, said, monkeypatch):
    monkeypatch.setenv(BACKEND, value)
    with pytest.raises(SandboxError, match=said) as raised:
        await start_box(BoxSpec(image="debian"))
    assert raised.value.hint
