"""The environments installed on this machine: one folder a version and digest, complete or not there.

environments/<owner>/<name>/<version>-<first 12 of the wheel's sha256>/
    venv/           the virtual environment
    pylock.toml     every package with its URL and sha256 (PEP 751)
    installed.json  what it is: written last, before the folder gets its name
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from packaging.version import Version
from pydantic import ValidationError
from wander.types import Record

from wander_client.errors import ClientError
from wander_client.packaging.resolve import EnvironmentName

RECORD = "installed.json"
LOCK = "pylock.toml"


class InstalledRecord(Record):
    """`installed.json`."""

    hub: str
    owner: str
    name: str
    version: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    wheel_url: str
    lock_sha256: str
    """Digest of `pylock.toml`."""
    sdk: str
    """Version of wander-sdk inside."""
    python: str
    entry_point: str | None = None
    """`module:function` as the hub read it from the wheel."""
    installed_at: datetime


class Installed:
    """One installed environment."""

    def __init__(self, path: Path, record: InstalledRecord) -> None:
        self.path = path
        self.record = record

    @property
    def python(self) -> Path:
        """The interpreter of its virtual environment."""
        return self.path / "venv" / "bin" / "python"

    @property
    def name(self) -> EnvironmentName:
        """Owner, name and version."""
        return EnvironmentName(self.record.owner, self.record.name, self.record.version)

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        found = sorted((self.path / "venv" / "lib").glob("python3*/site-packages"))
        if not found:
            raise ClientError(
                f"`{self.path}` is damaged", hint=f"run `wander install --force {self.name}`", code="damaged"
            )
        return found[0]


class EnvironmentStore:
    """The folder of installed environments."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "environments"

    def all(self) -> list[Installed]:
        """Return everything that is installed, by owner, name and version."""
        found = []
        for path in self.root.glob(f"*/*/*/{RECORD}"):
            if path.parent.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed while we looked
                found.append(Installed(path.parent, self._record(path)))
        return sorted(found, key=lambda one: (one.record.owner, one.record.name, Version(one.record.version)))

    def find(self, name: EnvironmentName, hub: str) -> list[Installed]:
        """Return the installed versions of a hub's environment that the name allows, oldest first."""
        return [
            one
            for one in self.all()
            if (one.record.owner, one.record.name) == (name.owner, name.name)
            and one.record.hub == hub
            and name.version in (None, one.record.version)
        ]

    def place(self, name: EnvironmentName, wheel_sha256: str) -> Path:
        """Return the folder of one version with that digest, existing or not."""
        return self.root / name.owner / name.name / f"{name.version}-{wheel_sha256[:12]}"

    @contextlib.contextmanager
    def locked(self, name: EnvironmentName) -> Iterator[None]:
        """Hold the lock of an environment, so that two installs of it take turns."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name.owner}--{name.name}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def staged(self, place: Path) -> Iterator[Path]:
        """Yield a temporary folder beside `place` that becomes `place` when the block succeeds."""
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".making-", dir=place.parent))
        try:
            yield work
            old = place.parent / f".old-{work.name}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, old)
            os.rename(work, place)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def remove(self, installed: Installed) -> None:
        """Remove an installed environment; it is out of sight before its files go."""
        gone = installed.path.parent / f".gone-{os.getpid()}-{installed.path.name}"
        os.rename(installed.path, gone)
        shutil.rmtree(gone)
        for folder in (installed.path.parent, installed.path.parent.parent):
            with contextlib.suppress(OSError):  # other versions or environments are still there
                folder.rmdir()

    def _record(self, path: Path) -> InstalledRecord:
        try:
            return InstalledRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ClientError(
                f"`{path}` is no record of an installed environment",
                hint=f"remove the folder `{path.parent}` and install again",
                code="damaged",
            ) from error
