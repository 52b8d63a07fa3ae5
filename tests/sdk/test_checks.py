"""Every check has an environment that fails it, and the bundled environments fail none."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wander.checks import CHECKS, CheckReport, check_environment
from wander.checks.package import check_package
from wander.checks.report import check_result
from wander.evals.replay import first_difference
from wander.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
from wander.reasoning import without_reasoning
from wander.rubrics.gold import write_answer
from wander.types import Example, Rollout

ROOT = Path(__file__).resolve().parents[2]
BROKEN = Path(__file__).parent / "broken_environments"

FAILS: dict[str, set[str]] = {
    "bad_row": {"dataset.rows"},
    "clock": {"sources.clock", "dataset.stable", "determinism.replay", "determinism.group"},
    "does_not_load": {"load.works"},
    "drifting_rows": {"dataset.access"},
    "endless": {"rollout.stops"},
    "entropy": {
        "sources.entropy",
        "dataset.stable",
        "dataset.access",
        "determinism.replay",
        "determinism.group",
    },
    "gold_fails": {"rewards.gold"},
    "group_index": {"determinism.group"},
    "hash_order": {"determinism.replay"},
    "hash_rows": {"dataset.stable", "determinism.replay"},
    "network": {"sources.network", "determinism.declared"},
    "no_rows": {"dataset.rows"},
    "no_weight": {"rewards.weights"},
    "numpy_random": {"sources.numpy"},
    "obeys_demands": {"rewards.injection"},
    "raises": {"rollout.faults"},
    "rewards_lists": {"rewards.injection"},
    "rewards_refusal": {"rewards.noop"},
    "rewards_silence": {"rewards.empty"},
    "same_ids": {"dataset.ids"},
    "seeded_globally": {"sources.random"},
    "shared_counter": {"determinism.group", "determinism.shared"},
    "unbounded": {"rewards.bounds", "rewards.noop", "rewards.injection"},
    "undeclared_judge": {"determinism.declared"},
    "unseeded_random": {
        "sources.random",
        "dataset.stable",
        "dataset.access",
        "determinism.replay",
        "determinism.group",
    },
}
"""Exactly which checks each broken environment fails."""

SAID = {
    "bad_row": ("dataset.rows", "column `info` is not a JSON value"),
    "clock": ("sources.clock", "`time.time` at clock.py:11 env_response (rollout"),
    "drifting_rows": ("dataset.access", "is different if it is requested first"),
    "endless": ("rollout.stops", "it did not end after 64 turns"),
    "entropy": ("sources.entropy", "`uuid.uuid4` at entropy.py"),
    "hash_order": ("determinism.replay", "message 1 of the completion is `choose one of"),
    "hash_rows": ("dataset.stable", "row 0 of `train`"),
    "network": ("sources.network", "`socket.connect to 127.0.0.1:9` at network.py:12 env_response"),
    "numpy_random": ("sources.numpy", "`numpy.random.randint` at numpy_random.py"),
    "raises": ("rollout.faults", "player `empty`: rubric: `right` raised"),
    "same_ids": ("dataset.ids", "share the example_id `row-0`"),
    "unbounded": ("rewards.bounds", "player `noop` earned 32, outside 0 to 1"),
    "undeclared_judge": ("determinism.declared", "its rubric uses a judge"),
    "unseeded_random": ("sources.random", "`random.choice` at unseeded_random.py"),
}
WITH_EXAMPLE = {"dataset.rows", "dataset.ids", "dataset.stable", "dataset.access", "rollout.stops"} | {
    check for check in CHECKS if check.startswith("rewards.")
} - {"rewards.weights"}


def checked(path, **options):
    return check_environment(path, rows=20, examples=1, **options)


def failed(report):
    return {check.id for check in report.failed}


QUICK = {"bad_row", "does_not_load", "endless", "hash_order", "rewards_silence", "unseeded_random"}
"""One of each kind; the others take the same way."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in sorted(FAILS)]
)
def test_a_broken_environment_fails_exactly_the_expected_checks(name):
    report = checked(BROKEN / f"{name}.py")
    assert failed(report) == FAILS[name]
    assert [check.id for check in report.checks] == list(CHECKS)
    if name in SAID:
        check, text = SAID[name]
        assert text in report.by_id(check).message
    for check in report.failed:
        assert check.message
        assert check.doc
        assert check.example_id is not None or check.id not in WITH_EXAMPLE or name == "no_rows"


@pytest.mark.full
def test_a_hanging_rollout_is_stopped_and_named():
    started = time.monotonic()
    report = checked(BROKEN / "hangs.py", timeout=12)
    assert time.monotonic() - started < 200
    assert failed(report) == {"rollout.stops"}
    stops = report.by_id("rollout.stops")
    assert "while playing example `0`" in stops.message
    assert stops.example_id == "0"


