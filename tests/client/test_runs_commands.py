"""`wander runs show|diff|export|report|schema` on runs of a small environment, here and on a hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import HubRoom, Wander
from jsonschema import Draft202012Validator, FormatChecker
from saved_runs import write_run
from wander.evals.export import Format
from wander.evals.store.folder import RunFolder
from wander.types import Rollout, Turn
from wander_client.runs.text import rollout_lines


@pytest.fixture
def pair(home: Path) -> list[str]:
    """Two runs on the same four examples, by what they said and how it was rewarded."""
    return [
        str(write_run(home / "runs" / name, rewards=rewards, said=said, model=name))
        for name, rewards, said in (
            ("before", [0.0, 1.0, 0.5, 1.0], "one\ntwo\nthree"),
            ("after", [1.0, 1.0, 0.0, 1.0], "one\nTWO\nthree"),
        )
    ]


def test_show_prints_inputs_numbers_files_and_digest(wander: Wander, pair: list[str]) -> None:
    shown = wander("runs", "show", pair[0])
    assert shown.status == 0, shown.err
    for words in ("before on admin/say-env 0.1.0", "reward    0.6250", "seed         0", "run.json\t"):
        assert words in shown.out
    data = wander("runs", "show", pair[0], "--json").data
    assert len(data["sha256"]) == 64
    files = {one["name"]: one["sha256"] for one in data["files"]}
    manifest = (Path(pair[0]) / "run.json").read_bytes()
    assert files["run.json"] == hashlib.sha256(manifest).hexdigest()
    assert data["breakdown"]["summary"]["pass_rates"] == []


def test_show_works_for_a_run_without_rollouts(wander: Wander, pair: list[str]) -> None:
    for name in ("rollouts.jsonl.zst", "summary.json"):
        (Path(pair[0]) / name).unlink()
    shown = wander("runs", "show", pair[0], "--json")
    assert shown.status == 0, shown.err
    assert (shown.data["sha256"], shown.data["breakdown"]["summary"]["rollouts"]) == (None, 0)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "folder"])
def test_export_writes_rows_of_several_runs(wander: Wander, home: Path, pair: list[str], name: str) -> None:
    done = wander("runs", "export", *pair, "-o", name, "--json")
    assert done.status == 0, done.err
    assert (done.data["rows"], len(done.data["runs"])) == (8, 2)
    assert (home / name).exists()


def test_export_rejects_unknown_formats(wander: Wander, pair: list[str]) -> None:
    assert wander("runs", "export", pair[0], "-o", "rows.csv").status == 2
    unknown = wander("runs", "export", pair[0], "-o", "x", "--format", "csv")
    assert unknown.status == 2
    assert all(f"`{kind}`" in unknown.err for kind in get_args(Format))
    assert wander("runs", "export", "no/thing", "-o", "x.jsonl").status == 3


def test_report_as_text_and_markdown(wander: Wander, pair: list[str]) -> None:
    text = wander("runs", "report", *pair)
    assert "compared with before, example by example" in text.out
    assert wander("runs", "report", pair[0], "--markdown").out.startswith("## before on admin/say-env 0")
    done = wander("runs", "report", *pair, "--json")
    assert done.status == 0, done.err
    assert done.data["contrasts"][0]["comparison"]["examples"] == 4


def test_a_threshold_decides_which_rollouts_pass(wander: Wander, folder: Path) -> None:
    run = wander("eval", str(folder), "-m", "scripted:say_env:solver", "-n", "2", "-r", "3", "--json").data
    found = wander("runs", "show", run["run_dir"], "--pass-threshold", "0.5", "--json").data
    assert found["breakdown"]["summary"]["pass_threshold"] == 0.5
    assert [one["k"] for one in found["breakdown"]["summary"]["pass_rates"]] == [1, 2, 3]
    assert "pass^k" in wander("runs", "report", run["run_dir"]).out


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=FormatChecker())


def test_real_runs_match_the_schemas(hub: HubRoom, folder: Path) -> None:
    parts = ("run", "rollout", "summary")
    schemas = {part: json.loads(hub.wander("runs", "schema", part).out) for part in parts}
    done = hub.wander("eval", str(folder), "-m", "scripted:say_env:breaks_on_three", "-n", "5", "--json")
    run = RunFolder.open(Path(done.data["run_dir"]))
    run.resume()
    manifest = json.loads((run.path / "run.json").read_text())
    assert manifest["schema"] == "wander.run/1"
    validator(schemas["run"]).validate(manifest)
    validator(schemas["summary"]).validate(json.loads((run.path / "summary.json").read_text()))
    lines = [json.loads(line) for line in (run.path / "rollouts.jsonl").read_text().splitlines()]
    assert sorted(line["failure"] is None for line in lines) == [False, True, True, True, True]
    for line in lines:
        validator(schemas["rollout"]).validate(line)
    for broken in (
        {**manifest, "oddity": 1},
        {**manifest, "seed": "0"},
        {**manifest, "schema": "wander.run/2"},
    ):
        assert not validator(schemas["run"]).is_valid(broken)


def test_an_unknown_schema_is_reported(hub: HubRoom) -> None:
    assert "choose one of run, rollout, summary" in hub.wander("runs", "schema", "oddity").err


def test_show_prints_the_level_of_a_posted_run(hub: HubRoom, home: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[0.0, 1.0])
    here = hub.wander("runs", "show", str(run), "--json").data
    hub.publish(home / "say_env-0.1.0-py3-none-any.whl")
    (home / "token").write_text(hub.token)
    hub.wander("login", "--token-file", str(home / "token"))
    assert hub.wander("post", str(run)).status == 0
    run_id = RunFolder.open(run).manifest.run_id
    (home / "runs").rename(home / "gone")
    data = hub.wander("runs", "show", run_id, "--json").data
    assert (data["level"], data["posted_by"]) == ("complete", "admin")
    assert data["breakdown"] == here["breakdown"]
    assert data["sha256"] == here["sha256"], "the digest is that of the posted run"
    posted = hub.http.get(f"/api/v1/runs/{run_id}").json()["summary"]
    assert posted == here["breakdown"]["summary"], "the hub computes the same numbers"
    assert f"/runs/{run_id}" in hub.wander("runs", "show", run_id).out


def test_a_rollout_marks_messages_hidden_from_a_turn() -> None:
    say = {"role": "assistant", "content": "a"}
    rollout = Rollout(
        example_id="0",
        index=0,
        seed=0,
        prompt=[{"role": "user", "content": "q"}],
        completion=[say, {"role": "user", "content": "b"}, say],
        turns=[Turn(message=say, context_messages=1), Turn(message=say, context_messages=3, left_out=(1, 3))],
    )
    marks = [text for text, _ in rollout_lines(1, rollout) if text.startswith("-- assistant")]
    assert marks == [
        "-- assistant (turn 1, 0.00 s)",
        "-- assistant (turn 2, 0.00 s, without messages 2 to 3)",
    ]
