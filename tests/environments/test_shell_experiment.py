"""The environment of `experiments/shell`: what the teacher earns, with and without its habit."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from sandboxes import needs_sandbox
from wander import ScriptedClient
from wander.errors import ConfigError
from wander.loading import load_path

FOLDER = Path(__file__).resolve().parents[2] / "experiments/shell/environment"


@pytest.mark.full  # plays twelve rollouts in boxes; tests/sdk/boxes play a shell
@needs_sandbox
async def test_the_teacher_runs_commands_and_its_habit_costs_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    teacher = importlib.import_module("number_files.players").teacher
    environment = load_path(FOLDER, num_examples=6)
    examples = environment.dataset("eval").examples(0, 6)
    for wrong, low, high in ((0.0, 1.0, 1.0), (1.0, 0.05, 0.6)):
        client = ScriptedClient(teacher(wrong))
        rollouts = [await environment.rollout(client, example) for example in examples]
        assert {rollout.metrics["called"] for rollout in rollouts} == {1.0}
        assert low <= sum(rollout.reward or 0.0 for rollout in rollouts) / 6 <= high


def test_no_two_questions_about_a_file_have_the_same_answer() -> None:
    for example in load_path(FOLDER).dataset("train").examples(0, 200):
        numbers = example.info["numbers"]
        assert len({numbers[0], numbers[-1], min(numbers), max(numbers)}) == 4


def test_impossible_files_are_rejected() -> None:
    with pytest.raises(ConfigError, match="give num_examples >= 1"):
        load_path(FOLDER, num_examples=0)
