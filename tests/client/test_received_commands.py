"""Folders that somebody sent ask for endpoints, programs and files: that is shown, and never obeyed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, chat_endpoint
from command_line import Result, Wander
from received_folders import change_manifest
from saved_runs import write_run
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.main import main
from wander_client.runs.own_records import KEY_FILE, write_command
from wander_client.suites.file import Suite, name_run

SOLVER, BREAKS = "scripted:say_env:solver", "scripted:say_env:breaks_on_three"


@pytest.fixture
def listener() -> Iterator[ChatEndpoint]:
    """An endpoint of the sender, which must hear nothing."""
    with chat_endpoint(lambda messages: "1") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def made(settled_folder: Path) -> Path:
    """A home with an environment, a run of it with a failed rollout, and the key that signed its record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(settled_folder.parent)
        assert main(["eval", "./say-env", "-m", BREAKS, "-n", "5", "--out", "begun"]) == 6
    return settled_folder.parent


@pytest.fixture
def begun(made: Path, home: Path) -> Path:
    """A run of this user that has a failed rollout to play again."""
    for name in ("say-env", "state", "begun"):
        shutil.copytree(made / name, home / name)
    return home / "begun"


@pytest.fixture
def received(begun: Path, home: Path) -> Path:
    """The same run as somebody sends it from another machine."""
    return send(begun, home / "received")


def send(begun: Path, place: Path, **asks: Any) -> Path:
    """Copy a run with a record that asks for something else, which no key of this machine signed."""
    shutil.copytree(begun, place)
    stored = json.loads((place / "command.json").read_text())
    command = {**stored["command"], **asks}
    (place / "command.json").write_text(json.dumps({"command": command, "signature": "0" * 64}))
    return place


def command_in(refused: Result) -> list[str]:
    """Return the command that the hint of a refusal gives."""
    found = re.search(r"`wander (.*)`", refused.json["error"]["hint"], re.DOTALL)
    assert found
    return shlex.split(found[1])


ASKS: dict[str, dict[str, Any]] = {
    "its endpoint": {"model": "m", "base_url": "@LISTENER@", "key_variable": "SECRET_KEY"},
    "a program that serves": {"model": "./m", "serve": "vllm", "serve_python": "@PROGRAM@"},
    "arguments of a server": {"model": "./m", "serve": "vllm", "serve_args": ["--plugin=@PROGRAM@"]},
    "a worker and a file": {"worker_addresses": ["tcp://127.0.0.1:9"], "worker_token_file": "/etc/hostname"},
    "variables": {"pass_env": ["SECRET_KEY"], "model": SOLVER},
    "another folder": {"environment": "@EVIL@"},
    "a player": {"players": {"other": "@EVIL@"}},
    "code of the package": {"model": "scripted:evil:run"},
    "a judge": {"arguments": {"judge_base_url": "@LISTENER@", "judge_model": "m"}},
    "this process": {"in_process": True},
    "no sandbox": {"sandbox": None, "no_lock": True},
}


