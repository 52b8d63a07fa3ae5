"""The environment of `experiments/calculator`: what the teacher earns, with and without its habit."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from wander import ScriptedClient
from wander.errors import ConfigError
from wander.loading import load_path

FOLDER = Path(__file__).resolve().parents[2] / "experiments/calculator/environment"


@pytest.mark.parametrize("shown", [False, True])
async def test_the_teacher_calls_the_tools(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    teacher = importlib.import_module("calculator.players").teacher
    environment = load_path(FOLDER, num_examples=24, show_examples=shown)
    examples = environment.dataset("eval").examples(0, 24)
    for wrong, low, high in ((0.0, 1.0, 1.0), (0.6, 0.4, 0.95)):
        client = ScriptedClient(teacher(wrong))
        rollouts = [await environment.rollout(client, example) for example in examples]
        assert {rollout.metrics["called"] for rollout in rollouts} == {1.0}
        assert low <= sum(rollout.reward or 0.0 for rollout in rollouts) / 24 <= high


@pytest.mark.parametrize("largest", [3, 30])
def test_new_questions_have_unused_numbers(largest: int) -> None:
    asked: dict[str, list[set[str]]] = {}
    for numbers in ("all", "known", "new"):
        environment = load_path(FOLDER, num_examples=200, largest=largest, numbers=numbers)
        asked[numbers] = [
            set(re.findall(r"\d+", str(example.prompt[-1]["content"])))
            for split in ("train", "eval")
            for example in environment.dataset(split).examples(0, 200)
        ]
    known = set().union(*asked["known"])
    assert all(numbers - known for numbers in asked["new"])
    assert set().union(*asked["new"]) == set().union(*asked["all"]) > known


@pytest.mark.parametrize("wrong", [{"largest": 2}, {"num_examples": 0}])
def test_impossible_questions_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="give num_examples >= 1 and largest >= 3"):
        load_path(FOLDER, **wrong)
