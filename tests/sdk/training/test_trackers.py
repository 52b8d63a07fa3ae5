"""Every tracker is read back with its own reader; none may reach a network."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wander.errors import MissingExtra
from wander.train.config import GRPOSettings, LoggingSection
from wander.train.trainer import StepLog
from wander.train.watch import trackers
from wander.train.watch.alerts import Alert, read_alerts
from wander.train.watch.observers import AlertCallback, TrackerCallback
from wander.train.watch.trackers import open_trackers, require_trackers, scalars

SETTINGS = GRPOSettings.model_validate({"model": {"path": "tiny"}})
CONFIG = SETTINGS.model_dump(mode="json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    made = tmp_path / "my-run"
    made.mkdir()
    return made


def logged(name: str, folder: Path, *, steps: Iterator[int] | range, step: int = 0) -> None:
    """Log some steps and an alert to one tracker."""
    (tracker,) = open_trackers(folder, LoggingSection(trackers=[name], project="games"), CONFIG, step=step)
    for number in steps:
        tracker.log(number, {"reward": number / 10, "rewards/won": 1.0})
    tracker.alert(steps[-1], "truncated", "50% were cut short")
    tracker.close()


def test_tensorboard_files_hold_every_step_once_after_a_resume(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged("tensorboard", folder, steps=range(1, 5))
    logged("tensorboard", folder, steps=range(3, 6), step=2)
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    assert [(one.step, round(one.value, 3)) for one in found.Scalars("reward")] == [
        (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5),
    ]  # fmt: skip
    assert found.Tags()["tensors"] == ["settings/text_summary", "alerts/text_summary"]
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "batch.rollouts = 256" in text


def test_trackio_keeps_steps_and_alerts_in_its_database(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import trackio.sqlite_storage
    import trackio.utils

    database = tmp_path / "trackio"
    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", database)
    for module in (trackio, trackio.sqlite_storage):
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", database)
    logged("trackio", folder, steps=range(1, 4))
    assert capsys.readouterr().out == "", "stdout is for answers"
    with sqlite3.connect(database / "games.db") as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
        (alert,) = connection.execute("SELECT title, step FROM alerts").fetchall()
    connection.close()
    assert [(name, step) for name, step, _ in rows] == [("my-run", 1), ("my-run", 2), ("my-run", 3)]
    assert '"reward"' in str(rows[0][2])
    assert alert == ("truncated", 3)


@pytest.mark.full
def test_wandb_without_a_key_stays_offline(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged("wandb", folder, steps=range(1, 4))
    (kept,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    # Another process writes it.
    deadline = time.monotonic() + 120
    while b"rewards/won" not in kept.read_bytes():
        assert time.monotonic() < deadline, kept.read_bytes()
        time.sleep(0.05)
    assert capsys.readouterr().out == ""


def test_wandb_goes_online_with_a_key_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not trackers._has_wandb_key()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert trackers._has_wandb_key()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not trackers._has_wandb_key()


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_an_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda found: None)
    with pytest.raises(MissingExtra) as caught:
        require_trackers([name])
    assert caught.value.hint == f"run `pip install 'wander-sdk[{name}]'`"


def test_only_numbers_are_drawn() -> None:
    entry = {"step": 3, "steps": 9, "reward": 1, "entropy": None, "note": "x", "flag": True}
    assert scalars(entry) == {"reward": 1.0}


class Breaking:
    name = "breaking"

    def __init__(self) -> None:
        self.logged: list[int] = []
        self.closed = False

    def log(self, step: int, values: Any) -> None:
        if step == 2:
            raise OSError("the disk is full")
        self.logged.append(step)

    def alert(self, step: int, title: str, text: str) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_a_tracker_that_breaks_is_dropped_and_an_alert_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = Breaking(), Breaking()
    sound.log = lambda step, values: sound.logged.append(step)  # type: ignore[method-assign]
    monkeypatch.setattr("wander.train.watch.observers.open_trackers", lambda *args, **kwargs: [broken, sound])
    log = StepLog(folder / "metrics.jsonl")
    told: list[Alert] = []
    alerts = AlertCallback(SETTINGS, folder, log, [told.append])
    tracking = TrackerCallback(LoggingSection(), {}, folder, log, alerts.raise_alert)
    state = SimpleNamespace(global_step=0, max_steps=3, is_world_process_zero=True)
    tracking.on_train_begin(None, state, None)
    for step in (1, 2, 3):
        state.global_step = step
        log.on_log(None, state, None, logs={"loss": 0.1, "reward": 1.0})
    tracking.close()
    assert (broken.logged, broken.closed) == ([1], False)
    assert (sound.logged, sound.closed) == ([1, 2, 3], True)
    (alert,) = told
    assert alert.message == "breaking gets no more metrics: OSError: the disk is full"
    assert read_alerts(folder) == [alert]
