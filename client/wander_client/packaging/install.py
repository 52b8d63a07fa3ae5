"""Install an exact version from a hub into a virtual environment of its own.

The hub names one wheel with its digest; `wander-sdk` and `wander-client` come from the hub's own index
(`/wander/simple/`) when it serves them, everything else from the user's index. The first kind is resolved by
direct URL: no index can offer another package under those names. What was resolved is locked with hashes
before anything is installed.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from wander.wire import EnvironmentDetail, FileInfo, VersionDetail

from wander_client.api import HubApi
from wander_client.errors import ClientError, NotFound
from wander_client.packaging import classic
from wander_client.packaging.resolve import EnvironmentName
from wander_client.packaging.store import LOCK, RECORD, EnvironmentStore, Installed, InstalledRecord
from wander_client.packaging.uv import index_arguments, run_uv
from wander_client.packaging.virtualenvs import VirtualEnvironments, key_of, staged

HUB_OWNER = "wander"
"""The owner under which a hub serves the packages it runs with."""
HUB_PACKAGES = ("wander-sdk", "wander-client")
_VENV = ("venv", "--quiet", "--relocatable", "--no-project", "--allow-existing")


@dataclass(frozen=True)
class Wheel:
    """A wheel that the hub lists, downloaded and checked."""

    project: str
    version: str
    path: Path
    url: str
    sha256: str


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
                hint=f"name one exactly if you must: `{name}@{latest.version}`",
                code="yanked",
                detail=latest.yanked_reason,
            )
        return latest
    return hub.version(name.owner, name.name, name.version)


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
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[Installed, bool]:
    """Install what the name means, unless it is there; returns it and whether anything was done."""
    detail = exact_version(hub, name, warn)
    if detail.yanked:
        warn(f"`{name}` was yanked" + (f": {detail.yanked_reason}" if detail.yanked_reason else ""))
    exact = EnvironmentName(detail.owner, detail.name, detail.version)
    wheel_file = _wheel_file(detail)
    _require_python(detail)
    place = store.place(exact, wheel_file.sha256)
    with store.locked(exact):
        if (place / RECORD).is_file() and not force:
            present = [one for one in store.find(exact, hub.url) if one.path == place]
            if present and present[0].python.exists():
                store.virtualenvs.mark_used(present[0].record.virtualenv)
                return present[0], False
        wheel = _fetch(hub, cache_dir, canonicalize_name(detail.name), wheel_file)
        needs = _needs(hub, cache_dir, wheel, detail.requires_dist, warn)
        with staged(place) as work:
            what = str(exact)
            lock = _resolve(work, needs, what)
            with _filled(store.virtualenvs, lock, needs, what, force=force) as virtualenv:
                record = _record(hub, detail, needs, lock, virtualenv)
                (work / RECORD).write_text(record.model_dump_json(indent=1), encoding="utf-8")
    return store.installed(place, record), True


@dataclass(frozen=True)
class Needs:
    """What goes into a virtual environment beside what a package index has."""

    own: list[Wheel]
    """The environment's wheel, then those of the hub's own packages that it needs."""
    shim: Wheel | None = None
    """The hub's `verifiers`, where it stands in for upstream's."""
    overrides: str = ""
    first: str = ""
    """A requirement that is resolved before all others."""

    @property
    def wheels(self) -> list[Wheel]:
        """Every wheel that lies in this machine's cache."""
        return [*self.own, *([] if self.shim is None else [self.shim])]


