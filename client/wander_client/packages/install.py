"""Install an exact version from a hub into a virtual environment of its own.

The hub names one wheel with its digest, and mostly a lock (`wander_client.packages.lock`): the packages are
then exactly those of the lock, whenever and wherever it is installed. Without one, or where the lock is left
aside, a lock for this machine is resolved at the moment: Wander's own packages come from the hub's index when
it serves them, everything else from the user's index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from wander.wire import EnvironmentDetail, FileInfo, Unlocked, VersionDetail

from wander_client.errors import ClientError, NotFound
from wander_client.hub.api import HubApi
from wander_client.names import EnvironmentName
from wander_client.packages.interpreters import HERE, Interpreter, choose_python
from wander_client.packages.lock import install_lines, lock_here, read_lock
from wander_client.packages.needs import (
    Wheel,
    fetch_file,
    fetch_into,
    find_supplies,
    metadata_of,
)
from wander_client.packages.store import LOCK, RECORD, EnvironmentStore, Installed, InstalledRecord
from wander_client.packages.uv import install_into, make_virtualenv
from wander_client.packages.virtualenvs import (
    VirtualEnvironments,
    copy_by_links,
    give_bytecode,
    key_of,
    stage_folder,
)
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime

LARGEST_LOCK = 64 << 20
_MOST_TRIED = 20
"""Versions that are looked at for one that fits this machine."""


def exact_version(
    hub: HubApi, name: EnvironmentName, warn: Callable[[str], None] = lambda text: None
) -> VersionDetail:
    """Return the version that a name means; a yanked version only when it is named exactly."""
    if name.version is None:
        detail = hub.environment(name.owner, name.name)
        if detail.status != "active":
            warn(f"`{name}` is {status_words(detail)}")
        latest = detail.latest
        if latest.yanked:
            raise NotFound(
                f"every version of `{name}` is yanked",
                hint=f"if you need one, name it exactly: `{name}@{latest.version}`",
                code="yanked",
                detail=latest.yanked_reason,
            )
        return latest
    found = hub.version(name.owner, name.name, name.version)
    if found.deleted_at is not None:
        there = hub.environment(name.owner, name.name).all_versions
        raise NotFound(
            f"`{name}` was deleted on {found.deleted_at:%Y-%m-%d}",
            hint=f"there are {', '.join(f'`{one}`' for one in there[:10])}",
            code="version_deleted",
            detail=found.deleted_reason,
        )
    return found


def choose_version(
    hub: HubApi, name: EnvironmentName, warn: Callable[[str], None]
) -> tuple[VersionDetail, Interpreter, FileInfo]:
    """Return the version that a name means here, with a Python and a wheel that fit.

    Without a version it is the newest that fits this machine. Raises `ClientError` when none does, or if the
    named one does not; the hint names one that does.
    """
    wanted = exact_version(hub, name, warn)
    try:
        return _fit(wanted, warn)
    except ClientError as error:
        if error.code not in ("python_version", "no_wheel"):
            raise
        if (other := _find_other(hub, wanted, warn)) is None:
            raise
        fitting = EnvironmentName(wanted.owner, wanted.name, other[0].version)
        if name.version is not None:
            error.hint = f"this machine can have another version: `wander install {fitting}`"
            raise
        warn(f"{error}: `{fitting}` is taken")
        return other


def _fit(detail: VersionDetail, warn: Callable[[str], None]) -> tuple[VersionDetail, Interpreter, FileInfo]:
    what = f"`{detail.owner}/{detail.name}@{detail.version}`"
    python = choose_python(detail.requires_python, what, warn)
    return detail, python, wheel_file(detail, python)


def _find_other(
    hub: HubApi, wanted: VersionDetail, warn: Callable[[str], None]
) -> tuple[VersionDetail, Interpreter, FileInfo] | None:
    """Return the newest other version that fits, of the newest ones; releases come before pre-releases."""
    environment = hub.environment(wanted.owner, wanted.name)
    offered = set(environment.all_versions) - {*environment.yanked_versions, wanted.version}
    newest = sorted(map(Version, offered), key=lambda one: (not one.is_prerelease, one), reverse=True)
    for version in newest[:_MOST_TRIED]:
        with suppress(ClientError):
            return _fit(hub.version(wanted.owner, wanted.name, str(version)), warn)
    return None


def status_words(detail: EnvironmentDetail) -> str:
    """Return an environment's status with its reason and successor: `deprecated: biased; use a/b`."""
    reason = f": {detail.status_reason}" if detail.status_reason else ""
    successor = f"; use `{detail.successor}`" if detail.successor else ""
    return f"{detail.status}{reason}{successor}"


