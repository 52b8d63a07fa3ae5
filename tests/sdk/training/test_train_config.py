from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from wander.errors import ConfigError
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.settings.toml_file import read_settings

MODEL = {"path": "smollm2"}


def fields_by_section(kind: type[BaseModel]) -> dict[str, int]:
    return {
        name: len(field.annotation.model_fields)
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def test_the_configuration_has_few_fields_per_section() -> None:
    for kind in (GRPOSettings, SFTSettings):
        assert max(fields_by_section(kind).values()) <= 12, "a section is one thought; split it"


def test_grpo_requires_only_a_model() -> None:
    settings = GRPOSettings.model_validate({"model": MODEL})
    assert (settings.evaluation.every, settings.stopping.target, settings.output.keep_best) == (0, {}, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['output.keep_best="eval/reward"'], "`evaluation.every` is 0"),
        (['output.keep_best="reward"', "evaluation.every=5"], "write `eval/METRIC`"),
        (['output.keep_best="other/reward"', "evaluation.every=5"], "write `eval/METRIC`"),
        (["evaluation.every=5", 'stopping.target={"eval/reward"="high"}'], "is not a bound"),
        (["evaluation.every=5", 'evaluation.cells=[{name="a"},{name="a"}]'], "two cells are called `a`"),
        (["evaluation.every=5", 'evaluation.cells=[{name="a b"}]'], r"`evaluation\.cells\.0\.name`"),
    ],
)
def test_an_impossible_evaluation_is_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(GRPOSettings, None, overrides, model=MODEL)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['inference.engine="vllm"', 'inference.dtype="bfloat16"'], "only for the engine `transformers`"),
        (
            ['model.quantization="nf4"', "model.lora_rank=4", 'inference.dtype="bfloat16"'],
            "`inference.dtype` needs copies",
        ),
    ],
)
def test_a_sampling_precision_without_effect_is_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(GRPOSettings, None, overrides, model=MODEL)


def test_targets_are_numbers_or_bounds() -> None:
    settings = read_settings(
        GRPOSettings,
        None,
        ["evaluation.every=5", 'stopping.target={"eval/reward"=0.9, "eval/lost"="<=0"}'],
        model=MODEL,
    )
    assert settings.stopping.target == {"eval/reward": 0.9, "eval/lost": "<=0"}


def test_overrides_apply_after_the_file(tmp_path: Path) -> None:
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
        (["steps=3"], "is not a setting"),
        (["schedule.steps"], "does not set a value"),
        (["algorithm.loss=ppo"], r"`algorithm\.loss`"),
    ],
)
def test_an_invalid_setting_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(GRPOSettings, None, overrides, model=MODEL)


def test_a_missing_model_and_an_invalid_file_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model to train"):
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
        ("schedule.stps=3", "unknown setting `schedule.stps`", "did you mean `schedule.steps`?"),
        ("schedule.zzz=3", "unknown setting `schedule.zzz`", "the fields of `schedule` are `steps`"),
        ("bacth.rollouts=3", "unknown setting `bacth`", "did you mean `batch`?"),
        (
            "batch.rollouts=many",
            "`batch.rollouts`: must be a whole number",
            None,
        ),
    ],
)
def test_an_unknown_setting_lists_the_valid_ones(override: str, said: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(GRPOSettings, None, [override], model={"path": "m"})
    assert str(refused.value).startswith(said)
    if hint is None:
        assert refused.value.hint is None
    else:
        assert (refused.value.hint or "").startswith(hint)


def test_an_unknown_section_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "grpo.toml"
    file.write_text("batch = 3\n")
    with pytest.raises(ConfigError, match="`batch` is not a section"):
        read_settings(GRPOSettings, file, ["batch.rollouts=8"], model={"path": "m"})
