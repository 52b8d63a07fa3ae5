"""`wander runs regrade`: stored rollouts in a changed environment."""

from __future__ import annotations

from pathlib import Path

from command_line import Wander
from wander_client.errors import OK, PARTIAL
from wander_client.python.run import Run


def test_rollouts_that_cannot_be_regraded_are_played_on_resume(wander: Wander, folder: Path) -> None:
    played = wander("eval", str(folder), "-m", "scripted:say_env:solver", "-n", "4", "--json")
    words = ("runs", "regrade", "--env", str(folder), played.data["run_dir"], "--json")
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace("== answer)", "== answer) / 2"))
    (plan,) = wander(*words, "--dry-run").data["runs"]
    assert (plan["graded"], plan["changed"], plan["complete"], plan["run_dir"]) == (4, 4, True, None)

    asked_again = 'f"say {n}"', 'f"please say {n}" if n == 2 else f"say {n}"'
    text = module.read_text().replace(*asked_again)
    module.write_text(text.replace('removeprefix("say ")', 'rpartition(" ")[2]'))
    done = wander(*words)
    (found,) = done.data["runs"]
    assert (done.status, found["graded"], sum(found["to_play"].values())) == (PARTIAL, 3, 1)
    again = Run(played.data["run_dir"]).regrade(folder)
    assert again.run is not None
    assert (again.counts.resumed, again.counts.graded, again.run.id) == (3, 0, found["after_run"])
    rest = wander("eval", "--resume", found["run_dir"], "--json")
    assert rest.status == OK, rest.err
    assert (rest.data["resumed"], rest.data["summary"]["reward_mean"]) == (3, 0.5)
