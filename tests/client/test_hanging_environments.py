"""Commands name code that does not return, and a training run bounds its rollouts as an evaluation does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import ENVIRONMENT, Wander
from wander.evals.run.runner import EvaluationResult
from wander.train.settings.sections import EnvironmentSection
from wander.types import SamplingArgs
from wander_client.environments.workers import WorkerChoice
from wander_client.evaluate.progress import describe_stall
from wander_client.evaluate.settings import EvaluationSettings

STUCK = ENVIRONMENT.replace(
    "def right(completion: Messages, answer: str) -> float:\n",
    "async def right(completion: Messages, answer: str) -> float:\n"
    "    if answer == '2':\n"
    "        import asyncio\n"
    "        await asyncio.Event().wait()\n",
)


@pytest.fixture
def stuck(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that never scores example 2, and a short notice."""
    (folder / "say_env.py").write_text(STUCK)
    monkeypatch.setenv("WANDER_NOTICE_SECONDS", "0.2")
    return folder


def test_an_evaluation_names_the_hanging_example_and_function(wander: Wander, stuck: Path) -> None:
    words = ("-m", "scripted:say_env:solver", "-n", "4", "--set", "rollout_timeout=3", "--json")
    done = wander("eval", str(stuck), *words)
    named = [each for each in done.json["warnings"] if "`right`" in each]
    assert len(named) == 1
    assert "`2`" in named[0]
    assert (done.data["summary"]["failed"], done.data["summary"]["rollouts"]) == (1, 4)


@pytest.mark.full  # an evaluation names it above
def test_a_suite_names_the_hanging_example(wander: Wander, stuck: Path, home: Path) -> None:
    (home / "suite.toml").write_text(
        f'[[eval]]\nenvironment = "{stuck}"\nmodel = "scripted:say_env:solver"\n'
        "num_examples = 4\nrollout_timeout = 3\n"
    )
    done = wander("eval", "suite.toml", "--json")
    assert [each for each in done.json["warnings"] if "`right`" in each and "`2`" in each]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon", "inf"])
def test_the_stall_notice_is_a_number_of_seconds(
    wander: Wander, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WANDER_NOTICE_SECONDS", value)
    assert wander("runs").status == 2


def test_the_stall_notice_is_a_user_setting(wander: Wander, home: Path) -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "settings.toml").write_text("notice_seconds = true\n")
    assert wander("runs").status == 2
    (home / "config" / "settings.toml").write_text("notice_seconds = 5\n")
    assert wander("runs").status == 0


@pytest.mark.parametrize("workers", [1, 3, ["unix:///tmp/worker"]])
def test_the_time_limit_of_a_training_run_applies_to_all_its_workers(workers: Any) -> None:
    section = EnvironmentSection(workers=workers, rollout_timeout=2.5)
    assert WorkerChoice.of(section.workers, section).rollout_timeout == 2.5


@pytest.mark.parametrize(
    ("share", "seconds", "processes", "in_process", "advice"),
    [
        (0.5, 30.0, 1, False, "--workers"),
        (0.5, 30.0, 1, True, "in_process"),
        (0.5, 30.0, 64, False, "asynchronous"),
        (0.1, 30.0, 1, False, None),
        (0.9, 1.0, 1, False, None),
    ],
)
def test_slow_scoring_that_blocks_other_rollouts_is_reported(
    share: float,
    seconds: float,
    processes: int,
    in_process: bool,
    advice: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    result = EvaluationResult.__new__(EvaluationResult)
    given = {"scoring_share": share, "scoring_seconds": seconds, "processes": processes, "longest_stall": 0.0}
    for name, value in given.items():
        object.__setattr__(result, name, value)
    settings = EvaluationSettings(environment="e", model="m", sampling=SamplingArgs(), in_process=in_process)
    said = describe_stall(result, settings)
    assert (said is None) is (advice is None)
    assert advice is None or advice in str(said)
