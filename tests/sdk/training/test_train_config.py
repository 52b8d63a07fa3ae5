from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from wander.errors import ConfigError
from wander.train.config import GRPOSettings, SFTSettings, read_settings

MODEL = {"path": "smollm2"}


def fields(kind: type[BaseModel]) -> int:
    sections = [field.annotation for field in kind.model_fields.values()]
    return sum(len(section.model_fields) for section in sections if section is not None)


def test_a_users_settings_have_at_most_25_fields() -> None:
    assert fields(GRPOSettings) <= 25
    assert fields(SFTSettings) <= 25


def test_a_file_overrides_and_given_sections_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "grpo.toml"
    file.write_text(
        '[model]\npath = "a"\n[schedule]\nsteps = 5\nseed = 1\n[environment.arguments]\nsize = 3\n'
    )
    overrides = ["schedule.steps=7", "algorithm.loss=cispo", 'environment.arguments.name="x"']
    settings = read_settings(GRPOSettings, file, overrides, model={"path": "b"})
    assert settings.schedule.steps == 7
    assert settings.schedule.seed == 1
    assert settings.algorithm.loss == "cispo"
    assert settings.environment.arguments == {"size": 3, "name": "x"}
    assert settings.model.path == "b"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedule.setps=3"], r"`schedule\.setps`"),
        (["schedule.steps=many"], r"`schedule\.steps`"),
        (["batch.rollouts=30"], "multiple of group_size"),
        (["batch.rollouts=96"], "multiple of rows_at_once"),
        (["sampling.temperature=0"], r"`sampling\.temperature`"),
        (["steps=3"], "is no setting"),
        (["schedule.steps"], "is no setting"),
        (["algorithm.loss=ppo"], r"`algorithm\.loss`"),
    ],
)
def test_a_wrong_setting_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(GRPOSettings, None, overrides, model=MODEL)


def test_a_missing_model_and_a_broken_file_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`model`"):
        read_settings(GRPOSettings, None)
    with pytest.raises(ConfigError, match="cannot read"):
        read_settings(GRPOSettings, tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_settings(SFTSettings, tmp_path / "bad.toml")


def test_the_shipped_examples_are_valid() -> None:
    folder = Path(__file__).parents[3] / "examples" / "tictactoe"
    grpo = read_settings(GRPOSettings, folder / "grpo.toml", model=MODEL)
    assert grpo.batch.rollouts >= 128
    assert grpo.environment.arguments["num_groups"] == grpo.batch.groups
    assert read_settings(SFTSettings, folder / "sft.toml", model=MODEL).schedule.steps > 0


@pytest.mark.parametrize(
    ("override", "said", "hint"),
    [
        ("schedule.stps=3", "there is no setting `schedule.stps`", "did you mean `schedule.steps`?"),
        ("schedule.zzz=3", "there is no setting `schedule.zzz`", "`schedule` takes `steps`"),
        ("bacth.rollouts=3", "there is no setting `bacth`", "did you mean `batch`?"),
        (
            "batch.rollouts=many",
            "`batch.rollouts`: input should be a valid integer",
            "`batch` takes `rollouts`",
        ),
    ],
)
def test_a_wrong_setting_is_answered_with_the_right_ones(override: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(GRPOSettings, None, [override], model={"path": "m"})
    assert str(refused.value).startswith(said)
    assert (refused.value.hint or "").startswith(hint)


def test_a_section_that_is_none_is_said(tmp_path: Path) -> None:
    file = tmp_path / "grpo.toml"
    file.write_text("batch = 3\n")
    with pytest.raises(ConfigError, match="`batch` is no section"):
        read_settings(GRPOSettings, file, ["batch.rollouts=8"], model={"path": "m"})