@pytest.mark.parametrize("what", ASKS)
def test_settings_of_a_received_run_are_shown_but_not_used(
    what: str,
    wander: Wander,
    begun: Path,
    home: Path,
    listener: ChatEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-of-the-user")
    program = home / "program"
    program.write_text(f"#!/bin/sh\ntouch {home / 'ran'}\n")
    program.chmod(0o755)
    (home / "evil").mkdir()
    (home / "evil" / "evil.py").write_text(f"open({str(home / 'ran')!r}, 'w')\n")
    words = {"@LISTENER@": listener.base_url, "@PROGRAM@": str(program), "@EVIL@": str(home / "evil")}
    text = json.dumps(ASKS[what])
    for word, value in words.items():
        text = text.replace(word, value)
    received = send(begun, home / "received", **json.loads(text))
    refused = wander("eval", "--resume", "received", "--json")
    assert refused.status == 1
    assert refused.json["error"]["code"] == "foreign_record"
    for value in json.loads(text).values():
        if isinstance(value, str):
            assert value in refused.json["error"]["detail"]
    assert listener.requests == []
    assert not (home / "ran").exists()
    assert "--resume" in command_in(refused)
    assert not (received / "environment.log").exists()


def test_the_options_of_the_hint_continue_the_run(wander: Wander, received: Path, begun: Path) -> None:
    stored = json.loads((begun / "command.json").read_text())["command"]
    refused = wander("eval", "--resume", str(received), "--json")
    typed = command_in(refused)
    assert typed[:2] == ["eval", stored["environment"]]
    again = wander(*typed, "--json")
    assert again.status == 6, again.out
    assert (again.data["resumed"], again.data["summary"]["failed"]) == (4, 1)
    # From now on it is this user's own.
    assert wander("eval", "--resume", str(received), "--json").status == 6


@pytest.mark.parametrize(
    "words", [["-n", "6"], ["--seed", "7"], ["-a", "size=7"], ["-t", "0.5"], ["-r", "2"]]
)
def test_options_that_differ_from_the_run_are_rejected(
    words: list[str], wander: Wander, received: Path
) -> None:
    typed = ["eval", "./say-env", "-m", BREAKS, "-n", "5", *words, "--resume", str(received), "--json"]
    assert wander(*typed).json["error"]["code"] == "run_error"
    assert wander("eval", "--resume", str(received), "--json").json["error"]["code"] == "foreign_record"


def change(record: Path, **fields: Any) -> None:
    stored = json.loads(record.read_text())
    for name, value in fields.items():
        (stored["command"] if name in stored["command"] else stored)[name] = value
    record.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "http://127.0.0.1:9/v1"},
        {"concurrency": 33},
        {"signature": None},
        {"signature": "f" * 64},
        {"signature": ["x"]},
        {"signature": ""},
    ],
)
def test_a_changed_record_of_the_user_is_not_used(
    fields: dict[str, Any], wander: Wander, begun: Path
) -> None:
    change(begun / "command.json", **fields)
    refused = wander("eval", "--resume", str(begun), "--json")
    assert refused.json["error"]["code"] == "foreign_record"


def test_a_signature_is_valid_only_for_its_record(wander: Wander, begun: Path) -> None:
    assert wander("eval", "./say-env", "-m", SOLVER, "-n", "2", "--out", "other").status == 0
    other = json.loads(Path("other/command.json").read_text())["signature"]
    change(begun / "command.json", signature=other)
    assert wander("eval", "--resume", str(begun), "--json").json["error"]["code"] == "foreign_record"


def test_a_run_of_the_user_is_resumed_from_any_folder(wander: Wander, begun: Path, home: Path) -> None:
    assert wander("eval", "--resume", str(begun)).status == 6
    moved = begun.rename(home / "moved")
    assert wander("eval", "--resume", str(moved)).status == 6
    shutil.copytree(moved, home / "copied")
    assert wander("eval", "--resume", "copied").status == 6


def test_the_key_belongs_to_one_user(
    wander: Wander, begun: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = home / "state" / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "another"))
    assert wander("eval", "--resume", str(begun), "--json").json["error"]["code"] == "foreign_record"
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "state"))
    for content in (b"", b"short", os.urandom(32), b"x" * 4096):
        key.write_bytes(content)
        assert wander("eval", "--resume", str(begun), "--json").json["error"]["code"] == "foreign_record"


def test_processes_that_start_together_create_one_key(home: Path) -> None:
    code = "from wander_client.runs.own_records import _read_key; print(_read_key(make=True).hex())"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate()[0] for process in started}) == 1
    assert [path.name for path in (home / "state").iterdir()] == [KEY_FILE]


def test_without_a_signing_key_a_run_needs_its_options_again(
    wander: Wander, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "taken").touch()
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "taken" / "state"))
    words = ("eval", "./say-env", "-m", BREAKS, "-n", "5")
    assert wander(*words, "--out", "run").status == 6
    assert wander("eval", "--resume", "run", "--json").json["error"]["code"] == "foreign_record"
    assert wander(*words, "--resume", "run").status == 6


@pytest.mark.parametrize("name", ["environment.log", "rollouts.torn", "metrics.jsonl", "command.json", "x/y"])
def test_nothing_is_written_through_a_symbolic_link(
    name: str, wander: Wander, begun: Path, home: Path
) -> None:
    target = home / "profile"
    target.write_text("mine\n")
    (begun / name).parent.mkdir(exist_ok=True)
    (begun / name).unlink(missing_ok=True)
    (begun / name).symlink_to(target)
    for words in (("--resume", "begun"), ("./say-env", "-m", BREAKS, "-n", "5", "--resume", "begun")):
        refused = wander("eval", *words, "--json")
        assert refused.json["error"]["code"] == "run_error"
        assert name.partition("/")[2] in refused.json["error"]["message"]
    assert target.read_text() == "mine\n"


