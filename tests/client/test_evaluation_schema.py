"""One field describes a setting: the command's option, the key of suites and what resuming allows follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import wander_client
from pydantic import ValidationError, create_model
from wander.types import Record
from wander_client.errors import UsageError
from wander_client.evaluate.options import CommandFlags
from wander_client.evaluate.schema import (
    EVAL,
    FREE,
    MODEL,
    SAMPLED,
    TABLES,
    Option,
    find_mentioned,
    options_in,
    parameters_in,
    settings_in,
    suite_keys,
)
from wander_client.evaluate.settings import EvaluationSettings, resume_settings
from wander_client.terminal.command import CommandLine

SOURCE = Path(wander_client.__file__).parent
DOCS = SOURCE.parent.parent / "docs"


class More(EvaluationSettings):
    """What an author writes to add two options: a field each, and nothing else anywhere."""

    top_k: Annotated[int | None, Option("--top-k", "likeliest tokens", MODEL, SAMPLED, min=1)] = None
    patience: Annotated[float, Option("--patience", "to wait", FREE, EVAL, metavar="SECONDS")] = 5.0


def test_a_new_field_is_an_option() -> None:
    seen: dict[str, Any] = {}

    def play(said: dict[str, Any]) -> int:
        seen.update({field.name: field.read(said) for field in find_mentioned(More, said)})
        return 0

    line, shown = CommandLine(play, parameters_in(More)), list[str]()
    assert line.run("play", ["acme/one", "--top-k", "3", "--patience", "2"], shown.append) == 0
    assert seen == {"environment": "acme/one", "top_k": 3, "patience": 2.0}
    with pytest.raises(UsageError, match="`--top-k 0`: a number of 1 or more"):
        line.run("play", ["acme/one", "--top-k", "0"], shown.append)
    assert line.run("play", ["--help"], shown.append) == 0
    assert "--top-k N  " in shown[0]
    assert "likeliest tokens" in shown[0]
    assert "--patience SECONDS" in shown[0]


def test_a_new_field_is_a_key_of_the_tables_that_it_names() -> None:
    found = {table for table in TABLES if "top_k" in suite_keys(More, table)}
    assert found == {"defaults", "eval", "models"}
    assert {table for table in TABLES if "patience" in suite_keys(More, table)} == {"defaults", "eval"}
    entry: Any = create_model("Entry", __base__=Record, **suite_keys(More, "eval"))
    assert entry.model_validate({"top_k": 2, "patience": 1}).top_k == 2
    for wrong in ({"top_k": 0}, {"patience": 0}, {"top_k": "many"}):
        with pytest.raises(ValidationError):
            entry.model_validate(wrong)


def test_a_new_field_may_change_when_a_run_goes_on_or_may_not() -> None:
    stored = More(environment="acme/one@1.0.0", model="m", top_k=2)
    settings = settings_in(More)
    assert settings["top_k"].differences({"top_k": 3}, stored.top_k) == [
        "`--top-k 3`: the run has `--top-k 2`"
    ]
    assert (settings["top_k"].free, settings["patience"].free) == (False, True)


def test_free_settings_change_and_bound_ones_are_named_with_what_the_run_has() -> None:
    stored = EvaluationSettings(environment="acme/one@1.0.0", model="m", serve="vllm")
    said = {"serve_timeout": 60.0, "serve_args": ["--dtype=half"], "device": "cpu", "price": "1/2"}
    resumed = resume_settings(stored, said, Path("run"), "wander eval --resume run")
    assert (resumed.serve_timeout, resumed.serve_args, resumed.device) == (60.0, ["--dtype=half"], "cpu")
    assert resumed.prices is not None
    assert (resumed.prices.prompt, resumed.prices.completion) == (1.0, 2.0)
    with pytest.raises(UsageError) as refused:
        resume_settings(stored, {"no_lock": True, "seed": 1, "sandbox": True}, Path("run"), "go on")
    assert str(refused.value) == "cannot resume `run`: these settings changed since it started"
    assert (refused.value.detail or "").splitlines() == [
        "`--seed 1`: the run has `--seed 0`",
        "`--no-lock`: the run was started without it",
        "`--sandbox`: the run has `--no-sandbox`",
    ]


@pytest.mark.parametrize("name", ["serve_timeout", "max_rollouts", "rollout_timeout", "serve_python"])
def test_a_setting_is_written_in_one_place(name: str) -> None:
    """It stands at its field; all other lines use its value."""
    rooms = [*(SOURCE / "evaluate").glob("*.py"), *(SOURCE / "suites").glob("*.py")]
    files = [*rooms, SOURCE / "commands" / "run" / "eval.py"]
    lines = [line.strip() for path in files for line in path.read_text().splitlines() if name in line]
    used = [line for line in lines if f"self.{name}" in line or f"settings.{name}" in line]
    assert len(lines) - len(used) == 1, lines
    assert any(line.startswith(f"{name}: Annotated[") for line in lines)


def test_every_key_of_a_suite_and_every_option_is_in_the_documents() -> None:
    told = "\n".join(path.read_text() for path in DOCS.glob("*.md"))
    suites = (DOCS / "evaluating.md").read_text()
    keys = {key for table in TABLES for key in suite_keys(EvaluationSettings, table)}
    assert {key for key in keys if key not in suites} == set()
    words = {option.word for option in options_in(EvaluationSettings, CommandFlags).values() if option.word}
    assert {word for word in words if word not in told} == set()


def test_a_misplaced_key_is_told_where_it_belongs(wander: Any, home: Path) -> None:
    (home / "suite.toml").write_text('[[eval]]\nenvironment = "."\nmodel = "m"\nconcurrency = 3\n')
    error = wander("eval", "suite.toml", "--json").json["error"]
    assert "`eval[1].concurrency` is no setting of a suite" in error["message"]
    assert error["hint"] == "`concurrency` belongs at the top of the file"
