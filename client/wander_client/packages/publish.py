"""Build an environment package and publish it: wheel and source, in a folder that is thrown away."""

from __future__ import annotations

import glob
import hashlib
import json
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesParser
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from wander.wire import CheckSummary, VersionDetail
from wander.wire.source_tree import TreeEntry, is_source, tree_digest
from wander.wire.uploads import NewUpload, UploadFile

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.hub.api import HubApi
from wander_client.packages.staged_upload import Publication, Told, publish_files
from wander_client.packages.uv import index_arguments, run_uv

ENTRY_POINT_GROUP = "wander.environments"
LOCK = "pylock.toml"
LARGE_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True)
class Distribution:
    """One built file."""

    path: Path
    kind: Literal["wheel", "sdist"]
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
    tree_sha256: str | None = None
    """Digest of the source tree in the source archive."""


@contextmanager
def build_package(folder: Path) -> Iterator[BuiltPackage]:
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
        package = _inspect(_distribution(wheels[0], "wheel"), _distribution(sdists[0], "sdist"))
        yield _with_source(package, folder)


def _with_source(package: BuiltPackage, folder: Path) -> BuiltPackage:
    """Add the digest of the source tree, and a warning where the archive is not what the folder holds."""
    entries = source_tree(package.sdist.path)
    warnings = [
        f"the source archive has `{path}` as the build wrote it, not as it is in `{folder.name}`"
        for path in files_of_the_build(folder, entries)
    ]
    return replace(package, tree_sha256=tree_digest(entries), warnings=[*package.warnings, *warnings])


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


def find_published_version(hub: HubApi, owner: str, package: BuiltPackage) -> VersionDetail | None:
    """Return what the hub has of this version; None where it has nothing."""
    try:
        return hub.version(owner, canonicalize_name(package.name), package.version)
    except NotFound:
        return None


def find_missing_files(hub: HubApi, owner: str, package: BuiltPackage) -> list[Distribution]:
    """Return the files that the hub does not have yet; raises when it has other bytes under their names."""
    known = find_published_version(hub, owner, package)
    return _compare_files(known, owner, package)


def _compare_files(known: VersionDetail | None, owner: str, package: BuiltPackage) -> list[Distribution]:
    present = {file.filename: file.sha256 for file in known.files} if known is not None else {}
    files = [package.wheel, package.sdist]
    for file in files:
        there = present.get(file.path.name, file.sha256)
        if there != file.sha256:
            raise ClientError(
                f"`{owner}/{canonicalize_name(package.name)}` {package.version} exists with other content",
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
    attestations: Mapping[str, list[dict[str, Any]]] | None = None,
    warn: Callable[[str], None] = lambda _: None,
    told: Told = lambda done, total: None,
) -> Publication:
    """Publish what the hub does not have yet: wheel, source and lock become visible together.

    An attempt that broke off is resumed. `check` is shown on the version's page. `lock` becomes the
    version's, unless it has one. `attestations` are those of its files, by name. `warn` is told what the hub
    takes and does not like, `told` how far it is.
    """
    known = find_published_version(hub, owner, package)
    if known is not None and not _compare_files(known, owner, package):
        return Publication(known, frozenset(), 0)
    files = {file.path.name: file for file in (package.wheel, package.sdist)}
    with ExitStack() as stack:
        bodies: dict[str, BinaryIO] = {
            name: stack.enter_context(file.path.open("rb")) for name, file in files.items()
        }
        listed = [
            UploadFile(
                filename=name,
                kind=file.kind,
                size=file.size,
                sha256=file.sha256,
                attestations=(attestations or {}).get(name, []),
            )
            for name, file in files.items()
        ]
        if lock is not None and (known is None or known.lock is None):
            digest = hashlib.sha256(lock).hexdigest()
            listed.append(UploadFile(filename=LOCK, kind="lock", size=len(lock), sha256=digest))
            bodies[LOCK] = BytesIO(lock)
        wanted = NewUpload(
            owner=owner,
            name=canonicalize_name(package.name),
            version=package.version,
            files=listed,
            private=True if private else None,
            source_sha256=package.tree_sha256,
            check=check,
        )
        published = publish_files(hub, wanted, bodies, told=told)
    for warning in published.version.warnings:
        if warning.filename in published.sent:
            hint = f" ({warning.hint})" if warning.hint else ""
            warn(f"`{warning.filename}`: {warning.detail}{hint}")
    return published


def attestations_in(folder: Path, package: BuiltPackage) -> dict[str, list[dict[str, Any]]]:
    """Return the attestations (PEP 740) of a package's files that lie in a folder, by the files' names.

    They are called as `pypi-attestations` calls them: `NAME.publish.attestation`. Raises `UsageError` where a
    file has none.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for file in (package.wheel, package.sdist):
        name = file.path.name
        for path in sorted(folder.glob(f"{glob.escape(name)}.*.attestation")):
            try:
                stated = json.loads(path.read_bytes())
            except ValueError as error:
                raise UsageError(f"`{path}` is not an attestation: it is not JSON") from error
            if not isinstance(stated, dict):
                raise UsageError(f"`{path}` is not an attestation: it is not JSON object")
            found.setdefault(name, []).append(stated)
        if name not in found:
            raise UsageError(
                f"`{folder}` has no attestation of `{name}`",
                hint=f"`pypi-attestations sign dist/{name}` makes one in a workflow",
            )
    return found


def _distribution(path: Path, kind: Literal["wheel", "sdist"]) -> Distribution:
    content = path.read_bytes()
    return Distribution(path, kind, hashlib.sha256(content).hexdigest(), len(content))


def _inspect(wheel: Distribution, sdist: Distribution) -> BuiltPackage:
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
            f"the package declares {len(targets)} environments", hint="publish one package per environment"
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


def source_tree(sdist: Path) -> list[TreeEntry]:
    """Return the files of a source archive as a hub counts them."""
    entries = []
    with tarfile.open(sdist) as archive:
        for member in archive:
            if not member.isfile():
                continue
            path = member.name.partition("/")[2]
            content = archive.extractfile(member)
            if content is None or not is_source(path):
                continue
            digest = hashlib.file_digest(content, "sha256").digest()  # type: ignore[arg-type]
            entries.append(TreeEntry(path, bool(member.mode & 0o100), digest))
    return entries


def files_of_the_build(folder: Path, entries: list[TreeEntry]) -> list[str]:
    """Return the files of an archive that the folder lacks or has with other bytes.

    A `.gitignore` that the folder lacks is the repository's, which build backends put into the archive.
    """
    made = [one.path for one in entries if _digest(folder / one.path) != one.sha256]
    return [path for path in made if path != ".gitignore" or (folder / path).exists()]


def _digest(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
