"""Posted runs in the formats of other tools: the files that an export on the reader's machine gives."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from wander.evals.foreign_run import read_results
from wander.types import Rollout
from wander_hub.runs import exports

RUN = "0" * 25 + "1"


async def test_a_run_is_downloaded_in_other_formats(hub, run_of, tmp_path: Path, monkeypatch):
    manifest, rollouts = run_of(await hub.publish(), run_id=RUN)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    at = f"/api/v1/runs/{RUN}/exports"
    log = await hub.get(f"{at}/inspect")
    assert log.headers["content-disposition"] == f'attachment; filename="{RUN}.eval"'
    (tmp_path / "log.eval").write_bytes(log.content)
    whole = [Rollout.model_validate(rollout) for rollout in rollouts]
    found = read_results(tmp_path / "log.eval").rollouts
    assert [(each.key, each.reward, each.completion) for each in found] == [
        (each.key, each.reward, each.completion) for each in whole
    ]
    lines = (await hub.get(f"{at}/atif")).text.splitlines()
    assert [json.loads(line)["extra"]["reward"] for line in lines] == [each.reward for each in whole]
    (result,) = yaml.safe_load((await hub.get(f"{at}/eval-results")).text)
    summary = (await hub.get(f"/api/v1/runs/{RUN}")).json()["summary"]
    assert result["value"] == summary["reward_mean"]
    assert result["source"]["url"].endswith(f"/runs/{RUN}")
    assert (await hub.get(f"{at}/docx")).status_code == 422

    page = await hub.get(f"/runs/{RUN}", headers={"Accept": "text/html"})
    assert f'href="{at}/inspect"' in page.text
    monkeypatch.setattr(exports, "MOST_EXPORTED", len(rollouts) - 1)
    refused = await hub.get(f"{at}/atif")
    assert (refused.status_code, refused.json()["code"]) == (422, "run_too_large")