def test_the_manifest_may_not_name_another_environment(wander: Wander, home: Path) -> None:
    run = write_run(home / "runs" / "run", rewards=[1.0, 0.0])
    own = EvaluationSettings(environment="admin/say-env@0.1.0", model=SOLVER, num_examples=2)
    write_command(run / "command.json", own)
    for fields in (
        {"environment__owner": "evil"},
        {"environment__name": "other-env"},
        {"environment__version": "9.0"},
        {"environment__owner": None, "environment__path": str(home)},
        {"environment__owner": "../../x"},
    ):
        shutil.copytree(run, home / "changed")
        change_manifest(home / "changed", **fields)
        refused = wander("eval", "--resume", "changed", "--json")
        code = "run_error" if fields.get("environment__owner") == "../../x" else "other_environment"
        assert refused.json["error"]["code"] == code, refused.out
        shutil.rmtree(home / "changed")


SUITE = """
[models.a]
model = "scripted:say_env:solver"
[models.b]
model = "scripted:say_env:breaks_on_three"
[[eval]]
environment = "./say-env"
model = ["a", "b"]
num_examples = 5
"""


@pytest.fixture
def suite(wander: Wander, folder: Path, home: Path) -> Path:
    """A suite of this user with failed rollouts."""
    (home / "suite.toml").write_text(SUITE)
    assert wander("eval", "suite.toml", "--out", "runs/suite").status == 6
    return home / "runs" / "suite"


