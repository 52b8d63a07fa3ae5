"""`wander runs compare` on two runs of a folder's environment."""

from __future__ import annotations

from pathlib import Path

from command_line import Wander


def evaluated(wander: Wander, folder: Path, function: str, *words: str) -> str:
    done = wander("eval", str(folder), "-m", f"scripted:say_env:{function}", "-n", "8", *words, "--json")
    return str(done.data["run_dir"])


def test_a_better_run_is_printed_with_its_examples(wander: Wander, folder: Path) -> None:
    before = evaluated(wander, folder, "wrong")
    after = evaluated(wander, folder, "breaks_on_three")
    done = wander("runs", "compare", before, after)
    assert done.status == 0, done.err
    assert "difference  +1.0000  [+0.1808, +1.0000]  p 0.016  clear" in done.out
    assert "examples    7: 7 better, 0 worse, 0 the same" in done.out
    assert "1 example skipped: not scored in both runs" in done.err
    data = wander("runs", "compare", before, after, "--json").data
    assert (data["significant"], data["wins"], data["differing"]) == (True, 7, [])
    assert len(data["by_example"]) == 7


def test_runs_that_differ_in_more_than_the_model_cause_a_warning(wander: Wander, folder: Path) -> None:
    before = evaluated(wander, folder, "solver")
    after = evaluated(wander, folder, "solver", "--seed", "3")
    done = wander("runs", "compare", before, after)
    assert done.status == 0
    assert "the runs differ in more than the model: seed" in done.err
    assert "within chance" in done.out