def install(
    hub: HubApi,
    store: EnvironmentStore,
    cache_dir: Path,
    name: EnvironmentName,
    *,
    force: bool = False,
    no_lock: bool | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[Installed, bool]:
    """Install what the name means, unless it is there; returns it and whether anything was done.

    `no_lock` leaves the version's lock aside, or takes it; None takes what was chosen last for this version,
    at first the lock.
    """
    detail, python, listed = choose_version(hub, name, warn)
    if detail.yanked:
        warn(f"`{name}` was yanked" + (f": {detail.yanked_reason}" if detail.yanked_reason else ""))
    exact = EnvironmentName(detail.owner, detail.name, detail.version)
    if no_lock is None:
        last = [one for one in store.find(exact, hub.url) if one.is_chosen][-1:]
        no_lock = bool(last) and last[0].record.unlocked == "chosen"
    unlocked: Unlocked | None = None
    if detail.lock is None or no_lock:
        unlocked = "none_published" if detail.lock is None else "chosen"
    wanted = (detail.lock.sha256 if detail.lock is not None and not no_lock else None, unlocked)

    def find_present() -> Installed | None:
        for one in () if force else store.find(exact, hub.url):
            digest = listed.sha256 == one.record.wheel_sha256
            if digest and (one.record.lock_sha256, one.record.unlocked) == wanted and one.is_complete:
                store.choose(one)
                return one
        return None

    if (present := find_present()) is not None:  # nothing is written, so nothing is locked
        return present, False
    place = store.place(hub.url, exact, listed.sha256, locked=unlocked != "chosen")
    with store.lock(exact), _with_a_way_out(exact, unlocked):
        if (present := find_present()) is not None:  # another process installed it meanwhile
            return present, False
        # An environment may have been renamed since; its wheels keep the name that they were built under.
        wheel = fetch_file(hub, cache_dir, parse_wheel_filename(listed.filename)[0], listed)
        with stage_folder(place) as work:
            if unlocked is None:
                lock = _fetch_lock(hub, cache_dir, detail)
            else:
                needs = find_supplies(hub, cache_dir, wheel, warn)
                lock = lock_here(hub, detail.owner, needs, str(exact), python)
            contents = _Installation.of(hub, cache_dir, lock, wheel, python)
            with _fill(store.virtualenvs, contents, str(exact), force=force) as virtualenv:
                record = _record(hub, detail, wheel, contents, unlocked, virtualenv)
                (work / LOCK).write_bytes(contents.lock)
                record.write(work / RECORD)
    return store.installed(place, record), True


@contextmanager
def _with_a_way_out(exact: EnvironmentName, unlocked: Unlocked | None) -> Iterator[None]:
    """Say, where the lock is the trouble, how to install without it."""
    try:
        yield
    except ClientError as error:
        if unlocked is None and error.code in ("lock_platform", "lock_unserved", "uv_failed"):
            command = f"`wander install {exact} --no-lock`"
            error.hint = (
                f"{command} uses the newest packages, and so does `--no-lock` of `wander runs replay`"
            )
        raise


@dataclass(frozen=True)
class _Installation:
    """What goes into a virtual environment, before it is made."""

    lock: bytes
    """As it is kept; it names nothing of this machine."""
    key: str
    """Digest of what the virtual environment is known by."""
    install: str
    """The lines that uv is given: names and files, each with its digests."""
    python: Interpreter

    @classmethod
    def of(
        cls, hub: HubApi, cache_dir: Path, lock: bytes, wheel: Wheel, python: Interpreter
    ) -> _Installation:
        """Return what a lock names for this machine."""
        lines = install_lines(hub, cache_dir, read_lock(lock), wheel, python)
        key = hashlib.sha256(f"{hashlib.sha256(lock).hexdigest()}\n{wheel.sha256}\n".encode()).hexdigest()
        return cls(lock, key, lines, python)


def _fetch_lock(hub: HubApi, cache_dir: Path, detail: VersionDetail) -> bytes:
    """Return the version's lock."""
    assert detail.lock is not None
    file = path_below(cache_dir / "locks", detail.lock.sha256, LOCK)
    size = min(detail.lock.size or LARGEST_LOCK, LARGEST_LOCK)
    fetch_into(hub, file, detail.lock.url, detail.lock.sha256, size)
    return file.read_bytes()


@dataclass(frozen=True)
class Trial:
    """A virtual environment in which a wheel of this machine is installed."""

    python: Path
    runtime: Runtime
    """What it was made from, which the sandbox needs to know."""
    lock: str


@contextmanager
def try_out(
    hub: HubApi,
    virtualenvs: VirtualEnvironments,
    cache_dir: Path,
    owner: str,
    wheel: Path,
    warn: Callable[[str], None],
    lock: bytes | None = None,
) -> Iterator[Trial]:
    """Install a wheel of this machine, until the block ends, as `install` would once it is published so.

    What a lock names next to the wheel is installed once, and copied by links for each that needs the same.
    Raises `ClientError`.
    """
    this = Wheel.to_publish(wheel, hub, owner)
    what, metadata = f"{this.project} {this.version}", metadata_of(wheel)
    python = choose_python(metadata["Requires-Python"], f"`{what}`", warn)
    with virtualenvs.scratch() as folder:
        if lock is None:
            made = lock_here(hub, owner, find_supplies(hub, cache_dir, this, warn), what, python)
            contents = _Installation.of(hub, cache_dir, made, this, python)
            with _fill(VirtualEnvironments(folder), contents, what) as virtualenv:
                yield _trial(virtualenv, python, contents.lock.decode())
            return
        own, *others = install_lines(hub, cache_dir, read_lock(lock), this, python).splitlines(keepends=True)
        rest = "".join(sorted(others))
        key = hashlib.sha256(rest.encode()).hexdigest()
        virtualenv = folder / "virtualenv"
        with _fill(virtualenvs, _Installation(b"", key, rest, python), what) as shared:
            copy_by_links(shared, virtualenv)
        (folder / "own.txt").write_text(own, encoding="utf-8")
        options = ["install", "--quiet", "--no-deps", "-r", str(folder / "own.txt")]
        install_into(virtualenv, options, doing=f"installing `{what}`")
        yield _trial(virtualenv, python, lock.decode())
        give_bytecode(virtualenv, shared)


def _trial(virtualenv: Path, python: Interpreter, lock: str) -> Trial:
    from wander.sandbox.visible import Runtime

    runtime = Runtime(python.executable, python.prefix, python.version, str(virtualenv))
    return Trial(virtualenv / "bin" / "python", runtime, lock)


def _record(
    hub: HubApi,
    detail: VersionDetail,
    wheel: Wheel,
    contents: _Installation,
    unlocked: Unlocked | None,
    virtualenv: Path,
) -> InstalledRecord:
    packages = packages_in(virtualenv)
    listing = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    if "wander-sdk" not in packages:
        raise ClientError(
            f"`{detail.owner}/{detail.name}@{detail.version}` does not depend on `wander-sdk`",
            hint="ask its owner to add `wander-sdk` to the package's dependencies",
            code="no_sdk",
        )
    return InstalledRecord(
        hub=hub.url,
        owner=detail.owner,
        name=detail.name,
        version=detail.version,
        wheel=wheel.path.name,
        wheel_sha256=wheel.sha256,
        wheel_url=wheel.url,
        lock_sha256=hashlib.sha256(contents.lock).hexdigest() if unlocked is None else None,
        unlocked=unlocked,
        packages_sha256=hashlib.sha256(listing.encode()).hexdigest(),
        virtualenv=virtualenv.name,
        sdk=packages["wander-sdk"],
        python=contents.python.version,
        entry_point=detail.entry_point,
        installed_at=datetime.now(UTC),
    )


def packages_in(virtualenv: Path) -> dict[str, str]:
    """Return names and versions of what a virtual environment holds, as its files tell.

    Its own Python is not asked: it would run what packages of strangers left for its start (`.pth`), and that
    outside of any sandbox.
    """
    folders = [str(folder) for folder in virtualenv.glob("lib/python*/site-packages")]
    found = {}
    for each in distributions(path=folders):
        version = each.version
        with suppress(InvalidVersion):
            version = str(Version(version))
        found[str(canonicalize_name(each.name))] = version
    return found


def _fill(
    virtualenvs: VirtualEnvironments, contents: _Installation, what: str, *, force: bool = False
) -> AbstractContextManager[Path]:
    """Hold the virtual environment of what is to be installed, made where there is none yet."""

    def build(folder: Path) -> None:
        make_virtualenv(folder, contents.python.path)
        source = folder / "requirements.txt"
        source.write_text(contents.install, encoding="utf-8")
        options = ["sync", "--quiet", "--require-hashes", str(source)]
        install_into(folder, options, doing=f"installing `{what}`")
        source.unlink()

    key = key_of(contents.key, contents.python.version)
    return virtualenvs.hold(key, contents.python, build, force=force)


def wheel_file(detail: VersionDetail, python: Interpreter = HERE) -> FileInfo:
    """Return the wheel of a version that a Python can install; if several fit equally, the highest build."""
    supported = {tag: rank for rank, tag in enumerate(python.tags)}
    ranked = [
        (-supported[tag], build, file.filename, file)
        for file in detail.files
        if file.kind == "wheel"
        for build, tags in [_parse(file)]
        for tag in tags & supported.keys()
    ]
    if not ranked:
        listed = "\n".join(file.filename for file in detail.files) or "no files at all"
        raise NotFound(
            f"`{detail.owner}/{detail.name}` {detail.version} has no wheel for this machine",
            hint="ask its owner to publish a pure Python wheel",
            code="no_wheel",
            detail=listed,
        )
    return max(ranked, key=lambda item: item[:3])[3]


def _parse(file: FileInfo) -> tuple[BuildTag, frozenset[Tag]]:
    """Return the build number of a wheel, and what it is for."""
    try:
        return parse_wheel_filename(file.filename)[2:]
    except InvalidWheelFilename as error:
        raise ClientError(
            f"the hub lists `{file.filename}`, which is not the name of a wheel", code="unexpected_answer"
        ) from error
