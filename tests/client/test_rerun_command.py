"""`wander runs rerun` and `wander runs verify`: runs of a folder's environment, and a run never posted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import HubRoom, Wander, make_wheel
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander_client.errors import FAILED, OK
from wander_client.evaluate.evaluation import read_settings_of
from wander_client.evaluate.rerun import kept_settings
from wander_client.evaluate.settings import DECIDED_AGAIN, EvaluationSettings

STORED = Path(__file__).parent / "stored"


def evaluated(wander: Wander, folder: Path, function: str, *words: str) -> str:
    done = wander("eval", str(folder), "-m", f"scripted:say_env:{function}", *words, "--json")
    return str(done.data["run_dir"])


def test_a_rerun_from_the_manifest_agrees_with_the_run(wander: Wander, folder: Path) -> None:
    first = evaluated(
        wander, folder, "solver", "-a", "size=40", "-n", "40", "-r", "2", "--seed", "5", "-t", "0.5"
    )
    done = wander("runs", "rerun", first)
    assert done.status == 0, done.err
    assert "the runs agree" in done.out
    assert "difference  +0.0000, 90% interval [" in done.out
    again = wander("runs", "rerun", first, "--json")
    before = json.loads((Path(first) / "run.json").read_text())
    after = json.loads((Path(again.data["run_dir"]) / "run.json").read_text())
    assert after["rerun_of"] == before["run_id"]
    assert len(after["example_ids"]) == 40
    same = ("example_ids", "rollouts_per_example", "seed", "sampling", "split", "task_set_sha256", "model")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert (again.data["verdict"], again.data["differing"]) == ("agrees", [])


@pytest.mark.full
def test_a_rerun_with_another_model_differs_or_is_inconclusive(wander: Wander, folder: Path) -> None:
    first = evaluated(wander, folder, "solver", "-a", "size=40", "-n", "40")
    done = wander("runs", "rerun", first, "-m", "scripted:say_env:wrong")
    assert done.status == FAILED
    assert "the runs differ" in done.out
    assert "the runs differ in more than the endpoint: model.name" in done.err
    few = evaluated(wander, folder, "solver", "-n", "4")
    done = wander("runs", "rerun", few, "--json")
    assert (done.status, done.data["verdict"], done.data["identical"]) == (OK, "agrees", 4)
    module = folder / "say_env.py"
    module.write_text(f"{module.read_text()}\n\ndef mute(request: Any) -> str:\n    return ''\n")
    few = evaluated(wander, folder, "wrong", "-n", "4")
    done = wander("runs", "rerun", few, "-m", "scripted:say_env:mute", "--json")
    assert (done.status, done.data["verdict"], done.data["needed"]) == (FAILED, "inconclusive", 29)


def test_a_rerun_keeps_all_settings_that_are_not_overridden(wander: Wander, folder: Path) -> None:
    chosen = "system=keep reasoning=keep strict=true max_rollouts=3 prices=1/2 budget_tokens=100000 workers=1"
    chosen += " call_timeout=50 rollout_timeout=60 pass_env=LANG rollouts=2 shuffle=true seed=5 shard=1/2"
    chosen += " split=train concurrency=3 cache=true sampling.temperature=0.5"
    first = evaluated(
        wander, folder, "solver", "-n", "4", *(word for pair in chosen.split() for word in ("--set", pair))
    )
    again = wander("runs", "rerun", first, "--json")
    assert again.status == OK, again.err
    before, after = (read_settings_of(Path(place)).command for place in (first, again.data["run_dir"]))
    differing = {
        name for name in EvaluationSettings.model_fields if getattr(before, name) != getattr(after, name)
    }
    assert differing <= {*DECIDED_AGAIN}
    assert (after.system, after.reasoning, str(after.shard)) == ("keep", "keep", "1/2")
    assert (after.concurrency, after.cache) == (3, False)


def test_each_setting_of_a_run_is_kept_or_overridden(home: Path) -> None:
    manifest = RunFolder.open(write_run(home / "runs" / "mine", rewards=[1.0])).manifest
    own = EvaluationSettings.model_validate_json((STORED / "every_setting.json").read_text())
    kept = kept_settings(manifest, own)
    assert sorted([*kept, *DECIDED_AGAIN]) == sorted(EvaluationSettings.model_fields)
    assert kept == {name: getattr(own, name) for name in kept}
    assert kept_settings(manifest, None).keys() <= kept.keys()


def test_different_examples_are_rejected_before_playing(wander: Wander, folder: Path) -> None:
    first = evaluated(wander, folder, "solver", "-n", "8")
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace("say {", "please say {"))
    done = wander("runs", "rerun", first, "--out", "again")
    assert done.status == FAILED
    assert "has different examples here" in done.err


@pytest.mark.parametrize("words", [[], ["--cancel"]])
def test_verifying_a_local_run_prints_how_to_post_it(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    place = write_run(home / "runs" / "mine", rewards=[1.0, 0.0])
    done = hub.wander("runs", "verify", str(place), *words)
    assert done.status == 3
    assert "it was not posted" in done.err
    assert f"hint: run `wander post {place}`" in done.err


def test_an_unknown_level_is_a_usage_error(wander: Wander, home: Path) -> None:
    place = write_run(home / "runs" / "mine", rewards=[1.0])
    for command in ("verify", "replay"):
        done = wander("runs", command, str(place), "--level", "best")
        assert done.status == 2
        assert "use `replayed`, `rescored` or `highest`" in done.err


@pytest.mark.full
def test_an_environment_that_depends_on_set_order_fails_replay(wander: Wander, folder: Path) -> None:
    module = folder / "say_env.py"
    module.write_text(
        module.read_text().replace('f"say {n}"', 'f"say {n}" + " ".join({*"abcdefghijklmnop"})')
    )
    run = evaluated(wander, folder, "wrong", "-n", "4")
    done = wander("runs", "replay", run)
    assert done.status == FAILED
    assert "the examples differ from those of the run" in done.out


def test_a_rerun_does_not_call_the_endpoint_of_the_submitter(
    hub: HubRoom, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get the prompts and the key of whoever repeats it."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-victim")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    hub.publish(make_wheel(tmp_path))
    place = write_run(home / "elsewhere" / "theirs", rewards=[1.0, 0.0], model="gpt")
    record = place / "run.json"
    manifest = json.loads(record.read_text())
    manifest["model"]["base_url"] = "http://evil.example/v1"
    record.write_text(json.dumps(manifest))
    posted = hub.wander("post", str(place), "--json")
    assert posted.status == 0, posted.err
    done = hub.wander("runs", "rerun", posted.data["run_id"], "--json")
    error = done.json["error"]
    assert (done.status, error["code"]) == (2, "endpoint_of_another"), done.out
    assert "-m gpt -b http://evil.example/v1" in error["hint"]
