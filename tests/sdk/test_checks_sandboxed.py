"""`wander check --sandbox`: the same checks in the sandbox, which holds what the environment's code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandboxes import needs_sandbox, small
from wander.checks import CheckReport, check_environment

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


def test_a_bundled_environment_passes_the_same_checks_inside() -> None:
    inside = check_environment(ROOT / "environments" / "tictactoe", sandbox=small("memory=1G"))
    outside = check_environment(ROOT / "environments" / "tictactoe")
    assert [(one.id, one.status) for one in inside.checks] == [(one.id, one.status) for one in outside.checks]
    assert not inside.failed


def test_what_the_code_may_not_do_fails_its_loading(tmp_path: Path) -> None:
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
def test_a_process_that_dies_or_hangs_is_told_with_what_it_did(
    at_load: str, timeout: float, said: str, tmp_path: Path
) -> None:
    report = checked(tmp_path, at_load, timeout=timeout)
    assert said in report.by_id("load.works").message
