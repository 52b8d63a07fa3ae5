"""Build an environment package and upload it: wheel and source, in a folder that is thrown away."""

from __future__ import annotations

import hashlib
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from wander.wire import CheckSummary, VersionDetail

from wander_client.api import HubApi
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packaging.uv import index_arguments, run_uv

ENTRY_POINT_GROUP = "wander.environments"
LARGE_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True)
class Distribution:
    """One built file."""

    path: Path
    kind: str
    """`wheel` or `sdist`."""
    sha256: str
    size: int


@dataclass(frozen=True)
class BuiltPackage:
    """What a build made."""

    name: str
    version: str
    wheel: Distribution
    sdist: Distribution
    members: list[tuple[str, int]]
    """Files of the wheel with their sizes in bytes."""
    warnings: list[str]


@contextmanager
def built(folder: Path) -> Iterator[BuiltPackage]:
    """Build the wheel and the source distribution of a project; both are gone after the block."""
    require_project(folder)
    with TemporaryDirectory(prefix="wander-build-") as out:
        run_uv(
            ["build", "--quiet", "--no-create-gitignore", *index_arguments(), "--out-dir", out, str(folder)],
            doing=f"building `{folder.name}`",
        )
        wheels, sdists = sorted(Path(out).glob("*.whl")), sorted(Path(out).glob("*.tar.gz"))
        if len(wheels) != 1 or len(sdists) != 1:
            made = "\n".join(path.name for path in sorted(Path(out).iterdir()))
            raise ClientError(f"building `{folder}` gave no wheel with its source", detail=made)
        yield _inspected(_distribution(wheels[0], "wheel"), _distribution(sdists[0], "sdist"))


def require_project(folder: Path) -> dict[str, object]:
    """Return the `[project]` table of a folder; raises when it is no Python project."""
    path = folder / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project")
    except FileNotFoundError:
        raise UsageError(
            f"`{folder}` has no `pyproject.toml`",
            hint="`wander new NAME` makes a package that can be published",
            code="not_a_package",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"`{path}` is not valid TOML", detail=str(error), code="bad_pyproject") from error
    if not isinstance(project, dict) or not isinstance(project.get("name"), str):
        raise ClientError(f"`{path}` has no `name` under `[project]`", hint="add one", code="bad_pyproject")
    return project


def published_files(hub: HubApi, owner: str, package: BuiltPackage) -> dict[str, str]:
    """Return the digests of the files that the hub has of this version, by file name."""
    try:
        detail: VersionDetail = hub.version(owner, canonicalize_name(package.name), package.version)
    except NotFound:
        return {}
    return {file.filename: file.sha256 for file in detail.files}


def missing_files(hub: HubApi, owner: str, package: BuiltPackage) -> list[Distribution]:
    """Return the files that the hub does not have yet; raises when it has other bytes under their names."""
    present = published_files(hub, owner, package)
    files = [package.wheel, package.sdist]
    for file in files:
        there = present.get(file.path.name, file.sha256)
        if there != file.sha256:
            raise ClientError(
                f"`{owner}/{canonicalize_name(package.name)}` {package.version} exists with other bytes",
                hint="versions never change: raise `version` in `pyproject.toml` and publish again",
                code="version_exists",
                detail=f"{file.path.name}\nhub:  sha256:{there}\nhere: sha256:{file.sha256}",
            )
    return [file for file in files if file.path.name not in present]


def upload(
    hub: HubApi,
    owner: str,
    package: BuiltPackage,
    check: CheckSummary | None = None,
    *,
    lock: bytes | None = None,
    private: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Distribution]:
    """Upload what the hub does not have yet, the wheel with what its check found; returns what was sent.

    `lock` becomes the version's, unless it has one. `warn` is told what the hub takes and does not like.
    """
    missing = missing_files(hub, owner, package)
    visibility = {"wander_visibility": "private"} if private else {}
    for file in missing:
        answer = hub.upload(owner, file.path, _fields(package, file, check) | visibility)
        for warning in answer.warnings:
            hint = f" ({warning.hint})" if warning.hint else ""
            warn(f"`{file.path.name}`: {warning.detail}{hint}")
    if lock is not None:
        hub.attach_lock(owner, canonicalize_name(package.name), package.version, lock)
    return missing


