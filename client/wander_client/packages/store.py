"""The environments installed on this machine, with one folder per version and digest.

environments/<hub>/<owner>/<name>/<version>-<first 12 of the wheel's sha256>/
    pylock.toml     the version's lock, or a lock resolved on this machine (PEP 751)
    installed.json  the record, which is written last
...-unlocked/       the same version, installed without its lock
`<hub>` is the hub's host with a digest of its URL, so that environments of different hubs never replace each
other, even if they have the same name.
virtualenvs/        the virtual environments, by their locked contents (`wander_client.packages.virtualenvs`)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from wander_client.errors import ClientError
from wander_client.names import EnvironmentName
from wander_client.packages.virtualenvs import (
    Space,
    VirtualEnvironments,
    discard,
    hold_lock,
    space_of,
    stale_in,
)
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.wire import Unlocked

RECORD = "installed.json"
LOCK = "pylock.toml"
NEVER = 0.0
"""Value of `chosen_at` for an environment that nobody installed by name."""


@dataclass(frozen=True)
class InstalledRecord:
    """The content of `installed.json`.

    A plain class, so that listing environments does not import pydantic.
    """

    hub: str
    owner: str
    name: str
    version: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    wheel_url: str
    sdk: str
    """Installed version of wander-sdk."""
    python: str
    installed_at: datetime
    packages_sha256: str
    """Digest of the lines `name==version` of all installed packages."""
    virtualenv: str
    """Name of the virtual environment."""
    lock_sha256: str | None = None
    """Digest of the version's lock, or None if it was installed without a lock."""
    unlocked: Unlocked | None = None
    """Reason why it was installed without a lock."""
    entry_point: str | None = None
    """`module:function`, as the hub read it from the wheel."""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse a record. Raises `ValueError` if it is invalid."""
        try:
            data = json.loads(text)
            texts = {name: value for name, value in data.items() if name != "installed_at"}
            if not all(isinstance(value, str) or value is None for value in texts.values()):
                raise TypeError("a field is not a text")
            return cls(**texts, installed_at=datetime.fromisoformat(data["installed_at"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"invalid record of an installed environment: {error}") from error

    def values(self) -> dict[str, str | None]:
        """Return the fields as they appear in JSON."""
        return {**vars(self), "installed_at": self.installed_at.isoformat().replace("+00:00", "Z")}

    def write(self, path: Path) -> None:
        """Write the record in the format that `parse` reads."""
        path.write_text(json.dumps(self.values(), indent=1), encoding="utf-8")

    def fits(self, no_lock: bool | None) -> bool:
        """Return whether this installation has its lock, does not have it, or either (None), as requested."""
        return no_lock is None or (self.unlocked is not None if no_lock else self.unlocked != "chosen")


@dataclass(frozen=True, eq=False)
class Installed:
    """An installed environment."""

    path: Path
    record: InstalledRecord
    virtualenv: Path
    chosen_at: float = NEVER
    """Time of the last use by name, in seconds since 1970."""

    @property
    def is_chosen(self) -> bool:
        """Whether the user installed it by name, and not only for a single run without its lock."""
        return self.chosen_at > NEVER

    @property
    def python(self) -> Path:
        """Interpreter of its virtual environment."""
        return self.virtualenv / "bin" / "python"

    @property
    def is_complete(self) -> bool:
        """Whether its virtual environment exists, and the Python that it was created from."""
        return VirtualEnvironments(self.virtualenv.parent.parent).works(self.virtualenv.name)

    @property
    def name(self) -> EnvironmentName:
        """Owner, name and version."""
        return EnvironmentName(self.record.owner, self.record.name, self.record.version)


class EnvironmentStore:
    """The folder of installed environments."""

    def __init__(self, data_dir: Path, warn: Callable[[str], None] | None = None) -> None:
        """`warn` is called for unreadable records, which are then skipped.

        Without it, they raise an error.
        """
        self._warn = warn
        self._warned: set[Path] = set()
        self.root = data_dir / "environments"
        self.virtualenvs = VirtualEnvironments(data_dir)

    def all(self) -> list[Installed]:
        """Return all installed environments, by owner, name and version."""
        installed = []
        for path in self.root.glob(f"*/*/*/*/{RECORD}"):
            if path.parent.name.startswith("."):
                continue
            try:
                record = InstalledRecord.parse(path.read_bytes())
                installed.append(self.installed(path.parent, record))
            except FileNotFoundError:  # removed in the meantime
                continue
            except (ValueError, OSError) as error:
                message = f"`{path}` is not the record of an installed environment"
                hint = f"remove the folder `{path.parent}` and install again"
                if self._warn is None:
                    raise ClientError(message, hint=hint, code="damaged") from error
                if path not in self._warned:
                    self._warned.add(path)
                    self._warn(f"{message}: {hint}")
        if len(installed) < 2:
            return installed
        from packaging.version import Version

        return sorted(
            installed,
            key=lambda item: (
                item.record.owner,
                item.record.name,
                Version(item.record.version),
                item.chosen_at,
            ),
        )

    def find(self, name: EnvironmentName, hub: str) -> list[Installed]:
        """Return the installed versions of a hub's environment that match a name, the oldest first.

        If a version is installed with and without its lock, the installation that was chosen last is last.
        """
        return [
            item
            for item in self.all()
            if (item.record.owner, item.record.name) == (name.owner, name.name)
            and item.record.hub == hub
            and name.fits(item.record.version)
        ]

    def folder_for(self, hub: str, name: EnvironmentName, wheel_sha256: str, *, locked: bool = True) -> Path:
        """Return the folder for a version of a hub with this digest, which may not exist."""
        suffix = "" if locked else "-unlocked"
        version = f"{name.version}-{wheel_sha256[:12]}{suffix}"
        return path_below(self.root, folder_of_hub(hub), name.owner, name.name, version)

    def choose(self, installed: Installed) -> None:
        """Mark an installed environment as used now, and as the default for its version."""
        with contextlib.suppress(OSError):  # on a read-only disk
            (installed.path / RECORD).touch()
        self.virtualenvs.mark_used(installed.record.virtualenv)

    def set_chosen_at(self, installed: Installed, moment: float) -> None:
        """Set when an installed environment was chosen. `NEVER` is for environments of a single run."""
        with contextlib.suppress(OSError):  # on a read-only disk
            os.utime(installed.path / RECORD, (moment, moment))

    def lock(self, name: EnvironmentName) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of an environment of any hub, so that only one process installs it at a time."""
        return hold_lock(self.root, f"{name.owner}--{name.name}")

    def installed(self, folder: Path, record: InstalledRecord) -> Installed:
        """Return the installed environment of a folder and its record."""
        chosen_at = (folder / RECORD).stat().st_mtime
        return Installed(folder, record, self.virtualenvs.root / record.virtualenv, chosen_at)

    def remove(self, installed: Installed) -> None:
        """Remove an installed environment, and its virtual environment if nothing else uses it."""
        discard(installed.path)
        for folder in list(installed.path.parents)[:3]:
            with contextlib.suppress(OSError):  # contains other versions or environments
                folder.rmdir()
        key = installed.record.virtualenv
        if key not in {item.record.virtualenv for item in self.all()}:
            self.virtualenvs.remove(key)

    def stale(self) -> list[Path]:
        """Return the leftovers of installations and removals that were killed."""
        folders = [self.root, *self.root.glob("*"), *self.root.glob("*/*"), *self.root.glob("*/*/*")]
        inner = [path for folder in folders if folder.is_dir() for path in stale_in(folder)]
        return [*inner, *stale_in(self.virtualenvs.root)]


