"""`wander eval suite.toml`: what a file means, what is wrong with one, playing, resuming, stopping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from command_line import Result, Wander
from wander_client.settings import load_settings
from wander_client.suites.file import read_suite

SOLVER, WRONG, BREAKS = (f"scripted:say_env:{name}" for name in ("solver", "wrong", "breaks_on_three"))


def write(home: Path, text: str) -> Path:
    file = home / "suite.toml"
    file.write_text(text)
    return file


def one(model: str = SOLVER, more: str = "") -> str:
    return f'[[eval]]\nenvironment = "./say-env"\nmodel = "{model}"\nnum_examples = 4\n{more}\n'


def echo(messages: list[dict[str, str]]) -> str:
    return messages[-1]["content"].removeprefix("say ")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (
            'evals = 1\n[[eval]]\nenvironment = "."\nmodel = "m"',
            "`evals` is not a setting",
            "did you mean `eval`?",
        ),
        (
            '[[eval]]\nenvironment = "."\nmodle = "m"',
            "`eval[1].modle` is not a setting",
            "did you mean `model`?",
        ),
        (
            '[models.a]\nmodel = "m"\nbase_ulr = "x"\n[[eval]]',
            "`models.a.base_ulr` is no",
            "did you mean `base_url`?",
        ),
        ("[defaults]\nnum_exampels = 3\n[[eval]]", "`defaults.num_exampels` is not", "`num_examples`?"),
        (one(more="rollouts = 0"), "eval[1]: `rollouts`", "/docs/evaluating"),
        (one().replace("= 4", '= "most"'), "eval[1]: `num_examples`", "/docs/evaluating"),
        (
            one(more="sampling = { temperature = -1 }"),
            "eval[1]: sampling argument `temperature`",
            "/docs/evaluating",
        ),
        ("name = 'x'", "`eval` is missing", "/docs/evaluating"),
        ("eval = []", "`eval`: must have 1 or more entries", "/docs/evaluating"),
        ("[[eval]]\nenvironment = 'x'", "suite.toml: eval[1]: `model` is missing", "add `model"),
        ("[[eval]", "not valid TOML", None),
        (one() + one(), "suite.toml: eval[2]: `say-env say_env:solver` is the same evaluation as", "seed"),
        (one(more='prices = "1/1/1"'), "eval[1]: `prices`", "0.15/0.60"),
        (one(more="budget_usd = 1.0"), "eval[1]: a budget in USD needs the model's prices", "prices"),
        (one("nowhere/model:x:y"), "eval[1]", ""),
        (one().replace("./say-env", "./none"), "suite.toml: eval[1]: ", ""),
        (one("hf:"), "suite.toml: eval[1]: `hf:` has no model name", "hf:ORGANIZATION/NAME"),
    ],
)
def test_errors_in_a_suite_name_their_key_before_playing(
    text: str, said: str, hint: str | None, wander: Wander, folder: Path, home: Path
) -> None:
    result = wander("eval", str(write(home, text)), "--json")
    error = result.json["error"]
    assert said in error["message"]
    if hint is None:
        assert error["hint"] is None
    else:
        assert hint in (error["hint"] or "")
    assert result.status in (2, 3, 4)
    assert not (home / "runs").exists()


def test_lists_expand_to_combinations_and_specific_settings_win(home: Path) -> None:
    suite = read_suite(
        write(
            home,
            """
            concurrency = 7
            [defaults]
            num_examples = 5
            rollouts = 2
            base_url = "http://default/v1"
            [models.a]
            model = "model-a"
            base_url = "http://a/v1"
            prices = "1/2"
            [[eval]]
            environment = ["acme/one", "./two"]
            model = ["a", "b"]
            seed = [1, 2]
            sampling = [{ temperature = 0.0 }, { temperature = 1.0, min_p = 0.1 }]
            num_examples = "all"
            arguments = { size = 3 }
            """,
        ),
        load_settings(),
    )
    assert len(suite.runs) == len({each.folder for each in suite.runs}) == 16
    first, last = suite.runs[0].settings, suite.runs[-1].settings
    assert (first.model, first.base_url, last.model, last.base_url) == (
        "model-a", "http://a/v1", "b", "http://default/v1",
    )  # fmt: skip
    assert first.prices is not None
    assert (first.prices.prompt, first.prices.completion, last.prices) == (1.0, 2.0, None)
    assert (first.num_examples, first.rollouts, first.concurrency) == (None, 2, 7)
    assert first.arguments == {"size": 3}
    assert last.environment == str(home / "two")
    assert last.sampling.given() == {"temperature": 1.0, "min_p": 0.1}
    assert suite.runs[-1].name == "two b temperature=1.0 min_p=0.1 seed=2"
    assert suite.runs[0].name == "acme/one a temperature=0.0 seed=1"


def test_two_endpoints_of_one_model_need_names(home: Path) -> None:
    def folders(one: str, other: str) -> list[str]:
        models = (
            f'[models.x]\nmodel = "m"\nbase_url = "{one}"\n[models.y]\nmodel = "m"\nbase_url = "{other}"\n'
        )
        text = f'{models}[[eval]]\nenvironment = "acme/one"\nmodel = ["x", "y"]\n'
        return [each.folder for each in read_suite(write(home, text), load_settings()).runs]

    before = folders("http://a/v1", "http://b/v1")
    assert len(set(before)) == 2
    assert folders("http://c/v1", "http://d/v1") == before


def test_every_evaluation_becomes_a_run_of_its_own(wander: Wander, folder: Path, home: Path) -> None:
    file = write(home, one() + one(WRONG) + one(BREAKS))
    result = wander("eval", str(file), "--json")
    assert result.status == 6, result.out
    runs = result.data["runs"]
    assert [each["state"] for each in runs] == ["done", "done", "partial"]
    assert [each["summary"]["reward_mean"] for each in runs] == [1.0, 0.0, 1.0]
    place = Path(result.data["suite_dir"])
    assert place.parent == home / "runs"
    assert json.loads((place / "suite.json").read_text())["command"]["schema"] == "wander.suite/1"
    for each in runs:
        manifest = json.loads((Path(each["run_dir"]) / "run.json").read_text())
        assert (manifest["run_id"], manifest["model"]["name"]) == (each["run_id"], each["model"])
    listed = wander("runs", "--json").data
    assert {each["run_id"] for each in runs} <= {
        json.dumps(listed)[i : i + 26] for i in range(len(json.dumps(listed)))
    }


def test_finished_unchanged_evaluations_are_not_repeated(wander: Wander, folder: Path, home: Path) -> None:
    with chat_endpoint(echo) as endpoint:
        echoing = one("echo", f'base_url = "{endpoint.base_url}"')
        file = write(home, echoing + one(BREAKS))
        first = wander("eval", str(file), "--json").data
        assert len(endpoint.requests) == 4
        file.write_text(echoing + one(BREAKS) + echoing.replace("num_examples = 4", "num_examples = 2"))
        again = wander("eval", str(file), "--resume", "--json")
        assert len(endpoint.requests) == 6
    assert [each["state"] for each in again.data["runs"]] == ["kept", "partial", "done"]
    assert again.data["suite_dir"] == first["suite_dir"]
    assert again.data["runs"][0]["run_id"] == first["runs"][0]["run_id"]
    assert again.data["runs"][0]["summary"] == first["runs"][0]["summary"]
    by_folder = wander("eval", "--resume", first["suite_dir"], "--json")
    assert [each["state"] for each in by_folder.data["runs"]] == ["kept", "partial", "kept"]


def test_evaluations_of_one_endpoint_share_its_call_limit(wander: Wander, folder: Path, home: Path) -> None:
    with chat_endpoint(echo, delay=0.02) as endpoint:
        entry = one("echo", f'base_url = "{endpoint.base_url}"\nrollouts = 3')
        file = write(home, "concurrency = 2\n" + entry + entry + "seed = 1\n" + entry + "seed = 2\n")
        result = wander("eval", str(file), "--json")
        assert result.status == 0, result.out
        assert endpoint.most_in_flight <= 2
    for each in result.data["runs"]:
        manifest = json.loads((Path(each["run_dir"]) / "run.json").read_text())
        assert manifest["endpoints"]["calls"] == 12


def test_a_failed_evaluation_does_not_stop_the_suite(wander: Wander, folder: Path, home: Path) -> None:
    file = write(home, one(more="arguments = { sizes = 3 }") + one())
    result = wander("eval", str(file), "--json")
    assert result.status == 6
    broken, good = result.data["runs"]
    assert (broken["state"], good["state"]) == ("failed", "done")
    assert "has no argument `sizes` (did you mean `size`?)" in broken["error"]["message"]
    assert not Path(broken["run_dir"]).exists()
    alone = wander("eval", str(write(home, one(more="arguments = { sizes = 3 }"))), "--json")
    assert alone.status == 2, "where all break, the status is that of the first"


def test_several_models_on_the_command_line_are_a_suite(wander: Wander, folder: Path) -> None:
    result = wander(
        "eval", "./say-env", "-m", SOLVER, "-m", WRONG, "-n", "3", "--fail-under", "0.5", "--json"
    )
    assert result.status == 1, result.out
    assert [each["summary"]["reward_mean"] for each in result.data["runs"]] == [1.0, 0.0]
    assert any("reward is below 0.5" in each for each in result.json["warnings"])


def test_a_dry_run_prints_the_plan_without_playing(wander: Wander, folder: Path, home: Path) -> None:
    file = write(
        home, one(more="rollouts = 3") + one(WRONG).replace("num_examples = 4", 'num_examples = "all"')
    )
    result = wander("eval", str(file), "--dry-run", "--json")
    assert result.status == 0, result.out
    assert [(each["examples"], each["rollouts"]) for each in result.data["evaluations"]] == [(4, 12), (8, 8)]
    assert [(each["calls_least"], each["calls_most"]) for each in result.data["evaluations"]] == [
        (12, 12),
        (8, 8),
    ]
    assert result.data["rollouts"] == 20
    alone = wander("eval", "./say-env", "-m", "echo", "-b", "http://127.0.0.1:9/v1", "-n", "2", "--dry-run")
    assert (alone.status, alone.out.splitlines()[1].split("\t")[-1]) == (0, "2")
    assert not (home / "runs").exists()


def test_options_that_belong_in_the_suite_file_are_rejected(wander: Wander, folder: Path, home: Path) -> None:
    file = write(home, one())
    result = wander("eval", str(file), "-n", "3", "--json")
    assert result.json["error"]["message"] == "a suite does not accept `num_examples` on the command line"
    argument = wander("eval", str(file), "-a", "size=3", "--json").json["error"]["message"]
    assert argument == "a suite does not accept `arguments` on the command line"
    failed = wander("eval", str(file), "--resume", "x", "--only-failed", "--json").json["error"]["message"]
    assert failed == "`--only-failed` does not apply to suites"
    assert wander("eval", str(file), "--resume", "--json").json["error"]["code"] == "no_suite"
    assert (
        "needs a run" in wander("eval", "./say-env", "-m", "x", "--resume", "--json").json["error"]["message"]
    )


@pytest.mark.full
def test_progress_goes_to_the_error_stream_in_plain_lines(wander: Wander, folder: Path, home: Path) -> None:
    result = wander("eval", str(write(home, one() + one(WRONG))))
    lines = result.out.splitlines()
    assert lines[0].split("\t")[:3] == ["evaluation", "rollouts", "reward"]
    assert lines[1].split("\t")[:3] == ["say-env say_env:solver", "4", "1"]
    assert len(lines) == 3
    assert "suite suite: 2 evaluations, 2 to play" in result.err
    assert "say-env say_env:wrong  done" in result.err


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_suite_resumes(number: signal.Signals, wander: Wander, folder: Path, home: Path) -> None:
    let_go = threading.Event()

    def hangs(messages: list[dict[str, str]]) -> str:
        """Answer three calls, and the next ones once the command has ended."""
        if len(endpoint.requests) >= 3:
            let_go.wait(120)
        return echo(messages)

    with chat_endpoint(hangs) as endpoint:
        entry = one("echo", f'base_url = "{endpoint.base_url}"').replace("= 4", "= 8")
        begin = "concurrency = 1\nevaluations_at_once = 1\n"
        file = write(home, begin + entry + entry + "seed = 1\n")
        command = [sys.executable, "-m", "wander_client", "eval", str(file), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 120
            while endpoint.in_flight == 0 or len(endpoint.requests) < 3:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            os.kill(process.pid, number)
            stopped = Result(0, *process.communicate(timeout=120))
        finally:
            process.kill()
            let_go.set()
        if number != signal.SIGKILL:
            assert process.returncode == 130, stopped.out + stopped.err
            assert stopped.json["error"]["code"] == "interrupted"
            assert "wander eval --resume" in stopped.json["error"]["hint"]
        again = wander("eval", str(file), "--resume", "--json")
    assert again.status == 0, again.out
    assert [each["summary"]["rollouts"] for each in again.data["runs"]] == [8, 8]
    assert [each["summary"]["reward_mean"] for each in again.data["runs"]] == [1.0, 1.0]