def try_out(
    hub: HubApi, cache_dir: Path, work: Path, wheel: Path, warn: Callable[[str], None]
) -> tuple[Path, Path]:
    """Install a wheel of this machine into `work`, as `install` would once it is published.

    Returns the interpreter and the lock; raises `ClientError`.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(archive.read(name))
    project = canonicalize_name(str(metadata["Name"]))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    this = Wheel(project, str(metadata["Version"]), wheel.resolve(), wheel.resolve().as_uri(), digest)
    required = [str(each) for each in metadata.get_all("Requires-Dist") or []]
    needs = _needs(hub, cache_dir, this, required, warn)
    what = f"{project} {this.version}"
    lock = _resolve(work, needs, what)
    with _filled(VirtualEnvironments(work), lock, needs, what) as virtualenv:
        return virtualenv / "bin" / "python", lock


def _record(
    hub: HubApi, detail: VersionDetail, needs: Needs, lock: Path, virtualenv: Path
) -> InstalledRecord:
    python = str(virtualenv / "bin" / "python")
    freeze = run_uv(["pip", "list", "--format", "json", "--python", python], doing="listing packages")
    wheel = needs.own[0]
    return InstalledRecord(
        hub=hub.url,
        owner=detail.owner,
        name=detail.name,
        version=detail.version,
        wheel=wheel.path.name,
        wheel_sha256=wheel.sha256,
        wheel_url=wheel.url,
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest(),
        virtualenv=virtualenv.name,
        sdk=_sdk_version(freeze, f"{detail.owner}/{detail.name}@{detail.version}"),
        python=platform.python_version(),
        entry_point=detail.entry_point,
        installed_at=datetime.now(UTC),
    )


@contextmanager
def _filled(
    virtualenvs: VirtualEnvironments, lock: Path, needs: Needs, what: str, *, force: bool = False
) -> Iterator[Path]:
    """Yield the virtual environment of a lock, installed where there is none yet.

    The lock then names the hub's URLs in place of this machine's cache, and by that text it is known.
    """
    here = lock.read_text(encoding="utf-8")
    portable = _portable(here, needs.wheels)

    def install_into(folder: Path) -> None:
        run_uv(
            [*_VENV, "--python", sys.executable, str(folder)],
            doing="making the virtual environment",
        )
        python = str(folder / "bin" / "python")
        run_uv(
            ["pip", "sync", "--quiet", "--python", python, *index_arguments(), str(lock)],
            doing=f"installing `{what}`",
        )

    key = key_of(hashlib.sha256(portable.encode()).hexdigest())
    with virtualenvs.held(key, install_into, force=force) as virtualenv:
        lock.write_text(portable, encoding="utf-8")
        yield virtualenv


def _resolve(work: Path, needs: Needs, what: str) -> Path:
    """Write the lock of the hub's wheels and everything they need."""
    requirements, overriding = work / "requirements.in", work / "overrides.txt"
    wanted = [needs.first, *(f"{wheel.project} @ {wheel.path.as_uri()}" for wheel in needs.own)]
    requirements.write_text("".join(f"{line}\n" for line in wanted if line))
    overriding.write_text(needs.overrides)
    lock = work / LOCK
    run_uv(
        [
            "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", "--python", sys.executable,
            *index_arguments(), "--override", str(overriding), str(requirements), "--output-file", str(lock),
        ],
        doing=f"resolving the dependencies of `{what}`",
    )  # fmt: skip
    requirements.unlink()
    overriding.unlink()
    return lock


def _portable(lock: str, own: list[Wheel]) -> str:
    """Return a lock that names the hub's URLs instead of this machine's cache."""
    for wheel in own:
        lock = lock.replace(f'path = "{wheel.path}"', f'url = "{wheel.url}"')
    return lock


def _wheel_file(detail: VersionDetail) -> FileInfo:
    """Return the wheel of a version that this Python can install."""
    supported = {tag: rank for rank, tag in enumerate(sys_tags())}
    ranked = []
    for file in detail.files:
        if file.kind == "wheel":
            tags = parse_wheel_filename(file.filename)[3]
            ranked += [(supported[tag], file.filename, file) for tag in tags if tag in supported]
    if not ranked:
        listed = "\n".join(file.filename for file in detail.files) or "no files at all"
        raise NotFound(
            f"`{detail.owner}/{detail.name}` {detail.version} has no wheel for this machine",
            hint="ask its owner to publish a pure Python wheel",
            code="no_wheel",
            detail=listed,
        )
    return min(ranked, key=lambda item: item[:2])[2]


def _require_python(detail: VersionDetail) -> None:
    here = platform.python_version()
    what = f"`{detail.owner}/{detail.name}` {detail.version}"
    if detail.requires_python and not SpecifierSet(detail.requires_python).contains(here, prereleases=True):
        raise ClientError(
            f"{what} needs Python {detail.requires_python}, this is {here}",
            hint="install wander-client under such a Python, or choose another version of the environment",
            code="python_version",
        )


