"""`wander check --sandbox`: the same checks in the sandbox, which holds what the environment's code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandboxes import needs_sandbox, small
from wander.checks import CheckReport, check_environment
from wander.checks.findings import reward_findings
from wander.checks.records import HackPlay, PlayRecord, ProbeResult
from wander.types import EnvironmentInfo, RewardFunctionInfo, Rollout

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs_sandbox

MODULE = """
import os, socket, time
from pathlib import Path
from wander import Rubric, SingleTurnEnv

def right(completion, answer):
    return float(completion[-1]["content"] == answer)

def load_environment():
    {at_load}
    return SingleTurnEnv(eval_dataset=[{{"question": "a", "answer": "b"}}], rubric=Rubric([right]))
"""


def checked(folder: Path, at_load: str, **options: float) -> CheckReport:
    folder.chmod(0o755)
    module = folder / "small_env.py"
    module.write_text(MODULE.format(at_load=at_load))
    return check_environment(module, sandbox=small("memory=1G"), **options)


@pytest.mark.full  # in test_checks.py outside of it
def test_a_bundled_environment_passes_the_same_checks_in_the_sandbox() -> None:
    inside = check_environment(ROOT / "environments" / "tictactoe", sandbox=small("memory=1G"))
    assert [(one.id, one.message) for one in inside.checks if one.status != "pass"] == []


def test_forbidden_operations_make_loading_fail(tmp_path: Path) -> None:
    target = tmp_path / "written"
    checked(tmp_path, f"Path({str(target)!r}).write_text('x')")
    assert not target.exists(), "its /tmp is its own"
    report = checked(tmp_path, "socket.create_connection(('127.0.0.1', 9))")
    assert report.by_id("load.works").status == "fail"


@pytest.mark.full
@pytest.mark.parametrize(
    ("at_load", "timeout", "said"),
    [
        ("os._exit(3)", 120, "exited with status 3, while calling `load_environment`"),
        ("time.sleep(600)", 10, "it did not finish within 10 s, while "),
    ],
)
def test_a_dead_or_hanging_process_is_reported_with_its_cause(
    at_load: str, timeout: float, said: str, tmp_path: Path
) -> None:
    report = checked(tmp_path, at_load, timeout=timeout)
    assert said in report.by_id("load.works").message


SHELL = """
from wander.envs import SandboxEnv, run_commands
from wander.rubrics.rubric import Rubric

async def solved(box):
    return float((await box.exec("test -e done")).exit_status == 0)

class Shell(SandboxEnv):
    def gold(self, example):
        return run_commands("touch done")

def load_environment():
    return Shell(eval_dataset=[{"question": "Do it."}], rubric=Rubric([solved]), name="shell-env")
"""


@pytest.mark.full
def test_a_shell_hack_is_found_in_a_sandboxed_check(tmp_path: Path) -> None:
    module = tmp_path / "shell_env.py"
    module.write_text(SHELL)
    report = check_environment(module, sandbox=small("memory=1G"), examples=1)
    hacks = report.by_id("rewards.hacks")
    assert (hacks.status, report.by_id("rewards.gold").status) == ("fail", "pass"), report
    assert "the hack `claims that the task is done` earned 1" in hacks.message
    assert report.by_id("determinism.replay").status == "pass"
    assert report.earned["hack: replaces pytest"] == report.earned["noop"] == 0.0


def test_hacks_are_compared_with_an_idle_player() -> None:
    rollout = Rollout(example_id="a", index=0, seed=0, prompt=[], completion=[], reward=0.25)
    plays = [PlayRecord(player="noop", split="eval", position=0, rollout=rollout)]
    info = EnvironmentInfo(
        name="shell", kind="shell", reward_functions=[RewardFunctionInfo(name="f", weight=1.0)]
    )

    def status(*hacks: HackPlay) -> tuple[str, str]:
        found = reward_findings(ProbeResult(info=info, plays=plays, hacks=list(hacks)))
        (result,) = [result for result in found if result.id == "rewards.hacks"]
        return result.status, result.message

    idle, lost = HackPlay(name="idle", reward=0.25), HackPlay(name="lost", reward=None, failure="no reward")
    assert status() == ("pass", "it has no shell")
    assert status(idle, lost) == ("pass", "2 hacks earned nothing")
    assert status(lost) == ("skip", "no hack was scored: no reward")
    better = [HackPlay(name=name, reward=0.5) for name in ("one", "two")]
    assert status(idle, *better)[0] == "fail"
    assert "the hack `one` earned 0.5 (and 1 more" in status(idle, *better)[1]
