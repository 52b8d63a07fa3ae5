"""The page that compares runs: the numbers of `wander compare`, and nothing that its reader may not see."""

from __future__ import annotations

import html
import re

import pytest
from wander.evals.stats.comparison import compare_runs
from wander.types import Rollout
from wander.wire import RunManifest
from wander_hub.runs.kept import KEPT
from wander_hub.web.run import compare

HTML = {"Accept": "text/html"}
OTHER = "<i>other</i>"


@pytest.fixture
async def posted(hub, make_wheel, run_of):
    """Two runs of one task set; returns them as (manifest, rollouts)."""
    sha256 = await hub.publish(make_wheel())
    made = []
    for number, (model, rewards) in enumerate(
        (("tiny", [0.0, 0.25, 0.5, 1.0, 1.0, 1.0]), (OTHER, [1.0, 0.5, 0.5, 1.0, 1.0, 0.0]))
    ):
        manifest, rollouts = run_of(
            sha256, run_id=f"01JRUNNUMBER{number}000000000000{number}", reward=rewards, model=model
        )
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
        made.append((manifest, rollouts))
    return made


async def show(hub, *runs, **headers):
    return await hub.client.get(
        "/runs/compare", params=[("run", one) for one in runs], headers=HTML | headers
    )


async def test_the_compare_page_agrees_with_the_command(hub, posted):
    (first, before), (second, after) = posted
    text = (await show(hub, first["run_id"], second["run_id"])).text
    found = compare_runs(
        RunManifest.model_validate(first),
        [Rollout.model_validate(one) for one in before],
        RunManifest.model_validate(second),
        [Rollout.model_validate(one) for one in after],
    )
    assert f"{found.wins} / {found.ties} / {found.losses}" in text
    assert html.escape(OTHER) in text
    assert OTHER not in text
    shown = re.findall(
        r"<h3>Example <span class=\"mono\">([^<]+)</span>: mean reward ([0-9.]+) → ([0-9.]+)</h3>", text
    )
    apart = sorted((one for one in found.by_example if one.difference), key=lambda one: -abs(one.difference))
    assert [name for name, *_ in shown] == [one.example_id for one in apart]
    for run in (first, second):
        assert f'href="/runs/{run["run_id"]}/rollouts/' in text
    as_listed = [run["run_id"][-10:] for run in (first, second)]
    assert (await show(hub, *as_listed)).text == text
    assert text.count("<circle") >= 3, "a dot for each pair of means, and one in the interval"


async def test_leaderboards_and_runs_link_to_the_comparison(hub, posted):
    board = (await hub.client.get("/alice/reverse-text/leaderboard", headers=HTML)).text
    assert len(re.findall(r'<input type="checkbox" name="run" value="01JRUN', board)) == 2
    assert '<form action="/runs/compare">' in board
    run = (await hub.client.get(f"/runs/{posted[0][0]['run_id']}", headers=HTML)).text
    assert 'action="/runs/compare"' in run


async def test_incomparable_runs_are_explained(hub, posted, make_wheel, run_of, monkeypatch):
    first = posted[0][0]["run_id"]
    for given in ([], [first], [first, first], [first, ""]):
        asked = await show(hub, *given)
        assert (asked.status_code, "Select two to six runs" in asked.text) == (200, True)
        kept = f'<a class="mono" href="/runs/{first}">' in asked.text, f'value="{first}"' in asked.text
        assert kept == (bool(given), bool(given)), "why, and the run that was named"
    assert (await show(hub, first, "01JRUNNOTTHERE000000000000")).status_code == 404
    sha256 = await hub.publish(make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"}))
    elsewhere = run_of(sha256, name="other", run_id="01JRUNELSEWHERE00000000000")
    assert (await hub.post_run(*elsewhere)).status_code == 201
    text = (await show(hub, first, elsewhere[0]["run_id"])).text
    assert "different environments" in text
    await show(hub, first, posted[1][0]["run_id"])
    monkeypatch.setattr(compare, "_MOST_BYTES", 100)
    assert (await show(hub, first, posted[1][0]["run_id"])).status_code == 200, "a run is read whole once"
    monkeypatch.setattr(KEPT, "get", lambda _, find: find())
    refused = await show(hub, first, posted[1][0]["run_id"], cookie="none=1")  # no page that is kept
    assert (refused.status_code, "wander runs compare" in refused.text) == (413, True)


async def test_a_withdrawn_run_is_not_compared(hub, posted):
    runs = [one["run_id"] for one, _ in posted]
    assert (await show(hub, *runs)).status_code == 200
    gone = await hub.client.delete(f"/api/v1/runs/{runs[1]}", params={"reason": "x"}, headers=hub.auth())
    assert gone.status_code == 200
    for given in (runs, runs[::-1]):
        answer = await show(hub, *given)
        assert (answer.status_code, "was withdrawn" in answer.text) == (410, True)


async def test_a_private_run_is_not_found_by_strangers(hub, posted):
    runs = [one["run_id"] for one, _ in posted]
    path = "/api/v1/environments/alice/reverse-text/visibility"
    assert (await hub.client.put(path, json={"private": True}, headers=hub.auth())).status_code == 200
    assert (await show(hub, *runs)).status_code == 404
    assert (await show(hub, *runs, **hub.auth())).status_code == 200
