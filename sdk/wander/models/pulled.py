"""Models that were pulled from a hub: their folders, and checks that their files are unchanged.

`hub:owner/name` means the revision that was last pulled under that name. `hub:owner/name@REVISION` means a
certain revision, which is the same on every hub. Without `hub:`, a name of this form belongs to Hugging Face
or an endpoint, never to a hub.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from wander.errors import ModelNotFound
from wander.models.smollm2 import cache_folder
from wander.wire.models import SCHEME, HubModel, ModelRevision, parse_model
from wander.wire.postings import file_digest

LATEST = "latest"
"""File next to the revisions that names the last pulled revision."""


@dataclass(frozen=True)
class PulledModel:
    """A revision on this machine."""

    folder: Path
    record: ModelRevision

    @property
    def name(self) -> str:
        """Name of the model, as shown on a leaderboard."""
        return f"{self.record.owner}/{self.record.name}"

    def fault(self) -> str | None:
        """Return the reason why its files differ from the pulled revision; None if they are unchanged.

        All files are read, except files that were not touched since the last successful check.
        """
        wanted = {file.filename: file for file in self.record.files}
        present = {path.name for path in self.folder.iterdir()}
        for name in sorted(present ^ set(wanted)):
            return f"`{name}` {'was removed' if name in wanted else 'was added'}"
        stamps = self.folder.with_suffix(".stamps")
        known = _read_stamps(stamps)
        current: dict[str, list[int | str]] = {}
        for name, file in wanted.items():
            status = (self.folder / name).stat()
            # A program can reset a file's modification time, but not its change time.
            stamp: list[int | str] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, file.sha256]
            sound = stamp == known.get(name) or file_digest(self.folder / name) == file.sha256
            if status.st_size != file.size or not sound:
                return f"`{name}` was changed"
            current[name] = stamp
        if current != known:
            # if the folder is read-only, the files are read at every check
            with contextlib.suppress(OSError):
                stamps.write_text(json.dumps(current), encoding="utf-8")
        return None


def model_root(owner: str, name: str) -> Path:
    """Return the folder of a hub model's revisions."""
    return cache_folder() / "hub" / owner / name


def find_pulled(word: str | HubModel) -> PulledModel:
    """Return the model that `hub:owner/name[@revision]` names; raises `ModelNotFound`."""
    wanted = word if isinstance(word, HubModel) else parse_model(word)
    root, revision = model_root(wanted.owner, wanted.name), wanted.revision
    if revision is None:
        latest = root / LATEST
        revision = latest.read_text(encoding="utf-8").strip() if latest.is_file() else None
    records = sorted(root.glob(f"{revision}*.json")) if revision else []
    if len(records) > 1:
        names = ", ".join(f"`{SCHEME}{wanted.owner}/{wanted.name}@{record.stem[:12]}`" for record in records)
        raise ModelNotFound(f"`{SCHEME}{wanted}` matches several revisions", hint=f"write one of {names}")
    if not records or (model := _at(records[0].with_suffix(""))) is None:
        raise ModelNotFound(
            f"`{SCHEME}{wanted}` was not pulled to this machine", hint=f"run `wander model pull {wanted}`"
        )
    return model


def pulled_at(folder: Path) -> PulledModel | None:
    """Return the model that was pulled into a folder; None for any other folder."""
    whole = folder.resolve()
    home = (cache_folder() / "hub").resolve()
    return _at(whole) if home in whole.parents and len(whole.relative_to(home).parts) == 3 else None


def list_pulled() -> list[PulledModel]:
    """Return all revisions on this machine."""
    places = (file.with_suffix("") for file in sorted((cache_folder() / "hub").glob("*/*/*.json")))
    return [model for model in map(_at, places) if model is not None]


def require_sound(model: PulledModel) -> None:
    """Raise `ModelNotFound` if a model's files differ from the pulled revision."""
    if (fault := model.fault()) is not None:
        raise ModelNotFound(
            f"{fault} since `{model.record}` was pulled",
            hint=f"run `wander model pull {model.record}` to fetch the changed files again",
        )


def _read_stamps(file: Path) -> dict[str, list[int | str]]:
    try:
        stamps = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _at(folder: Path) -> PulledModel | None:
    try:
        record = ModelRevision.model_validate_json(folder.with_suffix(".json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return PulledModel(folder, record) if folder.is_dir() else None