def test_a_heavy_import_is_named(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    source = (BROKEN / "seeded_globally.py").read_text().replace("import random", "import random, tensorflow")
    (tmp_path / "heavy.py").write_text(source)
    report = checked(tmp_path / "heavy.py")
    assert failed(report) == {"load.light", "sources.random"}
    assert report.by_id("load.light").message == "importing it imports `tensorflow`"


def test_an_environment_that_kills_its_process_is_named(tmp_path):
    (tmp_path / "killed.py").write_text("import os\ndef load_environment():\n    os._exit(3)\n")
    report = checked(tmp_path / "killed.py")
    assert failed(report) == {"load.works"}
    assert report.by_id("load.works").message == (
        "its process exited with status 3, while calling `load_environment`"
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["network", "undeclared_judge"])
def test_declared_properties_are_not_errors(name):
    report = checked(BROKEN / f"{name}.py", arguments={"deterministic": False})
    assert report.ok
    assert report.deterministic is False
    assert report.by_id("determinism.replay").status == "skip"
    # Scripted judges take the place of the one at an endpoint.
    is_declared = report.by_id("sources.network").message.startswith("declared: ")
    assert is_declared == (name == "network")


def test_a_scripted_judge_replaces_an_endpoint():
    report = checked(BROKEN / "undeclared_judge.py", arguments={"deterministic": False})
    assert {report.by_id(f"rewards.{name}").status for name in ("gold", "noop", "injection")} == {"pass"}
    assert (report.earned["gold"], report.earned["demand"]) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["reverse_text", pytest.param("tictactoe", marks=pytest.mark.full)])
def test_the_bundled_environments_pass_every_check(name):
    report = check_environment(ROOT / "environments" / name, examples=3, rows=50)
    assert [
        (check.id, check.status, check.message) for check in report.checks if check.status != "pass"
    ] == []
    earned = report.earned
    assert earned["gold"] > 0.5 > max(earned[player] for player in ("empty", "noop", "demand"))


def test_an_installed_environment_is_checked_by_its_name():
    report = check_environment("reverse-text", {"num_examples": 4}, examples=1)
    assert [(check.id, check.message) for check in report.checks if check.status != "pass"] == []
    assert report.environment == "reverse-text"
    assert report.by_id("dataset.rows").message == "8 read"
    assert 0 < report.by_id("load.works").seconds + report.by_id("dataset.stable").seconds < report.seconds


def test_a_report_is_json_with_stable_ids():
    report = checked(BROKEN / "does_not_load.py")
    told = json.loads(report.model_dump_json(by_alias=True))
    assert told["schema"] == "wander.check/1"
    assert [check["id"] for check in told["checks"]] == list(CHECKS)
    assert {check["status"] for check in told["checks"]} == {"skip", "fail"}
    assert CheckReport.model_validate(told) == report
    with pytest.raises(KeyError):
        report.by_id("no.such.check")


def test_an_unknown_argument_shows_the_message_of_the_environment():
    report = check_environment(ROOT / "environments" / "reverse_text", {"words": 1})
    assert "accepts `num_examples" in report.by_id("load.works").message


def test_the_environment_sees_only_the_variables_it_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    (tmp_path / "curious.py").write_text(
        "import os\n"
        "def load_environment():\n"
        "    raise ValueError(f\"{os.environ.get('SECRET_KEY')} {os.environ.get('GIVEN')}\")\n"
    )
    report = checked(tmp_path / "curious.py", variables={"GIVEN": "yes"})
    assert "`ValueError: None yes`" in report.by_id("load.works").message


PROJECT = """
[project]
name = "good-name"
version = "1.0.0"
description = "A task."
readme = "README.md"
license = "Apache-2.0"
dependencies = ["wander-sdk>=0.1"]
[project.entry-points."wander.environments"]
good-name = "good_name:load_environment"
"""


def package_findings(folder, project, readme="word " * 60):
    (folder / "pyproject.toml").write_text(project)
    (folder / "README.md").write_text(readme)
    return {check.id: check.status for check in check_package(folder, str(folder), Path(sys.executable))}


@pytest.mark.parametrize(
    ("check", "old", "new", "status"),
    [
        ("package.name", 'name = "good-name"\n', 'name = "no name"\n', "fail"),
        ("package.name", 'version = "1.0.0"', 'version = "one"', "fail"),
        ("package.name", 'version = "1.0.0"', "", "fail"),
        ("package.entry-point", 'good-name = "good_name:load_environment"', "", "fail"),
        ("package.entry-point", '"good_name:load_environment"', '"good_name"', "fail"),
        ("package.summary", 'description = "A task."', "", "fail"),
        ("package.readme", 'readme = "README.md"', 'readme = "OTHER.md"', "fail"),
        ("package.scaffold", 'description = "A task."', 'description = "TODO: say it"', "warn"),
        ("package.scaffold", "A task.", "Add two numbers.", "warn"),
        ("package.scaffold", "A task.", "This text came with `wander new`, TODO.", "fail"),
        ("package.license", 'license = "Apache-2.0"', "", "warn"),
        ("package.sdk", "wander-sdk>=0.1", "httpx", "warn"),
    ],
)
def test_each_gap_in_a_package_has_its_check(tmp_path, check, old, new, status):
    assert set(package_findings(tmp_path, PROJECT).values()) == {"pass"}
    assert old in PROJECT
    found = package_findings(tmp_path, PROJECT.replace(old, new))
    assert {name: each for name, each in found.items() if each != "pass"} == {check: status}


