"""Everything that must not work in the sandbox, tried in a real worker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from sandboxes import confined, needs_sandbox, small
from wander.errors import SandboxError
from wander.sandbox.probes import probes
from wander.worker.process.sandbox_check import bait, check_sandbox

BODY = """
import json
from wander import SingleTurnEnv
from wander.sandbox.probes import run

def load_environment(bait):
    outcomes = run(bait)
    rows = [{"question": name, "answer": json.dumps(each)} for name, each in outcomes.items()]
    return SingleTurnEnv(eval_dataset=rows, name="probing")
"""

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Any]:
    async def probed() -> dict[str, Any]:
        limits = ("processes=48",)
        with bait(small(*limits)) as prepared:
            folder = tmp_path_factory.mktemp("probes")
            async with confined(folder, *limits, body=BODY, arguments={"bait": prepared}) as environment:
                rows = await environment.examples("eval")
        return {str(row.prompt[-1]["content"]): json.loads(row.answer) for row in rows}

    return asyncio.run(probed())


@pytest.mark.parametrize("name", probes())
def test_the_sandbox_stops_every_probe(name, outcomes):
    outcome = outcomes[name]
    assert outcome["held"], f"{name}: {outcome['how']}"


def test_calls_are_stopped_by_the_filter(outcomes):
    calls = {name: each["how"] for name, each in outcomes.items() if name.startswith("call ")}
    assert len(calls) > 70
    assert set(calls.values()) <= {"EPERM", "ENOSYS"}
    assert {each["how"] for name, each in outcomes.items() if name.startswith("socket ")} == {"EAFNOSUPPORT"}
    assert outcomes["more processes"]["how"] == "EAGAIN"
    assert outcomes["a file too long"]["how"] == "EFBIG"
    assert outcomes["more than tmp holds"]["how"] == "ENOSPC"


def test_the_same_attempts_succeed_outside():
    """Else they would prove nothing."""
    secrets = ["secret file", "secret variable", "secret over loopback", "secret in host process"]
    names = [*secrets, "datagram pair", "socket UDP", "more processes", "descriptors of the worker"]
    with bait(small()) as prepared:
        command = [sys.executable, "-m", "wander.sandbox.probes"]
        asked = json.dumps({**prepared, "only": names})
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    found = {name: each["held"] for name, each in json.loads(done.stdout).items()}
    assert found == dict.fromkeys(names, False)


def test_the_self_test_reports_what_it_tried():
    report = check_sandbox()
    assert report.escaped == []
    assert {each.name for each in report.outcomes} == set(probes())
    assert len(report.profile_sha256) == 64


def test_the_self_test_explains_a_missing_sandbox(monkeypatch):
    monkeypatch.setattr("wander.sandbox.bubblewrap._ISOLATION", ("--no-such-option",))
    with pytest.raises(SandboxError, match="no-such-option"):
        check_sandbox()
