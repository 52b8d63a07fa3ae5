"""The environments installed on this machine: one folder a version and digest, complete or not there.

environments/<hub>/<owner>/<name>/<version>-<first 12 of the wheel's sha256>/
    pylock.toml     the version's lock, or what was resolved where it has none (PEP 751)
    installed.json  what it is: written last, before the folder gets its name
...-unlocked/       the same version with its lock left aside

`<hub>` is the hub's host and a digest of its URL: what one hub offers never takes the place of what another
offers under the same name.
virtualenvs/        the virtual environments, by what is locked (`wander_client.packages.virtualenvs`)
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
"""When an environment was chosen that nobody installed by name."""


@dataclass(frozen=True)
class InstalledRecord:
    """`installed.json`: plain, so that listing what is installed starts without pydantic."""

    hub: str
    owner: str
    name: str
    version: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    wheel_url: str
    sdk: str
    """Version of wander-sdk inside."""
    python: str
    installed_at: datetime
    packages_sha256: str
    """Digest of the lines `name==version` of all packages inside."""
    virtualenv: str
    """Name of its virtual environment."""
    lock_sha256: str | None = None
    """Digest of the version's lock, which it was installed from; None without one."""
    unlocked: Unlocked | None = None
    """Why it was installed without a lock."""
    entry_point: str | None = None
    """`module:function` as the hub read it from the wheel."""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Return the record of a file; raises `ValueError` for anything else."""
        try:
            given = json.loads(text)
            texts = {name: value for name, value in given.items() if name != "installed_at"}
            if not all(isinstance(value, str) or value is None for value in texts.values()):
                raise TypeError("a field is no text")
            return cls(**texts, installed_at=datetime.fromisoformat(given["installed_at"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no record of an installed environment: {error}") from error

    def values(self) -> dict[str, str | None]:
        """Return its fields as JSON has them."""
        return {**vars(self), "installed_at": self.installed_at.isoformat().replace("+00:00", "Z")}

    def write(self, path: Path) -> None:
        """Write it as `parse` reads it."""
        path.write_text(json.dumps(self.values(), indent=1), encoding="utf-8")

    def fits(self, no_lock: bool | None) -> bool:
        """Tell whether it is what is asked for: with its version's lock, without it, or either (None)."""
        return no_lock is None or (self.unlocked is not None if no_lock else self.unlocked != "chosen")


@dataclass(frozen=True, eq=False)
class Installed:
    """One installed environment."""

    path: Path
    record: InstalledRecord
    virtualenv: Path
    chosen_at: float = NEVER
    """When it was last asked for, in seconds since 1970."""

    @property
    def is_chosen(self) -> bool:
        """Whether its version means it here; not what was installed for one run, without its lock."""
        return self.chosen_at > NEVER

    @property
    def python(self) -> Path:
        """The interpreter of its virtual environment."""
        return self.virtualenv / "bin" / "python"

    @property
    def is_complete(self) -> bool:
        """Whether its virtual environment is there, and the Python that it was made from."""
        return VirtualEnvironments(self.virtualenv.parent.parent).works(self.virtualenv.name)

    @property
    def name(self) -> EnvironmentName:
        """Owner, name and version."""
        return EnvironmentName(self.record.owner, self.record.name, self.record.version)


