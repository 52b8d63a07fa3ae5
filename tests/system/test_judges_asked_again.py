"""A hub that has the judge asks it again: an honest run is confirmed, forged verdicts are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import chat_endpoint
from judging_hub import judging_hub, post, settled
from machine import Machine
from small_project import pyproject
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id

pytestmark = pytest.mark.full

BODY = """
from wander import ScriptedClient, SingleTurnEnv
from wander.rubrics.judge import JudgeRubric, judge_score

def load_environment():
    judge = ScriptedClient(lambda request: '{"verdict": "no"}', model="strict")
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(8)]
    rubric = JudgeRubric([judge_score], client=judge)
    return SingleTurnEnv(eval_dataset=rows, rubric=rubric, deterministic=False)
"""


def praise(line: dict[str, Any]) -> dict[str, Any]:
    """Put a better answer into the judge's mouth, with the reward that follows."""
    line["info"]["judge_answers"][0]["answer"] = '{"verdict": "yes"}'
    return line | {"reward": 1.0, "metrics": {"judge_score": 1.0}}


def test_forged_verdicts_are_found_and_honest_ones_confirmed(tmp_path: Path, mirror: str) -> None:
    cache = tmp_path / "uv-cache"
    with (
        chat_endpoint(lambda messages: '{"verdict": "no"}') as judge,
        chat_endpoint(lambda messages: f"it is {messages[-1]['content']}") as model,
        judging_hub(
            tmp_path / "hub",
            mirror,
            cache,
            WANDER_HUB_JUDGES=json.dumps(
                {"strict": {"base_url": judge.base_url, "key_variable": "STRICT_KEY"}}
            ),
            STRICT_KEY="operators-key",
        ) as hub,
    ):
        (tmp_path / "home").mkdir()
        home = Machine(tmp_path / "home", hub, mirror, {"UV_CACHE_DIR": str(cache)})
        folder = home.home / "graded"
        folder.mkdir()
        (folder / "pyproject.toml").write_text(pyproject("graded"))
        (folder / "README.md").write_text("# graded\n")
        (folder / "graded.py").write_text(BODY)
        home.wander("publish", folder, "--no-check")
        run = home.home / home.wander("eval", "admin/graded", "-m", "echo", "-b", model.base_url)["run_dir"]
        manifest = json.loads((run / "run.json").read_text())
        lines = [one.model_dump(mode="json") for one in RunFolder.open(run).rollouts()]
        honest = settled(hub, home.wander("post", run)["run_id"])
        forged = {**manifest, "run_id": new_run_id()}
        assert post(hub, forged, [praise(one) for one in lines]).status_code == 201
        found = settled(hub, forged["run_id"])
    assert honest["level"] == "rescored"
    assert "gave the same reward, within 0.1, to 8" in honest["level_reason"]
    assert found["level"] == "unverifiable"
    assert "to 0 (mean 1.0000 on record, 0.0000 now)" in found["level_reason"]
    assert judge.keys == {"Bearer operators-key"}