def folder_of_hub(url: str) -> str:
    """Return the name of the folder for environments of a hub."""
    host = re.sub(r"[^A-Za-z0-9.]+", "-", url.partition("://")[2]).strip("-.")[:60] or "hub"
    return f"{host}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


State = Literal["ok", "broken", "unreferenced", "unfinished"]
_SETTLED = timedelta(minutes=10)
"""Time within which a running installation uses its virtual environment."""


@dataclass(frozen=True)
class CachedEnvironment:
    """A virtual environment, or the leftovers of a killed installation."""

    path: Path
    state: State
    """`broken`: its Python is missing; `unreferenced`: nothing uses it; `unfinished`: a killed build."""
    space: Space
    last_used: datetime
    users: tuple[Installed, ...] = ()
    """Installed environments that use it."""


def list_cached(store: EnvironmentStore) -> list[CachedEnvironment]:
    """Return all virtual environments, the most recently used first. Killed builds come last."""
    users: dict[str, list[Installed]] = {}
    for item in store.all():
        users.setdefault(item.record.virtualenv, []).append(item)
    cached = []
    for key in store.virtualenvs.names():
        path, environments = store.virtualenvs.root / key, tuple(users.pop(key, ()))
        state: State = "ok" if environments else "unreferenced"
        if not store.virtualenvs.works(key):
            state = "broken"
        cached.append(
            CachedEnvironment(path, state, space_of(path), store.virtualenvs.last_used(key), environments)
        )
    cached += [  # installed environments without a virtual environment
        CachedEnvironment(item.path, "broken", space_of(item.path), item.record.installed_at, (item,))
        for environments in users.values()
        for item in environments
    ]
    stale = [
        CachedEnvironment(
            path, "unfinished", space_of(path), datetime.fromtimestamp(path.stat().st_mtime, UTC)
        )
        for path in store.stale()
    ]
    return sorted(cached, key=lambda entry: entry.last_used, reverse=True) + stale


def prunable(
    cached: list[CachedEnvironment], unused_for: timedelta | None, now: datetime
) -> list[CachedEnvironment]:
    """Return the entries that can be removed: broken, unfinished, unreferenced, or unused for `unused_for`.

    An unreferenced virtual environment may belong to a running installation, so it is kept for a while.
    """
    return [
        entry
        for entry in cached
        if entry.state in ("broken", "unfinished")
        or (entry.state == "unreferenced" and now - entry.last_used > _SETTLED)
        or (unused_for is not None and now - entry.last_used > unused_for)
    ]


def prune(store: EnvironmentStore, chosen: list[CachedEnvironment]) -> list[CachedEnvironment]:
    """Remove virtual environments with the environments installed in them. Returns the removed entries.

    Entries that an installation holds at the moment are kept.
    """
    import shutil

    gone = []
    for entry in chosen:
        if entry.state == "unfinished":
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            for user in entry.users:
                with store.lock(user.name), contextlib.suppress(FileNotFoundError):
                    store.remove(user)
            if entry.path.parent == store.virtualenvs.root and entry.path.exists():
                store.virtualenvs.remove(entry.path.name)
        if not entry.path.exists():
            gone.append(entry)
    return gone
