"""`wander eval`, `view` and `runs` on a folder's environment: real worker processes, scripted models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from command_line import Result, Wander
from wander_client.environments.location import parse_arguments


def evaluate(wander: Wander, folder: Path, function: str = "solver", *words: str) -> Result:
    return wander("eval", str(folder), "-m", f"scripted:say_env:{function}", *words)


def test_a_perfect_player_gets_the_full_reward(wander: Wander, folder: Path, home: Path) -> None:
    result = evaluate(wander, folder, "solver", "-n", "4", "-r", "2", "--json")
    assert result.status == 0, result.out
    assert result.json["schema"] == "wander.eval/1"
    assert result.data["summary"]["reward_mean"] == 1.0
    assert result.data["summary"]["rollouts"] == 8
    run = Path(result.data["run_dir"])
    assert run.parent == home / "runs"
    assert run.name.startswith("say-env--say_env-solver--")
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["environment"]["path"] == str(folder)
    assert manifest["model"]["name"] == "scripted:say_env:solver"
    assert (run / "rollouts.jsonl.zst").exists()


def test_the_plan_comes_first_and_the_next_command_last(wander: Wander, folder: Path) -> None:
    result = evaluate(wander, folder, "solver", "-n", "4")
    assert result.out.startswith("reward  1.0000")
    lines = result.err.splitlines()
    assert lines[0].startswith(f"evaluating scripted:say_env:solver on {folder.name}: 4 examples x 1 = 4")
    assert lines[-2].startswith("next: wander view ")
    assert lines[-1].startswith("next: wander publish ")


@pytest.mark.parametrize(
    ("word", "value"),
    [("False", False), ("True", True), ("None", None), ("false", False), ("null", None), ("3", 3)]
    + [(text, text) for text in ("none", "FALSE", "Nonesuch", "")]
    + [('"None"', "None")],
)
def test_arguments_are_read_as_json_or_python_values(word: str, value: object) -> None:
    assert parse_arguments([f"x={word}"], None) == {"x": value}


def test_arguments_reach_the_environment(wander: Wander, folder: Path) -> None:
    by_pair = evaluate(wander, folder, "solver", "-n", "all", "-a", "size=3", "--json")
    by_object = evaluate(wander, folder, "solver", "-n", "all", "--set", "arguments={size = 3}", "--json")
    assert by_pair.data["summary"]["rollouts"] == by_object.data["summary"]["rollouts"] == 3
    assert by_pair.data["environment"]["arguments"] == {"size": 3}


def test_in_process_gives_the_same_result(wander: Wander, folder: Path) -> None:
    outside = evaluate(wander, folder, "breaks_on_three", "--json").data["summary"]
    inside = evaluate(wander, folder, "breaks_on_three", "--set", "in_process=true", "--json").data["summary"]
    for summary in (outside, inside):
        for name in ("seconds_mean", "usage"):
            summary.pop(name)
    assert inside == outside


def test_some_failed_rollouts_mean_status_6_and_keep_the_rest(wander: Wander, folder: Path) -> None:
    result = evaluate(wander, folder, "breaks_on_three", "--json")
    assert result.status == 6
    assert result.data["summary"]["failed"] == 1
    assert result.data["summary"]["reward_mean"] == 1.0
    assert "the reward function broke" in " ".join(result.json["warnings"])
    listed = wander("view", "--failed", "--json").data
    assert listed["matching"] == 1
    assert listed["rollouts"][0]["example_id"] == "3"
    shown = wander("view", "--rollout", "3/0")
    assert "failed at the rubric" in shown.out


@pytest.mark.parametrize("in_process", [False, True])
def test_a_bad_row_fails_alone_unless_strict(wander: Wander, folder: Path, in_process: bool) -> None:
    module = folder / "say_env.py"
    module.write_text(
        module.read_text().replace("    return Single", "    rows[2]['x'] = [chr(0xd800)]\n    return Single")
    )
    words = [
        "eval",
        str(folder),
        "-m",
        "scripted:say_env:solver",
        "-n",
        "4",
        *["--set", "in_process=true"] * in_process,
    ]
    done = wander(*words, "--json")
    assert (done.status, done.data["summary"]["failed"], done.data["summary"]["rollouts"]) == (6, 1, 4)
    assert "row 2 of the eval dataset: column `x`" in " ".join(done.json["warnings"])
    refused = wander(*words, "--set", "strict=true", "--out", "strict")
    assert (refused.status, Path("strict", "rollouts.jsonl").exists()) == (1, False)
    assert "row 2 of the eval dataset: column `x`" in refused.err


def test_a_score_below_the_minimum_means_status_1(wander: Wander, folder: Path) -> None:
    assert evaluate(wander, folder, "solver", "--fail-under", "1.0").status == 0
    result = evaluate(wander, folder, "wrong", "--fail-under", "0.5", "--json")
    assert (result.status, result.data["passed"]) == (1, False)


@pytest.mark.parametrize(("function", "retryable"), [("raises", True), ("breaks", False)])
def test_rollouts_that_all_fail_mean_status_6(
    function: str, retryable: bool, wander: Wander, folder: Path
) -> None:
    with (folder / "say_env.py").open("a") as module:
        module.write("\n\ndef breaks(request):\n    return 'break'\n")
    result = evaluate(wander, folder, function, "-n", "3", "--json")
    assert result.status == 6
    error = result.json["error"]
    assert (error["code"], error["retryable"]) == ("all_failed", retryable)


def test_replies_before_a_model_error_are_kept(wander: Wander, folder: Path) -> None:
    assert evaluate(wander, folder, "raises", "-n", "3").status == 6
    assert "no idea" in wander("view", "--rollout", "0").out


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("nope", "has no function `nope`"),
        ("solver:x", "say_env:solver"),
        ("", "does not name a function"),
        ("load_environment", "is not a player"),
    ],
)
def test_an_invalid_scripted_model_is_named(
    function: str, part: str, wander: Wander, folder: Path, home: Path
) -> None:
    result = evaluate(wander, folder, function)
    assert result.status == (2 if function in {"", "load_environment"} else 3)
    assert part in result.err
    assert not (home / "runs").exists()


def test_an_endpoint_gets_the_key_from_its_variable(
    wander: Wander, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    with chat_endpoint(lambda messages: messages[-1]["content"].removeprefix("say ")) as endpoint:
        result = wander(
            "eval", str(folder), "-m", "echo", "-b", endpoint.base_url, "-n", "5", "-t", "0.5",
            "--max-tokens", "9", "--set", "sampling.min_p=0.1", "--set", "key_variable=MY_KEY", "--json",
        )  # fmt: skip
    assert result.data["summary"]["reward_mean"] == 1.0
    assert result.data["model"]["base_url"] == endpoint.base_url
    assert endpoint.keys == {"Bearer sk-mine"}
    body = endpoint.requests[0]
    assert (body["temperature"], body["max_tokens"], body["min_p"]) == (0.5, 9, 0.1)
    assert "sk-mine" not in "".join(path.read_text() for path in Path(result.data["run_dir"]).glob("*.json"))


def test_an_endpoint_is_tested_once_before_an_evaluation(wander: Wander, folder: Path) -> None:
    """For a model that the endpoint does not list, asking costs a completion."""
    with chat_endpoint(lambda messages: messages[-1]["content"].removeprefix("say ")) as endpoint:
        result = wander("eval", str(folder), "-m", "unlisted", "-b", endpoint.base_url, "-n", "3", "--json")
    assert result.data["summary"]["reward_mean"] == 1.0
    asked = [body["messages"][-1]["content"] for body in endpoint.requests]
    assert (asked[0], len(asked)) == ("hi", 4)


def test_an_endpoint_that_is_down_means_status_5(wander: Wander, folder: Path) -> None:
    result = wander("eval", str(folder), "-m", "x", "-b", "http://127.0.0.1:9/v1", "--json")
    assert result.status == 5
    assert result.json["error"]["code"] == "endpoint_unreachable"
    assert result.json["error"]["message"] == "no response from `http://127.0.0.1:9/v1`: connection refused"


def test_an_invalid_endpoint_response_means_status_5(wander: Wander, folder: Path) -> None:
    with chat_endpoint(lambda messages: b'{"hello": 1}') as endpoint:
        result = wander("eval", str(folder), "-m", "x", "-b", endpoint.base_url, "-n", "all", "--json")
    assert result.status == 5


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["eval"], 2, "missing argument `ENVIRONMENT`"),
        (["eval", "./say-env"], 2, "missing option `--model`"),
        (["eval", "say-env", "-m", "x"], 2, "the owner is missing"),
        (["eval", "./nope", "-m", "x"], 3, "does not exist"),
        (["eval", "./say-env", "-m", "x", "--split", "test"], 2, "`--split test` is unknown"),
        (["eval", "./say-env", "-m", "x", "-n", "0"], 2, "-n"),
        (["eval", "./say-env", "-m", "x", "-a", "size"], 2, "KEY=VALUE"),
        (["eval", "./say-env", "-m", "x", "--set", "arguments=[1]"], 2, "`arguments`"),
        (["eval", "./say-env", "-m", "x", "--set", "sampling.top_p=7"], 2, "top_p"),
        (["eval", "./say-env", "-m", "x", "--set", "sampling=3"], 2, "not a table"),
        (["eval", "./say-env", "-m", "gpt-x"], 4, "OPENAI_API_KEY"),
        (["eval", "./say-env", "-m", "x", "-b", "nowhere"], 2, "not an endpoint URL"),
        (["eval", "./say-env", "-m", "./no-model"], 3, "no-model"),
        (["eval", "./say-env", "-m", "./say-env"], 3, "not a checkpoint"),
        (["eval", "./say-env", "-m", " "], 2, "name is empty"),
        (["eval", "./say-env", "-m", "scripted:say_env:solver", "-a", "bogus=1"], 2, "it accepts `size"),
        (["eval", "./say-env", "-m", "scripted:say_env:solver", "-a", "siz=1"], 2, "did you mean `size`?"),
        (["eval", "./say-env", "-m", "scripted:say_env:solver", "-a", "size=x"], 2, "`size` must be `int`"),
        (["check", "./say-env", "-a", "size=x"], 2, "`size` must be `int`"),
        (["check", "."], 3, "no environment in `.`"),
        (["eval", "--resume", "nothing"], 3, "`nothing` not found"),
        (["runs", "list", "nowhere"], 3, "there is no folder `nowhere`"),
        (["halp"], 2, "did you mean `help`?"),
        (["eval", "say-env", "-m", "x"], 2, "pass `./say-env` for the local folder"),
        (["view"], 3, "`wander eval` creates runs"),
        (["view", "x/y"], 3, "not found"),
        (["post"], 3, "`wander eval` creates runs"),
        (["env", "uninstall", "a/b"], 3, "not installed"),
    ],
)
def test_bad_input_has_its_exit_status_and_a_hint(
    words: list[str], status: int, part: str, wander: Wander, folder: Path
) -> None:
    result = wander(*words)
    assert result.status == status, result.err
    assert part in result.err
    assert result.out == ""
    error = wander(*words, "--json").json["error"]
    assert error["code"]
    assert error["message"][0] not in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("", "has no function `load_environment`"),
        ("def load_environment():\n    return 3\n", "returned a `int`"),
        ("def load_environment():\n    raise ValueError('no luck')\n", "no luck"),
        ("import nothing_of_the_kind\n", "nothing_of_the_kind"),
        ("def load_environment(:\n", "SyntaxError"),
    ],
)
def test_a_package_that_returns_no_environment_fails_with_the_cause(
    module: str, part: str, wander: Wander, folder: Path
) -> None:
    (folder / "say_env.py").write_text(module)
    for words in (["eval", str(folder), "-m", "x", "-b", "http://127.0.0.1:9/v1"], ["check", str(folder)]):
        result = wander(*words)
        assert result.status == 1
        assert part in result.err + result.out


def test_a_folder_with_a_run_is_not_overwritten(wander: Wander, folder: Path, home: Path) -> None:
    out = str(home / "mine")
    assert evaluate(wander, folder, "solver", "--out", out).status == 0
    before = (home / "mine" / "run.json").read_bytes()
    result = evaluate(wander, folder, "solver", "--out", out)
    assert result.status == 2
    assert "--resume" in result.err
    assert (home / "mine" / "run.json").read_bytes() == before


def test_a_finished_run_resumes_to_the_same_result(wander: Wander, folder: Path, home: Path) -> None:
    first = evaluate(wander, folder, "solver", "--out", str(home / "mine"), "--json").data
    again = wander("eval", "--resume", str(home / "mine"), "--json").data
    assert again["resumed"] == first["summary"]["rollouts"]
    assert again["summary"]["reward_mean"] == first["summary"]["reward_mean"]
    assert again["run_id"] == first["run_id"]


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "wander_client", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for_rollouts(process: subprocess.Popen[str], run: Path, count: int) -> None:
    """Return when the run has that many rollouts on disk."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        assert process.poll() is None, process.communicate()
        file = run / "rollouts.jsonl"
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not get {count} rollouts")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupted_evaluation_keeps_its_rollouts_and_resumes(
    number: signal.Signals, wander: Wander, folder: Path, home: Path
) -> None:
    run = home / "mine"
    process = start(home, "eval", str(folder), "-m", "scripted:say_env:slow", "-c", "1", "--out", str(run))
    wait_for_rollouts(process, run, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"wander eval --resume {run}" in err
    kept = (run / "rollouts.jsonl").read_bytes()
    refused = wander("post", str(run), "--json")
    assert refused.json["error"]["code"] in ("incomplete_run", "local_environment")
    result = wander("eval", "--resume", str(run), "--json")
    assert result.status == 0
    assert result.data["resumed"] == kept.count(b"\n") >= 2
    assert result.data["summary"]["rollouts"] == 8


def test_runs_and_view_read_what_eval_wrote(wander: Wander, folder: Path) -> None:
    evaluate(wander, folder, "wrong", "-n", "2")
    evaluate(wander, folder, "solver", "-n", "3")
    rows = wander("runs", "--json").data
    assert [(row["model"], row["rollouts"], row["reward_mean"]) for row in rows] == [
        ("scripted:say_env:solver", 3, 1.0),
        ("scripted:say_env:wrong", 2, 0.0),
    ]
    newest = wander("view", "--json").data
    assert newest["run_id"] == rows[0]["run_id"]
    assert [row["number"] for row in newest["rollouts"]] == [0, 1, 2]
    by_id = wander("view", rows[1]["run_id"], "--rollout", "1")
    assert "say 1" in by_id.out
    assert "expected: 1" in by_id.out
    assert wander("view", rows[1]["run_id"], "--rollout", "7").status == 3
    assert wander("view", "--rollout", "x").status == 2
    assert wander("view", "--sort", "luck").status == 2
    lines = wander("view", "--sort", "-reward").out.splitlines()
    assert lines[0].split("\t")[:4] == ["#", "example", "index", "reward"]


def test_a_wrong_argument_prints_no_traceback_and_leaves_no_run(
    wander: Wander, folder: Path, home: Path
) -> None:
    result = evaluate(wander, folder, "solver", "-a", "size=x")
    assert result.err.splitlines()[-1] == "hint: it accepts `size: int = 8`"
    assert "Traceback" not in result.err
    assert "trace" not in result.err
    assert not (home / "runs").exists()


def test_numeric_text_can_be_passed_as_text(wander: Wander, folder: Path) -> None:
    module = folder / "say_env.py"
    module.write_text(module.read_text().replace("size: int = 8", 'size: int = 8, level: str = "a"'))
    refused = evaluate(wander, folder, "solver", "-a", "level=3")
    assert refused.status == 2
    assert """in a shell `'"3"'`""" in refused.err
    assert evaluate(wander, folder, "solver", "-a", 'level="3"').status == 0


def test_an_exception_while_reading_rows_is_printed_with_its_type(wander: Wander, folder: Path) -> None:
    module = folder / "say_env.py"
    lazy = "ProceduralRows(lambda n: {'question': {}['gone']}, size)"
    text = module.read_text().replace("import Messages,", "import Messages, ProceduralRows,")
    module.write_text(text.replace('[{"question": f"say {n}", "answer": str(n)} for n in range(size)]', lazy))
    result = evaluate(wander, folder, "solver", "-n", "3")
    assert result.status == 1
    assert "KeyError" in result.err


def test_an_unset_variable_is_reported(wander: Wander, folder: Path) -> None:
    result = evaluate(wander, folder, "solver", "-n", "1", "--pass-env", "NO_SUCH_KEY", "--json")
    assert result.json["warnings"] == ["`NO_SUCH_KEY` is not set, so it is not passed to the environment"]


def test_a_single_rollout_is_singular(wander: Wander, folder: Path) -> None:
    assert "scored  1 of 1 rollout, 1 example, 0 failed" in evaluate(wander, folder, "solver", "-n", "1").out
    assert (
        "error: the only rollout failed; it is saved in" in evaluate(wander, folder, "raises", "-n", "1").err
    )


def test_a_single_turn_environment_reports_no_turn_limit(wander: Wander, folder: Path) -> None:
    shown = evaluate(wander, folder, "solver", "-n", "3")
    assert "reward  1.0" in shown.out
    assert "max_turns_reached" not in shown.out
    assert "max_turns_reached" not in wander("runs", "show").out