def _needs(
    hub: HubApi, cache_dir: Path, wheel: Wheel, requires_dist: list[str], warn: Callable[[str], None]
) -> Needs:
    """Return what an environment needs of the hub: always the SDK, and `verifiers` where ours will do."""
    wanted = _requirements(requires_dist, f"{wheel.project} {wheel.version}")
    own = [wheel]
    for project in HUB_PACKAGES:
        if project != "wander-sdk" and project not in wanted:
            continue
        files = hub.index_files(HUB_OWNER, project)
        if files is None:
            warn(f"`{hub.url}` does not serve `{project}`: it comes from your package index")
            continue
        own.append(_fetch(hub, cache_dir, project, _newest(project, files, wanted.get(project))))
    if classic.keeps_upstream(wheel.path, requires_dist):
        return Needs(own, first=classic.upstream_requirement(requires_dist))
    shim = _classic_package(hub, cache_dir)
    if shim is None:
        return Needs(own)
    return Needs(own, shim, classic.override(shim.path, classic.requirement_of(requires_dist)))


def _classic_package(hub: HubApi, cache_dir: Path) -> Wheel | None:
    """Return the hub's `verifiers`, which stands in for upstream's wherever the classic API will do."""
    files = hub.index_files(HUB_OWNER, classic.PROJECT)
    if files is None:
        return None  # this hub does not serve it
    return _fetch(hub, cache_dir, classic.PROJECT, _newest(classic.PROJECT, files, None))


def _requirements(requires_dist: list[str], what: str) -> dict[str, SpecifierSet]:
    found: dict[str, SpecifierSet] = {}
    for text in requires_dist:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ClientError(
                f"`{what}` requires `{text}`, which names nothing",
                hint="ask its owner to publish a corrected version",
            ) from error
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def _newest(project: str, files: list[dict[str, Any]], wanted: SpecifierSet | None) -> FileInfo:
    """Return the newest wheel of the hub's index page that the specifier allows."""
    found: list[tuple[Version, dict[str, Any]]] = []
    for file in files:
        try:
            version = parse_wheel_filename(file["filename"])[1]
        except InvalidWheelFilename:
            continue
        if not file.get("yanked") and (wanted is None or wanted.contains(version, prereleases=True)):
            found.append((version, file))
    if not found:
        served = ", ".join(str(file["filename"]) for file in files) or "nothing"
        raise ClientError(
            f"the hub serves no `{project}` that fits `{wanted}`",
            hint="the environment was written for another version of Wander than this hub's",
            code="incompatible_sdk",
            detail=f"served: {served}",
        )
    _, best = max(found, key=lambda item: item[0])
    digest = best.get("hashes", {}).get("sha256")
    if not digest:
        raise ClientError(f"the hub lists `{best['filename']}` without a digest", code="no_digest")
    return FileInfo(
        filename=best["filename"],
        kind="wheel",
        size=int(best.get("size") or 0),
        sha256=digest,
        url=best["url"],
        uploaded_at=datetime.now(UTC),
    )


def _fetch(hub: HubApi, cache_dir: Path, project: str, file: FileInfo) -> Wheel:
    """Return a file of the hub from the cache, downloading it first when it is not there."""
    try:
        version = parse_wheel_filename(file.filename)[1]
    except InvalidWheelFilename as error:
        raise ClientError(f"the hub lists `{file.filename}`, which is no wheel") from error
    target = cache_dir / "wheels" / file.sha256 / file.filename
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() != file.sha256:
        shutil.rmtree(target.parent)
    if not target.is_file():
        hub.download(file.url, target, file.sha256)
    url = hub.absolute(file.url)
    return Wheel(project, str(version), target.resolve(), url, file.sha256)


def _sdk_version(listing: str, what: str) -> str:
    import json

    for package in json.loads(listing):
        if canonicalize_name(package["name"]) == "wander-sdk":
            return str(package["version"])
    raise ClientError(
        f"`{what}` does not depend on `wander-sdk`",
        hint="ask its owner to add `wander-sdk` to the package's dependencies",
        code="no_sdk",
    )
