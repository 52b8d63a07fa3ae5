"""Install an exact version from a hub into its own virtual environment.

The hub names a wheel with its digest, and usually a lock (`wander_client.packages.lock`). With a lock, the
same packages are installed everywhere, at any time. Without a lock, or if the lock is ignored, packages are
resolved for this machine: Wander's own packages come from the hub's index if the hub serves them, and all
others from the user's index.
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
"""Maximum number of versions to try when looking for a version that fits this machine."""


def exact_version(
    hub: HubApi, name: EnvironmentName, warn: Callable[[str], None] = lambda text: None
) -> VersionDetail:
    """Return the version that a name means. A yanked version must be named exactly."""
    if name.version is None:
        detail = hub.environment(name.owner, name.name)
        if detail.status != "active":
            warn(f"`{name}` is {status_words(detail)}")
        latest = detail.latest
        if latest.yanked:
            raise NotFound(
                f"every version of `{name}` is yanked",
                hint=f"if you need one, pass its exact version: `{name}@{latest.version}`",
                code="yanked",
                detail=latest.yanked_reason,
            )
        return latest
    version = hub.version(name.owner, name.name, name.version)
    if version.deleted_at is not None:
        versions = hub.environment(name.owner, name.name).all_versions
        raise NotFound(
            f"`{name}` was deleted on {version.deleted_at:%Y-%m-%d}",
            hint=f"available versions: {', '.join(f'`{number}`' for number in versions[:10])}",
            code="version_deleted",
            detail=version.deleted_reason,
        )
    return version


def choose_version(
    hub: HubApi, name: EnvironmentName, warn: Callable[[str], None]
) -> tuple[VersionDetail, Interpreter, FileInfo]:
    """Return the version that a name means here, with a Python and a wheel that fit.

    If the name has no version, this is the newest version that fits this machine. Raises `ClientError` if no
    version fits. If the named version does not fit, the hint names a version that does.
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
            error.hint = f"another version fits this machine: `wander install {fitting}`"
            raise
        warn(f"{error}; using `{fitting}` instead")
        return other


def _fit(detail: VersionDetail, warn: Callable[[str], None]) -> tuple[VersionDetail, Interpreter, FileInfo]:
    label = f"`{detail.owner}/{detail.name}@{detail.version}`"
    python = choose_python(detail.requires_python, label, warn)
    return detail, python, wheel_file(detail, python)


def _find_other(
    hub: HubApi, wanted: VersionDetail, warn: Callable[[str], None]
) -> tuple[VersionDetail, Interpreter, FileInfo] | None:
    """Return the newest other version that fits, among the newest versions.

    Releases come before pre-releases.
    """
    environment = hub.environment(wanted.owner, wanted.name)
    offered = set(environment.all_versions) - {*environment.yanked_versions, wanted.version}
    newest = sorted(
        map(Version, offered), key=lambda version: (not version.is_prerelease, version), reverse=True
    )
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
    """Install an environment unless it is installed. Returns it, and whether it was installed now.

    `no_lock` chooses whether to ignore the version's lock. None means the last choice for this version, at
    first with the lock.
    """
    detail, python, listed = choose_version(hub, name, warn)
    if detail.yanked:
        warn(f"`{name}` was yanked" + (f": {detail.yanked_reason}" if detail.yanked_reason else ""))
    exact = EnvironmentName(detail.owner, detail.name, detail.version)
    if no_lock is None:
        last = [item for item in store.find(exact, hub.url) if item.is_chosen][-1:]
        no_lock = bool(last) and last[0].record.unlocked == "chosen"
    unlocked: Unlocked | None = None
    if detail.lock is None or no_lock:
        unlocked = "none_published" if detail.lock is None else "chosen"
    wanted = (detail.lock.sha256 if detail.lock is not None and not no_lock else None, unlocked)

    def find_present() -> Installed | None:
        for item in () if force else store.find(exact, hub.url):
            digest = listed.sha256 == item.record.wheel_sha256
            if digest and (item.record.lock_sha256, item.record.unlocked) == wanted and item.is_complete:
                store.choose(item)
                return item
        return None

    if (present := find_present()) is not None:  # nothing is written, so no lock is taken
        return present, False
    target = store.folder_for(hub.url, exact, listed.sha256, locked=unlocked != "chosen")
    with store.lock(exact), _suggest_no_lock(exact, unlocked):
        if (present := find_present()) is not None:  # installed by another process in the meantime
            return present, False
        # If the environment was renamed, its wheels still have the old name.
        wheel = fetch_file(hub, cache_dir, parse_wheel_filename(listed.filename)[0], listed)
        with stage_folder(target) as work:
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
    return store.installed(target, record), True


@contextmanager
def _suggest_no_lock(exact: EnvironmentName, unlocked: Unlocked | None) -> Iterator[None]:
    """If the lock causes an error, add a hint that installs without it."""
    try:
        yield
    except ClientError as error:
        if unlocked is None and error.code in ("lock_platform", "lock_unserved", "uv_failed"):
            command = f"`wander install {exact} --no-lock`"
            error.hint = (
                f"{command} installs the newest packages instead, as does `--no-lock` of `wander runs replay`"
            )
        raise


