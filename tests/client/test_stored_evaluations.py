"""Runs, suites and files of the first version load and go on: `tests/client/stored` holds what it wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.runs.lookup import SUITE_FILE
from wander_client.runs.own_records import write_command
from wander_client.settings import load_settings
from wander_client.suites.file import Suite, read_suite

STORED = Path(__file__).parent / "stored"


@pytest.fixture
def stored(home: Path) -> Path:
    """The stored files, as if they had been written in the working folder."""
    shutil.copytree(STORED, home, dirs_exist_ok=True)
    for path in home.rglob("*"):
        if path.suffix in (".json", ".toml"):
            path.write_text(path.read_text().replace("@HOME@", str(home)))
    for path in home.glob("**/command.json"):
        write_command(path, EvaluationSettings.model_validate_json(path.read_bytes()))
    write_command(
        home / "suite" / SUITE_FILE, Suite.model_validate_json((home / "suite" / SUITE_FILE).read_bytes())
    )
    return home


def test_a_resumed_run_plays_missing_rollouts(wander: Wander, stored: Path) -> None:
    before = json.loads((stored / "run" / "command.json").read_text())
    result = wander("eval", "--resume", "run", "--json")
    assert result.status == 0, result.out
    assert (result.data["resumed"], result.data["summary"]["rollouts"]) == (3, 6)
    assert result.data["summary"]["reward_mean"] == 1.0
    assert json.loads((stored / "run" / "command.json").read_text()) == before


def test_a_run_resumes_only_with_its_original_options(wander: Wander, stored: Path) -> None:
    same = (
        *(
            "./say-env",
            "-m",
            "scripted:say_env:slow",
            "-n",
            "6",
            "-r",
            "1",
            "--set",
            "shuffle=true",
            "--seed",
            "3",
        ),
        *(
            "-t",
            "0.5",
            "--set",
            "sampling.top_p=0.9",
            "--max-tokens",
            "16",
            "--set",
            "sampling.min_p=0.1",
            "-a",
            "size=7",
        ),
        *("-c", "1", "--set", "max_rollouts=1", "--workers", "1", "--set", "prices=1/2", "--out", "run"),
    )
    refused = wander("eval", "--resume", "run", *same, "--set", "strata=true", "-a", "size=8", "--json")
    assert refused.json["error"]["code"] == "other_settings"
    assert len(refused.json["error"]["detail"].splitlines()) == 2
    result = wander("eval", "--resume", "run", *same, "-c", "2", "--set", "rollout_timeout=50", "--json")
    assert result.status == 0, result.out
    settings = json.loads((stored / "run" / "command.json").read_text())["command"]
    assert (settings["concurrency"], settings["rollout_timeout"], settings["seed"]) == (2, 50.0, 3)


def test_a_resumed_suite_plays_missing_rollouts(wander: Wander, stored: Path) -> None:
    result = wander("eval", "--resume", "suite", "--json")
    assert result.status == 0, result.out
    assert [each["state"] for each in result.data["runs"]] == ["kept", "kept", "done"]
    assert [each["summary"]["rollouts"] for each in result.data["runs"]] == [4, 4, 8]


def test_a_suite_finds_its_earlier_runs_by_name(stored: Path) -> None:
    """They are made from the settings that change a rollout, the place of the environment included."""
    file = stored / "stopped.toml"
    file.write_text(file.read_text().replace("./say-env", "/tmp/mk/home/say-env"))
    found = {each.folder for each in read_suite(file, load_settings()).runs}
    assert found == {path.name for path in (stored / "suite").iterdir() if path.is_dir()}


def test_an_option_that_is_left_at_its_default_does_not_change_a_name(home: Path) -> None:
    (home / "plain.toml").write_text('[[eval]]\nenvironment = "a/b"\nmodel = "m"\nnum_examples = 2\n')
    options = "\n".join(['reasoning = "auto"', 'system = "merge"', "seed = 0", 'split = "eval"'])
    (home / "said.toml").write_text((home / "plain.toml").read_text() + options + "\n")
    (home / "other.toml").write_text((home / "plain.toml").read_text() + 'system = "keep"\n')
    plain, said, other = (
        read_suite(home / f"{name}.toml", load_settings()).runs[0].folder
        for name in ("plain", "said", "other")
    )
    assert plain == said != other


def test_every_key_of_a_stored_suite_keeps_its_meaning(home: Path) -> None:
    suite = read_suite(STORED / "every_key.toml", load_settings())
    expected = json.loads((STORED / "every_key.json").read_text())
    planned = expected.pop("planned")
    assert suite.evaluations_at_once == expected.pop("at_once")
    assert expected == {name: getattr(suite, name) for name in expected}
    assert [_told(each) for each in suite.runs] == planned


def _told(each: Any) -> dict[str, Any]:
    settings = each.settings.model_dump(mode="json", exclude_defaults=True)
    return {"name": each.name, "folder": each.folder, "where": each.where, "settings": settings}


def test_stored_settings_load_and_are_written_unchanged() -> None:
    text = (STORED / "every_setting.json").read_text()
    settings = EvaluationSettings.model_validate_json(text)
    assert settings.model_fields_set == set(EvaluationSettings.model_fields)
    assert settings.model_dump(mode="json") == json.loads(text)
