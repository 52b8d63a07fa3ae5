"""Every tracker is read with its own reader after a short training; none may reach a network."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import wandb
from wander.errors import MissingExtra
from wander.train.config import LoggingSection, SFTSettings
from wander.train.records.files import read_metrics
from wander.train.sft import train_sft
from wander.train.watch import reporting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    return tmp_path / "my-run"


def tune(model: Path, folder: Path, tracker: str) -> list[dict[str, Any]]:
    said = [{"role": "user", "content": "Machine 1."}, {"role": "assistant", "content": "<pull>3</pull>"}]
    settings = SFTSettings.model_validate(
        {
            "model": {"path": str(model), "device": "cpu"},
            "batch": {"rows": 4},
            "schedule": {"steps": 2},
            "logging": {"trackers": [tracker], "project": "games"},
        }
    )
    train_sft(({"messages": said} for _ in range(8)), settings, folder)
    return read_metrics(folder)


def test_trackio_keeps_every_step_in_its_database(
    tiny: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import trackio.sqlite_storage
    import trackio.utils

    database = tmp_path / "trackio"
    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", database)
    for module in (trackio, trackio.sqlite_storage):
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", database)
    entries = tune(tiny, folder, "trackio")
    assert capsys.readouterr().out == "", "stdout is for answers"
    with contextlib.closing(sqlite3.connect(database / "games.db")) as connection:
        rows = connection.execute("SELECT run_name, metrics FROM metrics ORDER BY step").fetchall()
    steps = [values for _, text in rows if "train/loss" in (values := json.loads(text))]
    assert {name for name, _ in rows} == {"my-run"}
    assert [(one["train/global_step"], one["train/loss"]) for one in steps] == [
        (entry["step"], entry["loss"]) for entry in entries
    ]


@pytest.mark.full
def test_wandb_without_a_key_stays_offline(
    tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(tiny, folder, "wandb")
    (kept,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"train/loss" in kept.read_bytes()
    assert capsys.readouterr().out == ""
    assert wandb.run is None


@pytest.mark.parametrize(
    ("variable", "value", "mode"),
    [
        (None, None, "offline"),
        ("WANDB_API_KEY", "0" * 40, None),
        pytest.param(
            *("NETRC", f"machine api.wandb.ai login user password {'0' * 40}\n", None), marks=pytest.mark.full
        ),
    ],
)
def test_wandb_goes_online_only_with_a_key(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    value: str,
    mode: str | None,
) -> None:
    if variable == "NETRC":
        (tmp_path / "netrc").write_text(value)
        (tmp_path / "netrc").chmod(0o600)
        value = str(tmp_path / "netrc")
    if variable is not None:
        monkeypatch.setenv(variable, value)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **given: asked.update(given))
    folder.mkdir()
    with reporting.open_reporters(LoggingSection(trackers=["wandb"]), folder, 0):
        pass
    assert asked["mode"] == mode
    assert asked["id"], "a resumed run continues the same run"
    assert os.environ.get("WANDB_MODE") is None


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_missing_tracker_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "find_spec", lambda found: None)
    with pytest.raises(MissingExtra) as caught:
        reporting.require_trackers([name])
    assert caught.value.hint == f"run `pip install 'wander-sdk[{name}]'`"