class EnvironmentStore:
    """The folder of installed environments."""

    def __init__(self, data_dir: Path, warn: Callable[[str], None] | None = None) -> None:
        """`warn` is told of each record that cannot be read, which is then passed over; None raises."""
        self._warn = warn
        self._told: set[Path] = set()
        self.root = data_dir / "environments"
        self.virtualenvs = VirtualEnvironments(data_dir)

    def all(self) -> list[Installed]:
        """Return everything that is installed, by owner, name and version."""
        found = []
        for path in self.root.glob(f"*/*/*/*/{RECORD}"):
            if path.parent.name.startswith("."):
                continue
            try:
                record = InstalledRecord.parse(path.read_bytes())
                found.append(self.installed(path.parent, record))
            except FileNotFoundError:  # removed while we looked
                continue
            except (ValueError, OSError) as error:
                message = f"`{path}` is not the record of an installed environment"
                hint = f"remove the folder `{path.parent}` and install again"
                if self._warn is None:
                    raise ClientError(message, hint=hint, code="damaged") from error
                if path not in self._told:
                    self._told.add(path)
                    self._warn(f"{message}: {hint}")
        if len(found) < 2:
            return found
        from packaging.version import Version

        return sorted(
            found,
            key=lambda one: (one.record.owner, one.record.name, Version(one.record.version), one.chosen_at),
        )

    def find(self, name: EnvironmentName, hub: str) -> list[Installed]:
        """Return the installed versions of a hub's environment that the name allows, oldest first.

        Of a version that is there with its lock and without, what was chosen last comes last.
        """
        return [
            one
            for one in self.all()
            if (one.record.owner, one.record.name) == (name.owner, name.name)
            and one.record.hub == hub
            and name.fits(one.record.version)
        ]

    def place(self, hub: str, name: EnvironmentName, wheel_sha256: str, *, locked: bool = True) -> Path:
        """Return the folder of one version of a hub with that digest, existing or not."""
        suffix = "" if locked else "-unlocked"
        version = f"{name.version}-{wheel_sha256[:12]}{suffix}"
        return path_below(self.root, folder_of_hub(hub), name.owner, name.name, version)

    def choose(self, installed: Installed) -> None:
        """Note that an installed environment is used now, and is what its version means here."""
        with contextlib.suppress(OSError):  # on a disk that is only read
            (installed.path / RECORD).touch()
        self.virtualenvs.mark_used(installed.record.virtualenv)

    def set_chosen_at(self, installed: Installed, moment: float) -> None:
        """Note when an installed environment was chosen, `NEVER` for one that is used by a single run."""
        with contextlib.suppress(OSError):  # on a disk that is only read
            os.utime(installed.path / RECORD, (moment, moment))

    def lock(self, name: EnvironmentName) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of an environment of any hub, so that two installs of it take turns."""
        return hold_lock(self.root, f"{name.owner}--{name.name}")

    def installed(self, place: Path, record: InstalledRecord) -> Installed:
        """Return the installed environment of a folder and its record."""
        chosen_at = (place / RECORD).stat().st_mtime
        return Installed(place, record, self.virtualenvs.root / record.virtualenv, chosen_at)

    def remove(self, installed: Installed) -> None:
        """Remove an installed environment, with its virtual environment when no other uses it."""
        discard(installed.path)
        for folder in list(installed.path.parents)[:3]:
            with contextlib.suppress(OSError):  # other versions or environments are still there
                folder.rmdir()
        key = installed.record.virtualenv
        if key not in {one.record.virtualenv for one in self.all()}:
            self.virtualenvs.remove(key)

    def stale(self) -> list[Path]:
        """Return what installations and removals left that were killed."""
        folders = [self.root, *self.root.glob("*"), *self.root.glob("*/*"), *self.root.glob("*/*/*")]
        inner = [each for folder in folders if folder.is_dir() for each in stale_in(folder)]
        return [*inner, *stale_in(self.virtualenvs.root)]


def folder_of_hub(url: str) -> str:
    """Return the name of the folder with what was installed from a hub."""
    host = re.sub(r"[^A-Za-z0-9.]+", "-", url.partition("://")[2]).strip("-.")[:60] or "hub"
    return f"{host}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


State = Literal["ok", "broken", "unreferenced", "unfinished"]
_SETTLED = timedelta(minutes=10)
"""An installation that runs now has used its virtual environment within this time."""


@dataclass(frozen=True)
class CachedEnvironment:
    """One virtual environment, or what an installation left that was killed."""

    path: Path
    state: State
    """`broken`: its Python is gone; `unreferenced`: nothing uses it; `unfinished`: a killed build."""
    space: Space
    last_used: datetime
    users: tuple[Installed, ...] = ()
    """The installed environments that run in it."""


def list_cached(store: EnvironmentStore) -> list[CachedEnvironment]:
    """Return everything in the store, the most recently used first; killed builds come last."""
    users: dict[str, list[Installed]] = {}
    for one in store.all():
        users.setdefault(one.record.virtualenv, []).append(one)
    found = []
    for key in store.virtualenvs.names():
        path, ones = store.virtualenvs.root / key, tuple(users.pop(key, ()))
        state: State = "ok" if ones else "unreferenced"
        if not store.virtualenvs.works(key):
            state = "broken"
        found.append(CachedEnvironment(path, state, space_of(path), store.virtualenvs.last_used(key), ones))
    found += [  # those whose virtual environment is not there
        CachedEnvironment(one.path, "broken", space_of(one.path), one.record.installed_at, (one,))
        for ones in users.values()
        for one in ones
    ]
    stale = [
        CachedEnvironment(
            path, "unfinished", space_of(path), datetime.fromtimestamp(path.stat().st_mtime, UTC)
        )
        for path in store.stale()
    ]
    return sorted(found, key=lambda each: each.last_used, reverse=True) + stale


def prunable(
    found: list[CachedEnvironment], unused_for: timedelta | None, now: datetime
) -> list[CachedEnvironment]:
    """Return what can go: broken, unfinished, unreferenced, and with `unused_for` what was not used so long.

    A virtual environment that nothing uses yet may belong to an installation that runs now: it stays a while.
    """
    return [
        each
        for each in found
        if each.state in ("broken", "unfinished")
        or (each.state == "unreferenced" and now - each.last_used > _SETTLED)
        or (unused_for is not None and now - each.last_used > unused_for)
    ]


def prune(store: EnvironmentStore, chosen: list[CachedEnvironment]) -> list[CachedEnvironment]:
    """Remove what was chosen, with the environments installed in it; returns what went.

    What an installation holds at this moment stays.
    """
    import shutil

    gone = []
    for each in chosen:
        if each.state == "unfinished":
            shutil.rmtree(each.path, ignore_errors=True)
        else:
            for one in each.users:
                with store.lock(one.name), contextlib.suppress(FileNotFoundError):
                    store.remove(one)
            if each.path.parent == store.virtualenvs.root and each.path.exists():
                store.virtualenvs.remove(each.path.name)
        if not each.path.exists():
            gone.append(each)
    return gone
