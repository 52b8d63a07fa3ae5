"""Several phases in one file of settings, each resolved to all that it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wander.errors import ConfigError
from wander.train.phases import (
    DPOPhase,
    GRPOPhase,
    KTOPhase,
    ModelPhase,
    RolloutsPhase,
    SFTPhase,
    find_phase_model,
    phase_folders,
    read_phases,
)
from wander.train.records.files import BestCheckpoint, write_best
from wander.train.settings.toml_file import merge_tables

WHOLE = """
[model]
dtype = "float32"
[environment.arguments]
size = 3
[batch]
rollouts = 64
[schedule]
seed = 5

[[phases]]
name = "games"
kind = "rollouts"
[phases.rollouts]
model = "scripted:players:careful"
[phases.filter]
where = ["lost==0"]

[[phases]]
kind = "model"
[phases.tiny]
hidden = 64

[[phases]]
name = "warm-up"
kind = "sft"
[phases.schedule]
learning_rate = 2e-3

[[phases]]
name = "one"
kind = "grpo"
[phases.schedule]
steps = 7

[[phases]]
name = "two"
kind = "grpo"
[phases.environment.arguments]
opponent = "best"
[phases.batch]
rollouts = 128
"""


DPO = '[model]\npath = "a"\n[[phases]]\nkind = "dpo"\n'
"""The beginning of a file whose only phase is this one."""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def test_a_phase_overrides_the_shared_sections(tmp_path: Path) -> None:
    games, model, warm_up, one, two = read_phases(written(tmp_path, WHOLE)) or []
    assert isinstance(games, RolloutsPhase)
    assert games.settings.environment.arguments == {"size": 3}
    assert games.settings.filter.where == ["lost==0"]
    assert isinstance(model, ModelPhase)
    assert (model.name, model.transcripts, model.settings.tiny.hidden) == ("model", "phase:games", 64)
    assert isinstance(warm_up, SFTPhase)
    assert (warm_up.rows, warm_up.settings.model.path) == (["phase:games"], "phase:model")
    assert (warm_up.settings.schedule.seed, warm_up.settings.schedule.learning_rate) == (5, 2e-3)
    assert isinstance(one, GRPOPhase)
    assert isinstance(two, GRPOPhase)
    assert (one.settings.model.path, two.settings.model.path) == ("phase:warm-up", "phase:one")
    assert (one.settings.schedule.steps, one.settings.batch.rollouts) == (7, 64)
    assert (two.settings.schedule.steps, two.settings.batch.rollouts) == (100, 128)
    assert two.settings.environment.arguments == {"size": 3, "opponent": "best"}


def test_a_phase_can_have_its_own_loss(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[model]\npath = "a"\n[[phases]]\nkind = "rloo"\nalgorithm = { kl = 0.1 }\n'
        '[[phases]]\nkind = "distill"\nteacher = { path = "phase:rloo" }\n'
    )
    rloo, distill = read_phases(tmp_path / "run.toml") or []
    assert isinstance(rloo, GRPOPhase)
    assert isinstance(distill, GRPOPhase)
    assert (rloo.settings.algorithm.loss, rloo.settings.algorithm.kl) == ("rloo", 0.1)
    assert distill.settings.algorithm.loss == distill.name == "distill"
    assert (distill.settings.model.path, distill.settings.teacher.path) == ("phase:rloo", "phase:rloo")


def test_overrides_reach_shared_sections_and_those_of_a_phase(tmp_path: Path) -> None:
    overrides = ["batch.group_size=4", "phases.one.schedule.steps=2"]
    phases = read_phases(written(tmp_path, WHOLE), overrides, model={"device": "cpu"}) or []
    one = phases[3]
    assert isinstance(one, GRPOPhase)
    assert (one.settings.batch.group_size, one.settings.schedule.steps) == (4, 2)
    assert one.settings.model.device == "cpu"


def test_a_file_without_phases_has_none(tmp_path: Path) -> None:
    assert read_phases(written(tmp_path, '[model]\npath = "a"\n')) is None


def test_the_first_phase_begins_with_the_shared_model(tmp_path: Path) -> None:
    text = '[model]\npath = "start"\n[[phases]]\nkind = "grpo"\n[[phases]]\nkind = "rollouts"\n'
    first, second = read_phases(written(tmp_path, text)) or []
    assert isinstance(first, GRPOPhase)
    assert isinstance(second, RolloutsPhase)
    assert first.settings.model.path == "start"
    assert second.settings.rollouts.model == "phase:grpo", "the policy's own rollouts, to learn from the best"


def test_a_phase_that_plays_and_learns_becomes_two_phases(tmp_path: Path) -> None:
    text = """
    [model]
    path = "start"
    [sampling]
    temperature = 0.9
    max_tokens = 24
    [[phases]]
    name = "best"
    kind = "rejection"
    rollouts = { examples = 32 }
    filter = { min_reward = 0.5 }
    [[phases]]
    name = "prefer"
    kind = "kto"
    rounds = 2
    [phases.rollouts]
    per_example = 4
    seed = 7
    [phases.model]
    lora_rank = 4
    [[phases]]
    kind = "grpo"
    """
    phases = read_phases(written(tmp_path, text)) or []
    names = ["best-rollouts", "best", "prefer-1-rollouts", "prefer-1", "prefer-rollouts", "prefer", "grpo"]
    assert [phase.name for phase in phases] == names
    assert [phase.kind for phase in phases] == [
        "rollouts",
        "sft",
        "rollouts",
        "kto",
        "rollouts",
        "kto",
        "grpo",
    ]
    tries, best, first_tries, first, second_tries, second, grpo = phases
    assert isinstance(tries, RolloutsPhase)
    players = tries.settings.rollouts
    assert (players.model, players.examples, players.per_example) == ("start", 32, 8)
    assert (players.temperature, players.max_tokens) == (0.9, 24)
    assert (tries.settings.filter.per_example, tries.settings.filter.min_reward) == (1, 0.5)
    assert isinstance(best, SFTPhase)
    assert (best.rows, best.settings.model.path) == (["phase:best-rollouts"], "start")
    assert isinstance(first_tries, RolloutsPhase)
    assert isinstance(second_tries, RolloutsPhase)
    assert isinstance(first, KTOPhase)
    assert isinstance(second, KTOPhase)
    assert (first_tries.settings.rollouts.model, first.settings.model.path) == ("phase:best", "phase:best")
    assert second_tries.settings.rollouts.model == second.settings.model.path == "phase:prefer-1"
    assert (first_tries.settings.rollouts.seed, second_tries.settings.rollouts.seed) == (7, 8)
    assert first_tries.settings.filter.keep_repeats
    assert first.settings.model.lora_rank == second.settings.model.lora_rank == 4
    assert grpo.settings.model.path == "phase:prefer"


def test_preference_phases_can_use_existing_rows(tmp_path: Path) -> None:
    (only,) = read_phases(written(tmp_path, DPO + 'rows = ["a.jsonl", "b.jsonl"]\n')) or []
    assert isinstance(only, DPOPhase)
    assert only.rows == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[phases]]\nkind = "grpo"\n', "`model.path` of phase `grpo` in .* is missing"),
        ('[model]\npath = "a"\n[[phases]]\nkind = "sft"\n', "`rows` of phase `sft` in .* are missing"),
        ('[[phases]]\nkind = "model"\n', "`rows` of phase `model` in .* are missing"),
        ('[[phases]]\nkind = "dop"\n', "`kind` of phase `dop` in .* is `dop`"),
        ('[[phases]]\nkind = "dpo"\n', "`model.path` of phase `dpo` in .* is missing"),
        (
            '[model]\npath = "a"\n[[phases]]\nkind = "distill"\nteacher = { path = "phase:none" }\n',
            "uses `phase:none`, but no earlier phase",
        ),
        ('[model]\npath = "a"\n[[phases]]\nkind = "distill"\n', "needs `teacher.path`"),
        (
            '[model]\npath = "a"\n[[phases]]\nkind = "rloo"\nalgorithm = { loss = "dapo" }\n',
            "`algorithm.loss` of phase `rloo` in .* is `dapo`, but its `kind` is `rloo`",
        ),
        (DPO + "rounds = 0\n", "`rounds` of phase `dpo` in .* is `0`"),
        (DPO + "rounds = true\n", "`rounds` of phase `dpo` in .* is `True`"),
        (DPO + "filter = { whole = true }\n", "`filter` of phase `dpo` in .*: it compares all"),
        (DPO + "rollouts = { per_example = 1 }\n", "`rollouts.per_example` of phase `dpo` in .* is 1"),
        (DPO + 'rollouts = { model = "b" }\n', "`rollouts.model` of phase `dpo` in .*: the learning model"),
        (DPO + 'rows = "r.jsonl"\nrounds = 2\n', "unknown setting `rounds` of phase `dpo`"),
        (DPO + 'rows = "r.jsonl"\nrollouts = { examples = 2 }\n', "unknown setting `rollouts` of phase"),
        (DPO + "preference = { good_from = 1 }\n", "unknown setting `preference.good_from`"),
        (DPO + "batch = { rows = 1 }\n", "`batch.rows` of phase `dpo` in .*: must be more than 1"),
        (
            '[model]\npath = "a"\n[[phases]]\nkind = "rejection"\nrows = "r.jsonl"\n',
            "`rows` of phase `rejection` in .*: it learns from its own rollouts",
        ),
        ('[[phases]]\nname = "a"\n', "`kind` of phase `a` in .* is `None`"),
        ('[[phases]]\nkind = "grpo"\n[[phases]]\nkind = "grpo"\n', "two phases in .* are called `grpo`"),
        ('[[phases]]\nname = "a/b"\nkind = "grpo"\n', "`a/b` is not a valid name of a phase"),
        ('phases = 3\n', "`phases` in .* is not a list"),
        ('phases = []\n', "has no phase"),
        ('phases = [1]\n', "phase 1 in .* is not a table"),
        ('[bacth]\n[[phases]]\nkind = "grpo"\n', "there is no section `bacth`"),
        (
            '[model]\npath = "a"\n[[phases]]\nkind = "grpo"\n[phases.schedule]\nstps = 1\n',
            "unknown setting `schedule.stps` of phase `grpo`",
        ),
        (
            '[[phases]]\nkind = "sft"\nrows = "phase:games"\n[phases.model]\npath = "a"\n',
            "uses `phase:games`, but no earlier phase",
        ),
        (
            '[[phases]]\nname = "g"\nkind = "rollouts"\n[phases.rollouts]\nmodel = "a"\n'
            '[[phases]]\nkind = "grpo"\n[phases.model]\npath = "phase:g"\n',
            "uses `phase:g`, but no earlier phase",
        ),
    ],
)  # fmt: skip
def test_impossible_phases_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_phases(written(tmp_path, text))


def test_tables_are_merged_and_lists_are_replaced() -> None:
    below = {"a": {"x": 1, "y": {"z": 2}}, "l": [1, 2]}
    assert merge_tables(below, {"a": {"y": {"w": 3}}, "l": [3]}) == {
        "a": {"x": 1, "y": {"z": 2, "w": 3}},
        "l": [3],
    }
    assert below == {"a": {"x": 1, "y": {"z": 2}}, "l": [1, 2]}


def test_every_phase_has_a_folder_and_leaves_its_best_model(tmp_path: Path) -> None:
    phases = read_phases(written(tmp_path, WHOLE)) or []
    folders = phase_folders(tmp_path, phases)
    assert [folder.name for folder in folders.values()] == [
        "1-games",
        "2-model",
        "3-warm-up",
        "4-one",
        "5-two",
    ]
    folders["one"].mkdir()
    assert find_phase_model(folders["one"]).name == "model"
    write_best(folders["one"], BestCheckpoint(metric="a/b", mode="max", value=1.0, step=3))
    assert find_phase_model(folders["one"]).name == "best"


def test_reading_phases_loads_no_torch() -> None:
    code = "import sys, wander.train.phases; assert not {'torch', 'trl'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
