"""`wander check --learn` reports the proof of learning next to the checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Wander

JUDGE_WRITING = str(Path(__file__).parents[3] / "environments" / "judge_writing")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_proof_that_shows_no_learning_is_not_an_error(wander: Wander, home: Path) -> None:
    result = wander("check", JUDGE_WRITING, "--learn", "--json")
    assert result.status == 0, result.err
    learning = result.data["learning"]
    assert result.data["passed"]
    assert (learning["environment"], learning["shown"], learning["curve"]) == ("judge-writing", False, [])
    assert "not deterministic" in learning["reason"]
    assert len(learning["digest"]) == 64
