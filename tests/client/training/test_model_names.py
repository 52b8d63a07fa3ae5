"""What `-m` means: a slip is answered at once, with what was meant or with the kinds of model there are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from command_line import Wander
from wander_client.commands.run.eval import evaluate
from wander_client.errors import ClientError, LoginRequired, NotFound, UsageError
from wander_client.failures import explain
from wander_client.models.reference import KINDS, is_local_model, require_model
from wander_client.training.run import player_path


@pytest.fixture(autouse=True)
def no_key(home: Path) -> None:
    """Nothing about an endpoint is set."""


@pytest.mark.parametrize("name", ["smolm2", "smollm", "Smollm-2", "smollm3"])
def test_a_mistyped_model_name_gets_a_suggestion(name: str) -> None:
    with pytest.raises(NotFound) as refused:
        require_model(name, None)
    assert refused.value.hint == "did you mean `smollm2`?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("script:say_env:solver", "did you mean `scripted:say_env:solver`?"),
        ("hff:a/b", "did you mean `hf:a/b`?"),
        ("ollama:llama", "pass `-b URL`"),
    ],
)
def test_an_unknown_kind_of_model_lists_the_kinds(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("", "sk-x"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(UsageError) as refused:
            require_model(name, None)
        assert refused.value.detail == KINDS
        assert hint in (refused.value.hint or "")


def test_names_of_endpoint_models_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    require_model("llama3:8b", "http://127.0.0.1:11434/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    require_model("gpt-x", None)
    require_model("ft:gpt-x:acme::1", None)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:11434/v1")
    require_model("llama3:8b", None)


def test_a_model_name_without_an_api_key_lists_the_kinds() -> None:
    with pytest.raises(LoginRequired) as refused:
        require_model("gpt-x", None)
    assert refused.value.detail == KINDS


def test_the_help_shows_the_same_list() -> None:
    help_text = " ".join((evaluate.__doc__ or "").split())
    assert [line for line in KINDS.splitlines() if " ".join(line.split()) not in help_text] == []


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "SmolLM2-135M-Instruct", "hf:a/b", "./x"])
def test_models_that_run_in_this_process_are_recognized(name: str) -> None:
    assert is_local_model(name)


def test_a_mistyped_model_to_train_is_reported_before_loading(wander: Wander, folder: Path) -> None:
    result = wander("train", "./say-env", "--model", "smolm2")
    assert result.status == 3
    assert "did you mean `smollm2`?" in result.err
    assert wander("train", "./say-env", "--model", "smollm2", "--set", "schedule.stps=3").status == 2


def test_an_empty_repository_is_rejected() -> None:
    with pytest.raises(UsageError, match="no model name"):
        require_model("hf:", None)


def test_a_folder_without_a_checkpoint_is_reported(home: Path) -> None:
    (home / "tiny").mkdir()
    with pytest.raises(NotFound) as refused:
        require_model("tiny", None)
    assert "config.json" in (refused.value.hint or "")


def test_an_unknown_model_to_pull_is_reported(wander: Wander) -> None:
    assert "did you mean `smollm2`?" in wander("model", "pull", "smolm2").err


class Silent:
    """Stands in for Hugging Face's API on a machine without a network."""

    def model_info(self, *args: object, **options: object) -> None:
        raise OSError("[Errno -2] Name or service not known")


def test_an_unreachable_hugging_face_is_reported_immediately(
    wander: Wander, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", Silent)
    asked: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: asked.append(str(seconds)))
    result = wander("eval", "./say-env", "-m", "hf:nobody/none", "--json")
    assert result.status == 5
    error = result.json["error"]
    assert error["code"] == "endpoint_unreachable"
    assert "`nobody/none` is not in the Hugging Face cache" in error["message"]
    assert error["retryable"]
    assert asked == [], "nothing was tried again"


def test_a_model_that_is_nowhere_is_not_found() -> None:
    from wander.errors import ModelNotFound

    explained: ClientError = explain(ModelNotFound("`x` is nothing", hint="look"))
    assert (explained.status, explained.code, explained.hint) == (3, "model_not_found", "look")


def test_players_in_training_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert player_path("./made") == str(tmp_path / "made")
    for name in ("self", "frozen", "earlier", "scripted:duel.players:best", "smollm2"):
        assert player_path(name) == name
    with pytest.raises(NotFound):
        player_path("./nobody")
    with pytest.raises(UsageError, match="`gpt-x` is neither a player in training"):
        player_path("gpt-x")
