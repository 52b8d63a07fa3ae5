"""`wander eval --resume`: what contradicts the run is refused, in the words of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import chat_endpoint
from command_line import Result, Wander
from wander_client.errors import UsageError
from wander_client.evaluate.evaluation import find_changed_files, source_digests
from wander_client.evaluate.settings import EvaluationSettings, resume_settings
from wander_client.main import main

Resume = Callable[..., Result]
SOLVER = "scripted:say_env:solver"
RUN = (
    *("eval", "./say-env", "-m", "scripted:say_env:breaks_on_three", "-n", "4", "-t", "0.5", "-a", "size=6"),
    *("--set", "sampling.min_p=0.1", "--out", "mine"),
)


@pytest.fixture
def run_dir(wander: Wander, folder: Path, home: Path) -> Path:
    """A run of three examples, temperature 0.5, of which the third failed."""
    assert wander(*RUN).status == 6
    return home / "mine"


@pytest.fixture(scope="module")
def settled_run(settled_folder: Path) -> Path:
    """The same run, for tests that only read it."""
    assert main(RUN) == 6
    return settled_folder.parent / "mine"


@pytest.fixture
def resume(wander: Wander, run_dir: Path) -> Resume:
    def run(*words: str) -> Result:
        return wander("eval", "--resume", str(run_dir), *words)

    return run


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (["-n", "5"], "num_examples"),
        (["-n", "all"], "num_examples"),
        (["-r", "2"], "rollouts"),
        (["--seed", "7"], "seed"),
        (["--split", "train"], "split"),
        (["-t", "1"], "sampling"),
        (["--set", "sampling.top_p=0.9"], "sampling"),
        (["--max-tokens", "9"], "sampling"),
        (["--set", "sampling.min_p=0.2"], "sampling"),
        (["-m", SOLVER], "model"),
        (["-a", "size=7"], "arguments"),
        (["--set", "arguments.speed=1"], "arguments"),
        (["."], "environment"),
        (["--set", "device=cpu"], "device"),
    ],
)
def test_a_setting_that_differs_from_the_run_is_named(
    words: list[str], setting: str, settled_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--resume", str(settled_run), *words, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "other_settings"
    assert error["detail"].startswith(f"`{setting}`: requested")


def test_another_environment_folder_is_rejected(
    settled_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--resume", str(settled_run), "--out", "elsewhere"]) == 2
    assert "`--out elsewhere`" in capsys.readouterr().err


def test_the_error_names_every_difference_before_playing(resume: Resume, run_dir: Path) -> None:
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    result = resume("-n", "5", "--seed", "7", "--json")
    assert result.status == 2
    error = result.json["error"]
    assert error["code"] == "other_settings"
    assert error["detail"].splitlines() == [
        "`num_examples`: requested `5`, but the run has `4`",
        "`seed`: requested `7`, but the run has `0`",
    ]
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_settings_that_agree_or_change_no_rollout_are_accepted(resume: Resume) -> None:
    model = "scripted:say_env:breaks_on_three"
    same = ("./say-env", "-m", model, "-n", "4", "-t", "0.5", "-a", "size=6", "--seed", "0", "--out", "mine")
    result = resume(*same, "-c", "2", "--fail-under", "0.5", "--json")
    assert result.status == 6, result.out
    assert result.data["resumed"] == 3


def test_the_version_may_be_omitted_when_resuming() -> None:
    stored = EvaluationSettings(environment="acme/say@0.1.0", model="hf:a/b")
    run_dir = Path("mine")
    for environment in ("acme/say", "acme/say@0.1.0", "acme/say@latest", "acme/Say"):
        settings = resume_settings(stored, {"environment": environment, "model": ["a/b"]}, run_dir, "")
        assert settings == stored
    for environment in ("acme/say@0.2.0", "other/say", "."):
        with pytest.raises(UsageError):
            resume_settings(stored, {"environment": environment}, run_dir, "")


def test_changed_code_is_reported_and_allowed_by_an_option(resume: Resume, folder: Path) -> None:
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace('== "break"', '== "never again"'))
    refused = resume()
    assert refused.status == 1
    assert "the environment's files changed since the run started; its examples are the same" in refused.err
    assert "  say_env.py" in refused.err
    assert f"wander eval {folder} -m scripted:say_env:breaks_on_three" in refused.err
    assert "--allow-changed-code" in refused.err
    assert "sha256" not in refused.err
    allowed = resume("--allow-changed-code", "--json")
    assert allowed.status == 0, allowed.out
    assert "files changed since the run started: say_env.py" in allowed.json["warnings"][0]
    assert resume("--json").status == 0, "what was allowed once is what the run is made of"


def test_different_examples_are_always_rejected(resume: Resume, folder: Path) -> None:
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace('f"say {n}"', 'f"please say {n}"'))
    for words in ((), ("--allow-changed-code",)):
        refused = resume(*words, "--json").json["error"]
        assert refused["code"] == "environment_changed"
        assert refused["message"].startswith("the environment's files and examples changed")
        assert "start a new run" in refused["hint"]


def test_files_that_are_not_source_code_may_change(folder: Path) -> None:
    before = source_digests(folder)
    assert set(before) == {"say_env.py", "README.md", "pyproject.toml"}
    for name in (
        "__pycache__/x.pyc",
        ".git/config",
        "runs/a/run.json",
        "mine/run.json",
        "env/pyvenv.cfg",
        ".env",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert find_changed_files(before, source_digests(folder)) == []
    (folder / "data").mkdir()
    (folder / "data" / "rows.jsonl").write_text("{}")
    (folder / "README.md").unlink()
    (folder / "dangling").symlink_to("nowhere")
    assert find_changed_files(before, source_digests(folder)) == ["README.md", "dangling", "data/rows.jsonl"]


def test_a_training_run_resumes_only_with_its_own_settings(wander: Wander) -> None:
    result = wander("train", "--resume", "runs/x", "--steps", "5", "-m", "tiny")
    assert result.status == 2
    assert "cannot change `model`, `steps`" in result.err


def test_a_split_with_too_few_examples_is_reported(wander: Wander, folder: Path) -> None:
    said = "the eval split has 2 examples, fewer than 3: all are played"
    assert said in wander("eval", "./say-env", "-m", SOLVER, "-n", "3", "-a", "size=2").err
    assert "all are played" not in wander("eval", "./say-env", "-m", SOLVER, "-a", "size=2").err


def test_a_split_without_examples_leaves_no_run_behind(wander: Wander, folder: Path, home: Path) -> None:
    result = wander("eval", "./say-env", "-m", SOLVER, "-a", "size=0")
    assert result.status == 2
    assert "the eval split of `say-env` has no examples" in result.err
    assert "hint: " in result.err
    assert not (home / "runs").exists() or not list((home / "runs").iterdir())


def test_a_run_is_resumed_by_full_or_shortened_id(wander: Wander, folder: Path) -> None:
    first = wander("eval", "./say-env", "-m", SOLVER, "-n", "2", "--json").data
    again = wander("eval", "--resume", first["run_id"][:10], "--json")
    assert (again.data["run_id"], again.data["resumed"]) == (first["run_id"], 2)
    assert wander("eval", "--resume", "zzzzzz").status == 3
    refused = wander("train", "--resume", first["run_id"][:10])
    assert "is an evaluation run" in refused.err
    assert "to resume it, run `wander eval --resume" in refused.err


def test_resuming_at_another_endpoint_is_reported(wander: Wander, folder: Path) -> None:
    def say(messages: list[dict[str, Any]]) -> str:
        return str(messages[-1]["content"]).removeprefix("say ")

    with chat_endpoint(say) as first, chat_endpoint(say) as second:
        began = wander("eval", "./say-env", "-m", "echo", "-b", first.base_url, "-n", "2", "--json").data
        same = wander("eval", "--resume", began["run_dir"], "-b", first.base_url, "--json").json
        assert same["warnings"] == []
        other = wander("eval", "--resume", began["run_dir"], "-b", second.base_url, "--json").json
    assert f"started at `{first.base_url}` and continues at `{second.base_url}`" in other["warnings"][0]