@dataclass(frozen=True)
class _Installation:
    """The contents of a virtual environment that will be created."""

    lock: bytes
    """The lock to save. It contains no paths of this machine."""
    key: str
    """Digest that identifies the virtual environment."""
    install: str
    """Requirements for uv: names and files, each with its digests."""
    python: Interpreter

    @classmethod
    def of(
        cls, hub: HubApi, cache_dir: Path, lock: bytes, wheel: Wheel, python: Interpreter
    ) -> _Installation:
        """Return the contents that a lock specifies for this machine."""
        lines = install_lines(hub, cache_dir, read_lock(lock), wheel, python)
        key = hashlib.sha256(f"{hashlib.sha256(lock).hexdigest()}\n{wheel.sha256}\n".encode()).hexdigest()
        return cls(lock, key, lines, python)


def _fetch_lock(hub: HubApi, cache_dir: Path, detail: VersionDetail) -> bytes:
    """Download the version's lock."""
    assert detail.lock is not None
    file = path_below(cache_dir / "locks", detail.lock.sha256, LOCK)
    size = min(detail.lock.size or LARGEST_LOCK, LARGEST_LOCK)
    fetch_into(hub, file, detail.lock.url, detail.lock.sha256, size)
    return file.read_bytes()


@dataclass(frozen=True)
class Trial:
    """A virtual environment with a local wheel."""

    python: Path
    runtime: Runtime
    """Origin of the virtual environment, for the sandbox."""
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
    """Install a local wheel like `install` would after it is published. The installation ends with the block.

    The other packages of a lock are installed once, and copied with hard links for every trial that needs the
    same. Raises `ClientError`.
    """
    this = Wheel.to_publish(wheel, hub, owner)
    label, metadata = f"{this.project} {this.version}", metadata_of(wheel)
    python = choose_python(metadata["Requires-Python"], f"`{label}`", warn)
    with virtualenvs.scratch() as folder:
        if lock is None:
            resolved = lock_here(hub, owner, find_supplies(hub, cache_dir, this, warn), label, python)
            contents = _Installation.of(hub, cache_dir, resolved, this, python)
            with _fill(VirtualEnvironments(folder), contents, label) as virtualenv:
                yield _trial(virtualenv, python, contents.lock.decode())
            return
        own, *others = install_lines(hub, cache_dir, read_lock(lock), this, python).splitlines(keepends=True)
        rest = "".join(sorted(others))
        key = hashlib.sha256(rest.encode()).hexdigest()
        virtualenv = folder / "virtualenv"
        with _fill(virtualenvs, _Installation(b"", key, rest, python), label) as shared:
            copy_by_links(shared, virtualenv)
        (folder / "own.txt").write_text(own, encoding="utf-8")
        options = ["install", "--quiet", "--no-deps", "-r", str(folder / "own.txt")]
        install_into(virtualenv, options, doing=f"installing `{label}`")
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
    """Return the names and versions of the packages in a virtual environment, from its files.

    Its Python is not run, because that would run startup files (`.pth`) from untrusted packages outside of
    the sandbox.
    """
    folders = [str(folder) for folder in virtualenv.glob("lib/python*/site-packages")]
    packages = {}
    for package in distributions(path=folders):
        version = package.version
        with suppress(InvalidVersion):
            version = str(Version(version))
        packages[str(canonicalize_name(package.name))] = version
    return packages


def _fill(
    virtualenvs: VirtualEnvironments, contents: _Installation, label: str, *, force: bool = False
) -> AbstractContextManager[Path]:
    """Hold the virtual environment for these contents. Creates it if it does not exist."""

    def build(folder: Path) -> None:
        make_virtualenv(folder, contents.python.path)
        source = folder / "requirements.txt"
        source.write_text(contents.install, encoding="utf-8")
        options = ["sync", "--quiet", "--require-hashes", str(source)]
        install_into(folder, options, doing=f"installing `{label}`")
        source.unlink()

    key = key_of(contents.key, contents.python.version)
    return virtualenvs.hold(key, contents.python, build, force=force)


def wheel_file(detail: VersionDetail, python: Interpreter = HERE) -> FileInfo:
    """Return the wheel of a version that fits a Python interpreter best.

    If several wheels fit equally well, the highest build number wins.
    """
    supported = {tag: rank for rank, tag in enumerate(python.tags)}
    ranked = [
        (-supported[tag], build, file.filename, file)
        for file in detail.files
        if file.kind == "wheel"
        for build, tags in [_parse(file)]
        for tag in tags & supported.keys()
    ]
    if not ranked:
        listed = "\n".join(file.filename for file in detail.files) or "no files"
        raise NotFound(
            f"`{detail.owner}/{detail.name}` {detail.version} has no wheel for this machine",
            hint="ask its owner to publish a pure Python wheel",
            code="no_wheel",
            detail=listed,
        )
    return max(ranked, key=lambda item: item[:3])[3]


def _parse(file: FileInfo) -> tuple[BuildTag, frozenset[Tag]]:
    """Return the build number and the tags of a wheel."""
    try:
        return parse_wheel_filename(file.filename)[2:]
    except InvalidWheelFilename as error:
        raise ClientError(
            f"the hub lists `{file.filename}`, which is not the name of a wheel", code="unexpected_answer"
        ) from error