def _fields(package: BuiltPackage, file: Distribution, check: CheckSummary | None) -> dict[str, str]:
    wheel = file.kind == "wheel"
    stated = {"wander_check": check.model_dump_json()} if wheel and check is not None else {}
    return {
        "metadata_version": "2.4",
        "name": package.name,
        "version": package.version,
        "filetype": "bdist_wheel" if wheel else "sdist",
        "pyversion": file.path.name.split("-")[-3] if wheel else "source",
        "sha256_digest": file.sha256,
        **stated,
    }


def _distribution(path: Path, kind: str) -> Distribution:
    content = path.read_bytes()
    return Distribution(path, kind, hashlib.sha256(content).hexdigest(), len(content))


def _inspected(wheel: Distribution, sdist: Distribution) -> BuiltPackage:
    """Read what was built; raises when it holds no environment."""
    version = str(parse_wheel_filename(wheel.path.name)[1])
    with zipfile.ZipFile(wheel.path) as archive:
        members = [(item.filename, item.file_size) for item in archive.infolist() if not item.is_dir()]
        metadata = BytesParser().parsebytes(archive.read(_member(members, ".dist-info/METADATA")))
        name = str(metadata["Name"])
        target = _entry_point(archive, members) or f"{name.replace('-', '_')}:load_environment"
        _require_function(archive, members, target)
    return BuiltPackage(name, version, wheel, sdist, members, _warnings(metadata, wheel))


def _member(members: list[tuple[str, int]], ending: str) -> str:
    return next(name for name, _ in members if name.endswith(ending) and name.count("/") == 1)


def _entry_point(archive: zipfile.ZipFile, members: list[tuple[str, int]]) -> str | None:
    import configparser

    try:
        listing = archive.read(_member(members, ".dist-info/entry_points.txt")).decode()
    except StopIteration:
        return None
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.read_string(listing)
    if not parser.has_section(ENTRY_POINT_GROUP):
        return None
    targets = [value.strip() for _, value in parser.items(ENTRY_POINT_GROUP)]
    if len(targets) != 1:
        raise ClientError(
            f"the package declares {len(targets)} environments", hint="publish one package an environment"
        )
    return targets[0]


def _require_function(archive: zipfile.ZipFile, members: list[tuple[str, int]], target: str) -> None:
    module, _, function = target.partition(":")
    base = module.replace(".", "/")
    names = {name for name, _ in members}
    found = [name for name in (f"{base}.py", f"{base}/__init__.py") if name in names]
    if not found:
        raise ClientError(
            f"the built wheel has no module `{module}`",
            hint="check the entry point in `pyproject.toml` and which files the build backend includes",
            code="no_environment",
            detail="\n".join(sorted(names)[:20]),
        )
    if (function or "load_environment") not in archive.read(found[0]).decode("utf-8", "replace"):
        raise ClientError(
            f"`{found[0]}` has no `{function or 'load_environment'}`",
            hint="write `def load_environment(**arguments) -> wander.Environment:` in it",
            code="no_environment",
        )


def _warnings(metadata: Message, wheel: Distribution) -> list[str]:
    requirements = [str(text) for text in metadata.get_all("Requires-Dist") or []]
    found = []
    named = {canonicalize_name(Requirement(text).name) for text in requirements}
    if not named & {"wander-sdk", "verifiers"}:
        found.append("the package does not depend on `wander-sdk`, so it cannot be installed to run")
    if not metadata.get("License-Expression") and not metadata.get("License"):
        found.append("the package names no licence")
    if not metadata.get_payload():
        found.append("the package has no README; its page will be empty")
    if wheel.size > LARGE_BYTES:
        found.append(f"the wheel has {wheel.size / 1e6:.0f} MB; large data is better kept elsewhere")
    found += [
        f"`{text}` points to a place outside the package index" for text in requirements if " @ " in text
    ]
    return found