def test_a_readme_with_one_line_fails_its_check(tmp_path):
    assert package_findings(tmp_path, PROJECT, readme="# good-name")["package.readme"] == "warn"


def test_files_and_unknown_names_are_not_packages(tmp_path):
    (tmp_path / "env.py").write_text("")
    for folder, name in ((tmp_path / "env.py", "env.py"), (None, "no-such-environment")):
        found = check_package(folder, name, Path(sys.executable))
        assert {check.status for check in found} == {"skip"}
        assert [check.id for check in found] == [check for check in CHECKS if check.startswith("package.")]


def test_every_check_has_an_environment_that_fails_it():
    packages = {"package.name", "package.entry-point", "package.summary", "package.readme"}
    warned = {"package.license", "package.sdk", "package.scaffold"}
    cheats = {"prompt.answer", "dataset.splits", "sources.eval", "tools.answer", "rewards.judge"}
    cheats |= {"sources.process", "sources.sets"}  # test_checks_of_cheats.py
    cheats |= {"rewards.hacks"}  # test_checks_sandboxed.py
    covered = set().union(*FAILS.values()) | packages | warned | cheats | {"load.light"}
    assert covered == set(CHECKS)
    assert sorted(path.stem for path in BROKEN.glob("*.py")) == sorted({*FAILS, "hangs"})


@pytest.mark.parametrize(
    "parser", [Parser(), ThinkParser(), MaybeThinkParser(), XMLParser(["think", "answer"]), Parser(str.upper)]
)
@given(answer=st.text(st.characters(exclude_characters="<>{}\\"), min_size=1, max_size=20))
@example(answer="◁THINK▷")
def test_written_answers_are_found_by_the_parser(parser, answer):
    example = Example(example_id="0", index=0, seed=0, prompt=[], answer=answer)
    written = write_answer(parser, example)
    if written is not None:
        assert parser.parse_answer([{"role": "assistant", "content": written}]) == answer
    elif parser.extract_fn is None:
        assert answer != answer.strip() or without_reasoning(answer) != answer


ROLLOUT = Rollout(
    example_id="0",
    index=0,
    seed=0,
    prompt=[{"role": "user", "content": "q"}],
    completion=[{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    reward=0.5,
    metrics={"right": 0.5},
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"seconds": 3.0, "started_at": "2026"}, None),
        ({"reward": 0.5000001}, "the reward is `0.5000001`, not `0.5`"),
        ({"metrics": {}}, 'the metrics is `{}`, not `{"right":0.5}`'),
        ({"completion": ROLLOUT.completion[:1]}, "the completion has 1 messages, not 2"),
        (
            {"completion": [ROLLOUT.completion[0], {"role": "user", "content": "c"}]},
            "message 1 of the completion is `c`, not `b`",
        ),
    ],
)
def test_the_first_difference_is_named(changes, said):
    assert first_difference(ROLLOUT, ROLLOUT.model_copy(update=changes)) == said


@given(st.sampled_from(sorted(CHECKS)), st.sampled_from(["pass", "warn", "fail", "skip"]))
def test_only_a_failure_makes_a_report_not_ok(check, status):
    report = CheckReport(schema="wander.check/1", target="t", checks=[check_result(check, status)])
    assert report.ok == (status != "fail")


def test_reads_of_a_library_during_import_are_ignored(tmp_path):
    library = tmp_path / "site-packages" / "some_library.py"
    library.parent.mkdir()
    library.write_text(
        "import random, time\nSTARTED = time.time()\n\ndef roll():\n    return random.random()\n"
    )
    env = tmp_path / "uses_library.py"
    env.write_text(
        "import time\nimport some_library\nfrom wander import Rubric, SingleTurnEnv\n"
        "LOADED = time.time()\nROLLED = some_library.roll()\n\n"
        "def right(completion, answer) -> float:\n    return completion[-1]['content'] == answer\n\n"
        "def load_environment():\n"
        "    return SingleTurnEnv([{'question': 'One?', 'answer': 'one'}], rubric=Rubric([right]))\n"
    )
    report = check_environment(env, variables={"PYTHONPATH": str(library.parent)})
    found = {name: report.by_id(f"sources.{name}") for name in ("clock", "random")}
    assert found["clock"].status == "fail"
    assert "uses_library.py:4 <module>" in found["clock"].message
    assert "some_library" not in found["clock"].message
    assert found["random"].status == "warn"
    assert "through `some_library` at uses_library.py:5" in found["random"].message


def test_a_check_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {path for path in BROKEN.rglob("*") if "__pycache__" not in path.parts}
    checked(BROKEN / "no_rows.py")
    assert os.listdir(tmp_path) == []
    assert {path for path in BROKEN.rglob("*") if "__pycache__" not in path.parts} == before


def test_every_check_is_documented_with_its_advice():
    page = (ROOT / "docs" / "checks.md").read_text()
    assert [
        name for name, check in CHECKS.items() if f"| `{name}` | {check.title} | {check.doc} |" not in page
    ] == []
