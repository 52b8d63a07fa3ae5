"""Experiment trackers: TensorBoard, trackio and W&B get every line of `metrics.jsonl` as it is written.

Each is an extra, imported when a run asks for it. They only listen: a tracker that breaks is dropped, said in
`alerts.jsonl`, and the training goes on. Nothing leaves this machine unless its user set that up: W&B runs
offline where no key for it is known, trackio keeps a local database.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from wander.errors import MissingExtra
from wander.train.config import LoggingSection

TENSORBOARD_FOLDER = "tensorboard"


class Tracker(Protocol):
    """What a run tells a tracker; steps never go down within one run."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""
        ...

    def alert(self, step: int, title: str, text: str) -> None:
        """Take an alert."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir RUN/tensorboard`."""

    name = "tensorboard"

    def __init__(self, folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run plays the steps after its checkpoint again: what was told of them is struck out.
        self._writer: Any = SummaryWriter(
            str(folder / TENSORBOARD_FOLDER), purge_step=step + 1 if step else None
        )
        if not step:
            self._writer.add_text("settings", "\n".join(f"    {line}" for line in _settings_lines(config)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step, and see to it that they can be read at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def alert(self, step: int, title: str, text: str) -> None:
        """Write an alert as text."""
        self._writer.add_text("alerts", f"{title}: {text}", step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class Trackio:
    """trackio's local database: `trackio show --project PROJECT`."""

    name = "trackio"

    def __init__(self, folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> None:
        import trackio

        with _unheard():
            self._run: Any = trackio.init(
                project=section.project,
                name=folder.resolve().name,
                config=dict(config),
                resume="allow" if step else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        self._run.log(dict(values), step=step)

    def alert(self, step: int, title: str, text: str) -> None:
        """Write an alert."""
        with _unheard():
            self._run.alert(title, text=text, step=step)

    def close(self) -> None:
        """Write what is left."""
        import trackio

        with _unheard():
            trackio.finish()  # type: ignore[no-untyped-call]
            # or it would be finished once more when the process ends


class WeightsAndBiases:
    """W&B: online with a key or a login, else offline in the run's folder (`wandb sync RUN/wandb/...`)."""

    name = "wandb"

    def __init__(self, folder: Path, section: LoggingSection, config: Mapping[str, Any], step: int) -> None:
        import wandb

        name = folder.resolve().name
        self._run: Any = wandb.init(
            project=section.project,
            name=name,
            # The id is stored with the run, so that a resumed run goes on in the same place.
            id=_kept_id(folder),
            resume="allow",
            dir=str(folder),
            mode="online" if _has_wandb_key() else "offline",
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step; W&B passes over steps that it has."""
        self._run.log(dict(values), step=step)

    def alert(self, step: int, title: str, text: str) -> None:
        """Send an alert."""
        self._run.alert(title=title, text=f"step {step}: {text}")

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


KINDS: dict[str, Callable[[Path, LoggingSection, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
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
    return [KINDS[name](folder, section, config, step) for name in names]


def scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a line of metrics can be drawn over the steps."""
    left_out = ("step", "steps")
    return {
        name: float(value)
        for name, value in entry.items()
        if name not in left_out and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _settings_lines(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings_lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {value}"


def _kept_id(folder: Path) -> str:
    """Return the id under which W&B knows the run: that of its manifest; fine-tuning has its folder alone."""
    from wander.evals.store.folder import MANIFEST, RunFolder

    if (folder / MANIFEST).is_file():
        return RunFolder.open(folder).manifest.run_id
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:26]


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


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Keep what a library prints out of the answer on stdout."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