def test_a_received_suite_continues_from_the_file_of_the_user(
    wander: Wander, suite: Path, home: Path, listener: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    stored = json.loads((suite / "suite.json").read_text())
    for run in stored["command"]["runs"]:
        run["settings"] |= {"model": "m", "base_url": listener.base_url}
    (suite / "suite.json").write_text(json.dumps(stored))
    for run in suite.glob("*/command.json"):
        change(run, base_url=listener.base_url, environment="/evil")
    refused = wander("eval", "--resume", "runs/suite", "--json")
    assert refused.json["error"]["code"] == "foreign_record"
    assert listener.base_url in refused.json["error"]["detail"]
    assert wander("eval", "suite.toml", "--resume", "--json").json["error"]["code"] == "no_suite"
    again = wander("eval", "suite.toml", "--resume", "runs/suite", "--json")
    assert again.status == 6, again.out
    assert [each["state"] for each in again.data["runs"]] == ["kept", "partial"]
    assert listener.requests == []


def test_a_received_suite_of_models_is_continued_by_naming_them(
    wander: Wander, folder: Path, home: Path
) -> None:
    words = ("eval", "./say-env", "-m", SOLVER, "-m", BREAKS, "-n", "5")
    assert wander(*words, "--out", "suite").status == 6
    change(home / "suite" / "suite.json", signature=None)
    refused = wander("eval", "--resume", "suite", "--json")
    assert refused.json["error"]["code"] == "foreign_record"
    again = wander(*words, "--resume", "suite", "--json")
    assert [each["state"] for each in again.data["runs"]] == ["kept", "partial"]


def test_a_plan_shows_address_and_key_variable(
    wander: Wander, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "x")
    (home / "suite.toml").write_text(
        '[models.a]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nkey_variable = "OTHER_KEY"\n'
        '[[eval]]\nenvironment = "./say-env"\nmodel = ["a", "scripted:say_env:solver"]\n'
    )
    plan = wander("eval", "suite.toml", "--dry-run", "--json").data["evaluations"]
    assert [(each["base_url"], each["key_variable"]) for each in plan] == [
        ("http://127.0.0.1:9/v1", "OTHER_KEY"),
        (None, None),
    ]
    assert "http://127.0.0.1:9/v1\tOTHER_KEY" in wander("eval", "suite.toml", "--dry-run").out


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/b", "..", ".hidden", "a\nb", ""])
def test_runs_of_a_suite_are_in_its_folder(name: str, wander: Wander, home: Path) -> None:
    settings = EvaluationSettings(environment="/e", model="m")
    whole = Suite(name="s", concurrency=1, evaluations_at_once=1, runs=[name_run(settings, "here")])
    for number in range(2):
        shard = {"first": number, "end": number + 1, "of": 2}
        part = json.loads(whole.model_dump_json(by_alias=True)) | {"shard": shard}
        part["runs"][0]["folder"] = name
        place = home / f"part-{number}"
        place.mkdir()
        (place / "suite.json").write_text(json.dumps({"command": part, "signature": None}))
    refused = wander("runs", "merge", "part-0", "part-1", "--out", "out", "--json")
    assert refused.json["error"]["code"] == "bad_record"


def test_merging_received_shards_gives_a_received_run(wander: Wander, folder: Path, home: Path) -> None:
    for number in range(2):
        words = ("eval", "./say-env", "-m", BREAKS, "-n", "5", "--set", f"shard={number}/2")
        wander(*words, "--out", f"part-{number}")
    assert wander("runs", "merge", "part-0", "part-1", "--out", "own").status == 6
    assert wander("eval", "--resume", "own", "--json").status == 6
    change(home / "part-1" / "command.json", base_url="http://127.0.0.1:9/v1")
    assert wander("runs", "merge", "part-0", "part-1", "--out", "mixed").status == 6
    assert wander("eval", "--resume", "mixed", "--json").json["error"]["code"] == "no_run"


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ({"name": "gpt-x", "base_url": "@LISTENER@"}, "endpoint_of_another"),
        ({"name": "scripted:say_env:solver"}, "model_of_another"),
        ({"name": "/srv/models/x"}, "model_of_another"),
        ({"name": "./m"}, "model_of_another"),
        ({"name": "hf:evil/model"}, "model_of_another"),
        ({"name": "hub:evil/model"}, "model_of_another"),
    ],
)
def test_a_rerun_does_not_use_the_model_of_a_received_run(
    model: dict[str, Any],
    code: str,
    wander: Wander,
    received: Path,
    listener: ChatEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    given = {key: value.replace("@LISTENER@", listener.base_url) for key, value in model.items()}
    change_manifest(received, model={"kind": "x", **given})
    refused = wander("runs", "rerun", str(received), "--env", "say-env", "--json")
    assert refused.json["error"]["code"] == code
    assert "-m" in command_in(refused)
    assert listener.requests == []


@pytest.mark.parametrize("command", ["replay", "rerun"])
def test_no_code_is_imported_from_a_folder_that_a_manifest_names(
    command: str, wander: Wander, begun: Path, home: Path
) -> None:
    evil = home / "evil"
    evil.mkdir()
    (evil / "evil.py").write_text(f"open({str(home / 'ran')!r}, 'w')\n")
    (evil / "pyproject.toml").write_text('[project]\nname = "evil"\nversion = "1"\n')
    change_manifest(begun, environment__path=str(evil))  # the record beside it is the user's own
    refused = (
        wander("runs", command, str(begun), "-m", SOLVER, "--json")
        if command == "rerun"
        else wander("runs", command, str(begun), "--json")
    )
    assert refused.json["error"]["code"] == "folder_of_another"
    assert not (home / "ran").exists()


def test_the_folder_that_the_user_names_is_replayed(wander: Wander, begun: Path, received: Path) -> None:
    assert wander("runs", "replay", str(begun), "--json").data["same"] == 4
    assert wander("runs", "replay", str(received), "--json").json["error"]["code"] == "folder_of_another"
    assert wander("runs", "replay", str(received), "--env", "say-env", "--json").data["same"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"base_url": "http://127.0.0.1:9"},
        *(
            pytest.param({"path": path}, marks=pytest.mark.full)
            for path in ("/etc/passwd", "~/.ssh/id_rsa", "../x")
        ),
        {"deep": {"list": [1, {"judge_base_url": "https://x"}]}},
    ],
)
@pytest.mark.parametrize("command", ["replay", "rerun"])
def test_arguments_that_name_files_or_hosts_are_not_passed_on(
    command: str, arguments: dict[str, Any], wander: Wander, received: Path
) -> None:
    change_manifest(received, environment__arguments=arguments)
    refused = wander("runs", command, str(received), "--env", "say-env", "--no-sandbox", "--json")
    assert refused.json["error"]["code"] == "arguments_of_another"
    given = ("--args", '{"size": 8}') if command == "replay" else ("--args", '{"size": 8}', "-m", SOLVER)
    done = wander("runs", command, str(received), "--env", "say-env", "--no-sandbox", *given, "--json")
    assert "error" not in done.json, done.out
