"""Finding a model: what Hugging Face answers, a machine without a network, and bars that nobody sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from wander.errors import EndpointUnreachable, ModelNotFound
from wander.models.hugging_face import only_cached
from wander.models.loading import load_model
from wander.models.quiet import quiet_libraries


class Answer:
    """What an answer of Hugging Face shows its errors."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        self.is_client_error = 400 <= status < 500
        self.headers: dict[str, str] = {}
        self.request = None


def answer(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[str]:
    """Make Hugging Face answer so; returns the names it was asked for."""
    asked: list[str] = []

    class Api:
        def model_info(self, name: str, **options: Any) -> None:
            asked.append(name)
            if error is not None:
                raise error

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return asked


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        (RepositoryNotFoundError, 401, "has no model `a/b`"),
        (GatedRepoError, 403, "must be requested"),
        (RevisionNotFoundError, 404, "has no revision `x`"),
        (HfHubHTTPError, 451, "Hugging Face refused `a/b`"),
    ],
)
def test_an_error_of_hugging_face_is_reported_with_its_cause(
    kind: type[HfHubHTTPError], status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, kind("refused", response=Answer(status)))  # type: ignore[arg-type]
    with pytest.raises(ModelNotFound, match=said):
        only_cached("a/b", "x")


def test_models_are_loaded_from_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, None) == []
    assert only_cached("a/b") is False


@pytest.mark.parametrize("error", [OSError("no name"), HfHubHTTPError("down", response=Answer(503))])  # type: ignore[arg-type]
def test_without_a_network_only_cached_models_are_loaded(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, error)
    with pytest.raises(EndpointUnreachable, match="is not in the Hugging Face cache") as refused:
        load_model("a/b")
    assert refused.value.retryable
    assert asked == ["a/b"], "one question, no second"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **options: "/somewhere")
    assert only_cached("a/b") is True


def test_an_impossible_repository_name_is_reported() -> None:
    with pytest.raises(ModelNotFound, match="not the name of a Hugging Face model"):
        load_model("a b")


def test_a_missing_model_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no folder"):
        load_model(tmp_path / "nothing")


def test_libraries_print_no_progress_bars(capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import tqdm as download_bar
    from tqdm.auto import tqdm

    with quiet_libraries():
        assert list(tqdm(range(3), desc="converting")) == [0, 1, 2]
        assert list(download_bar(range(3), desc="downloading")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
    assert list(tqdm(range(3), desc="converting")) == [0, 1, 2]
    assert "converting" in capfd.readouterr().err, "outside of the block bars are as they were"
