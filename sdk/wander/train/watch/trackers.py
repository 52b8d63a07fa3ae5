"""Experiment trackers: TensorBoard, trackio and W&B get every line of `metrics.jsonl` as it is written.

Each is an extra, imported when a run asks for it, and spoken to by accelerate's trackers, which transformers
brings. Not by its `report_to`: that renames every metric (`train/reward`), counts the steps of a resumed run
anew in trackio, takes no alerts, sends the trainer's arguments, paths of this machine among them, and lets
W&B ask for a key at the terminal.

They only listen: a tracker that breaks is dropped, said in `alerts.jsonl`, and the training goes on. Nothing
leaves this machine unless its user set that up: W&B runs offline where no key for it is known, trackio keeps
a local database.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from accelerate.tracking import (  # type: ignore[import-untyped]
    TensorBoardTracker,
    TrackioTracker,
    WandBTracker,
)

from wander.errors import MissingExtra
from wander.evals.store.folder import MANIFEST, RunFolder
from wander.train.config import LoggingSection

TENSORBOARD_FOLDER = "tensorboard"


@dataclass(frozen=True)
class Tracker:
    """A tracker that is open; steps never go down within one run."""

    name: str
    log: Callable[[int, Mapping[str, float]], None]
    """Takes the values of a step."""
    alert: Callable[[int, str, str], None]
    """Takes the step, title and text of an alert."""
    close: Callable[[], None]
    """Writes what is left."""


def _open_tensorboard(folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> Tracker:
    """Open event files in the run's folder: `tensorboard --logdir RUN/tensorboard`."""
    # A resumed run plays the steps after its checkpoint again: what was told of them is struck out.
    tracker = TensorBoardTracker(TENSORBOARD_FOLDER, folder, purge_step=step + 1 if step else None)
    tracker.start()
    if not step:
        lines = (f"    {line}" for line in _settings_lines(config))
        tracker.writer.add_text("settings", "\n".join(lines))

    def alert(step: int, title: str, text: str) -> None:
        tracker.log({"alerts": f"{title}: {text}"}, step)

    return Tracker(tracker.name, lambda step, values: tracker.log(values, step), alert, tracker.finish)


def _open_trackio(folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> Tracker:
    """Open trackio's local database: `trackio show --project PROJECT`."""
    tracker = TrackioTracker(
        section.project,
        name=folder.resolve().name,
        config=dict(config),
        resume="allow" if step else "never",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    with _mute():
        tracker.start()

    def alert(step: int, title: str, text: str) -> None:
        with _mute():
            tracker.run.alert(title, text=text, step=step)

    def close() -> None:
        import trackio

        with _mute():
            trackio.finish()  # type: ignore[no-untyped-call]
            # A run that only accelerate's tracker finished would be finished again when the process ends.

    return Tracker(tracker.name, lambda step, values: tracker.log(values, step), alert, close)


def _open_wandb(folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> Tracker:
    """Open W&B: online with a key or a login, else in the run's folder (`wandb sync RUN/wandb/...`)."""
    import wandb

    tracker = WandBTracker(
        section.project,
        name=folder.resolve().name,
        # The id is stored with the run, so that a resumed run goes on in the same place; fine-tuning has
        # its folder alone.
        id=RunFolder.open(folder).manifest.run_id
        if (folder / MANIFEST).is_file()
        else hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:26],
        resume="allow",
        dir=str(folder),
        mode="online" if _has_wandb_key() else "offline",
        config=dict(config),
        settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
    )
    tracker.start()

    def alert(step: int, title: str, text: str) -> None:
        tracker.run.alert(title=title, text=f"step {step}: {text}")

    # W&B passes over steps that it has.
    return Tracker(tracker.name, lambda step, values: tracker.log(values, step), alert, tracker.finish)


_OPENERS: dict[str, Callable[[Path, LoggingSection, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": _open_tensorboard,
    "trackio": _open_trackio,
    "wandb": _open_wandb,
}


def require_trackers(names: Sequence[str]) -> None:
    """Raise `MissingExtra` for the first tracker whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtra(name, needed_for=f"logging to {name}")


def open_trackers(
    folder: Path, section: LoggingSection, config: Mapping[str, Any], *, step: int = 0
) -> list[Tracker]:
    """Open the trackers that a run asks for; it goes on from `step`. Raises `MissingExtra`."""
    names = list(dict.fromkeys(section.trackers))
    require_trackers(names)
    return [_OPENERS[name](folder, section, config, step) for name in names]


def scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a line of metrics can be drawn over the steps."""
    return {
        name: float(value)
        for name, value in entry.items()
        if name not in ("step", "steps") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _settings_lines(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings_lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {value}"


def _has_wandb_key() -> bool:
    """Tell whether W&B would know who is speaking, without asking."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"] == "online"
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _mute() -> contextlib.redirect_stdout[io.StringIO]:
    """Keep what a library prints out of the answer on stdout."""
    return contextlib.redirect_stdout(io.StringIO())
