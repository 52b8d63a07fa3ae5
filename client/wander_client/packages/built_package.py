"""Build an environment package (wheel and source, in a folder that is thrown away), check and publish it."""

from __future__ import annotations

import configparser
import glob
import hashlib
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from wander.system.plain_files import read_plain_file
from wander.version import __version__ as sdk_version
from wander.wire import CheckSummary, VersionDetail
from wander.wire.environments import Visibility, marks_of
from wander.wire.gate import ATTESTATIONS, read_json, read_project
from wander.wire.source_tree import TreeEntry, is_source, tree_digest
from wander.wire.transfers import NewUpload, UploadFile

from wander_client.errors import ClientError, NotFound, UsageError, name_option
from wander_client.hub.api import HubApi
from wander_client.hub.local_paths import publish_text
from wander_client.hub.transfer import Publication, Told, publish_files
from wander_client.names import as_folder
from wander_client.packages.building.build import Builder
from wander_client.packages.needs import metadata_of, read_requirement, requirements_in

if TYPE_CHECKING:
    from wander.checks import CheckReport, CheckResult

ENTRY_POINT_GROUP = "wander.environments"
LOCK = "pylock.toml"
LARGE_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True)
class BuiltFile:
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
    wheel: BuiltFile
    sdist: BuiltFile
    members: list[tuple[str, int]]
    """Files of the wheel with their sizes in bytes."""
    source_members: list[tuple[str, int]]
    """Files of the source archive, without the folder that holds them all."""
    warnings: list[str]
    tree_sha256: str | None = None
    """Digest of the source tree in the source archive."""

    @property
    def target(self) -> str:
        """What loads it where its wheel is installed, and never a folder of its name."""
        return f"{self.name}@{self.version}"


@contextmanager
def build_package(folder: Path, builder: Builder) -> Iterator[BuiltPackage]:
    """Build the wheel and the source distribution of a project; both are gone after the block."""
    require_project(folder)
    with builder.build(folder) as made:
        package = _inspect(_distribution(made["wheel"], "wheel"), _distribution(made["sdist"], "sdist"))
        entries = source_tree(package.sdist.path)
        warnings = [
            f"the source archive has `{path}` as the build wrote it, not as it is in `{folder.name}`"
            for path in files_of_the_build(folder, entries)
        ]
        yield replace(package, tree_sha256=tree_digest(entries), warnings=[*package.warnings, *warnings])


def require_project(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table of a folder; raises when it is no Python project."""
    path = folder / "pyproject.toml"
    try:
        project: dict[str, Any] = read_project(folder).get("project", {})
    except FileNotFoundError:
        raise UsageError(
            f"`{folder}` has no `pyproject.toml`",
            hint="`wander new NAME` makes a package that can be published",
            code="not_a_package",
        ) from None
    except (OSError, ValueError) as error:
        raise ClientError(f"`{path}` cannot be read", detail=str(error), code="bad_pyproject") from error
    if not (isinstance(project.get("name"), str) and project["name"]):
        raise ClientError(f"`{path}` has no `name` under `[project]`", hint="add one", code="bad_pyproject")
    return project


def find_published(hub: HubApi, owner: str, package: BuiltPackage) -> tuple[VersionDetail | None, bool]:
    """Return what the hub has of this version, and whether that is all of it; raises for other bytes."""
    name = canonicalize_name(package.name)
    try:
        known = hub.version(owner, name, package.version)
    except NotFound:
        return None, False
    present = {file.filename: file.sha256 for file in known.files}
    files = [package.wheel, package.sdist]
    for file in files:
        there = present.get(file.path.name, file.sha256)
        if there != file.sha256:
            raise ClientError(
                f"`{owner}/{name}` {package.version} exists with other content",
                hint="versions never change: raise `version` in `pyproject.toml` and publish again",
                code="version_exists",
                detail=f"{file.path.name}\nhub:  sha256:{there}\nhere: sha256:{file.sha256}",
            )
    return known, all(file.path.name in present for file in files)


def upload(
    hub: HubApi,
    owner: str,
    package: BuiltPackage,
    check: CheckSummary | None = None,
    *,
    lock: bytes | None = None,
    visibility: Visibility | None = None,
    attestations: Mapping[str, list[dict[str, Any]]] | None = None,
    warn: Callable[[str], None] = lambda _: None,
    told: Told = lambda done, total: None,
) -> Publication:
    """Publish what the hub does not have yet: wheel, source and lock become visible together.

    An attempt that broke off is resumed. `check` is shown on the version's page. `lock` becomes the
    version's, unless it has one. `attestations` are those of its files, by name. `warn` is told what the hub
    takes and does not like, `told` how far it is.
    """
    known, whole = find_published(hub, owner, package)
    if known is not None and whole:
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
        private, internal = marks_of(visibility) if visibility is not None else (None, False)
        wanted = NewUpload(
            owner=owner,
            name=canonicalize_name(package.name),
            version=package.version,
            files=listed,
            private=private,
            internal=internal,
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
                stated = read_json(read_plain_file(path, ATTESTATIONS.most_bytes), ATTESTATIONS)
            except (OSError, ValueError) as error:
                raise UsageError(f"`{path}` is not an attestation: {error}") from error
            if not isinstance(stated, dict):
                raise UsageError(f"`{path}` is not an attestation: it is not a JSON object")
            found.setdefault(name, []).append(stated)
        if name not in found:
            raise UsageError(
                f"`{folder}` has no attestation of `{name}`",
                hint=f"`pypi-attestations sign dist/{name}` makes one in a workflow",
            )
    return found


def require_sound(report: CheckReport, package: BuiltPackage, given: Path) -> None:
    """Raise with a line for each fault that the check of a built package found.

    `given` is its folder as the user named it.
    """
    if report.ok:
        return
    looked = sum(each.status != "skip" for each in report.checks)
    lines = [line_of(each) for each in report.failed]
    if left_out := files_left_out(package):
        lines.append(f"the folder has and the wheel lacks: {', '.join(left_out)}")
    hint = f"`wander check {as_folder(given)}` says how to pass them"
    if any(each.id == "load.works" for each in report.failed):  # where the folder itself may load
        hint = (
            "the installed wheel has its own files and what `dependencies` in `pyproject.toml` declares, "
            "nothing else: add what it lacks"
        )
    raise ClientError(
        f"{len(report.failed)} of {looked} checks failed, so `{package.name}` was not published",
        hint=f"{hint}; " + name_option("check", False) + " publishes anyway",
        code="check_failed",
        detail="\n".join(lines),
    )


def files_left_out(package: BuiltPackage) -> list[str]:
    """Return what an environment may miss once it is installed: files of the source that the wheel lacks."""
    installed = [f"/{name}" for name, _ in package.members]
    paths = [entry.path for entry in source_tree(package.sdist.path)]
    return [
        path
        for path in sorted(paths)
        if not any(f"/{path}".endswith(name) for name in installed)
        and not path.startswith((".", "tests/"))
        and not re.fullmatch(r"pyproject\.toml|[^/]*\.md|LICEN[CS]E[^/]*", path)
    ]


def line_of(check: CheckResult) -> str:
    """Return what a check found, in one line."""
    where = f" (example `{check.example_id}`)" if check.example_id is not None else ""
    return " ".join(f"{check.id}: {check.message or check.title}{where}".split())


def summary_of(report: CheckReport) -> CheckSummary:
    """Return what the hub gets to know: counts, and every check that did not pass."""
    found = [(each.id, each.status, publish_text(each.message)) for each in report.checks]
    return CheckSummary.of(sdk_version, found)


def _distribution(path: Path, kind: Literal["wheel", "sdist"]) -> BuiltFile:
    content = path.read_bytes()
    return BuiltFile(path, kind, hashlib.sha256(content).hexdigest(), len(content))


def _inspect(wheel: BuiltFile, sdist: BuiltFile) -> BuiltPackage:
    """Read what was built; raises when it holds no environment."""
    version = str(parse_wheel_filename(wheel.path.name)[1])
    metadata = metadata_of(wheel.path)
    name = str(metadata["Name"])
    requirements = [read_requirement(text, name) for text in requirements_in(metadata)]
    with zipfile.ZipFile(wheel.path) as zipped:
        members = [(item.filename, item.file_size) for item in zipped.infolist() if not item.is_dir()]
        names = {name for name, _ in members}
        # One folder deep: a package may hold the metadata of others that it bundles.
        listing = [each for each in names if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", each)]
        groups = parse_entry_points(zipped.read(listing[0]).decode()) if listing else {}
        targets = groups.get(ENTRY_POINT_GROUP, {"": f"{name.replace('-', '_')}:load_environment"})
        if len(targets) != 1:
            raise ClientError(
                f"the package declares {len(targets)} environments",
                hint="publish one package per environment",
            )
        _require_function(zipped, names, *targets.values())
    with tarfile.open(sdist.path) as archive:
        sources = [(each.name.partition("/")[2], each.size) for each in archive if not each.isdir()]
    return BuiltPackage(name, version, wheel, sdist, members, sources, _warnings(requirements, wheel))


def parse_entry_points(text: str) -> dict[str, dict[str, str]]:
    """Return the entry points that a wheel lists, by group and name."""
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return {group: dict(parser.items(group)) for group in parser.sections()}


def _require_function(archive: zipfile.ZipFile, names: set[str], target: str) -> None:
    module, _, function = target.partition(":")
    base = module.replace(".", "/")
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


def _warnings(requirements: list[Requirement], wheel: BuiltFile) -> list[str]:
    """Return what the checks of an environment do not look at."""
    found = [f"`{each}` points to a place outside the package index" for each in requirements if each.url]
    if wheel.size > LARGE_BYTES:
        found.append(f"the wheel has {wheel.size / 1e6:.0f} MB; large data is better kept elsewhere")
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
            if content is not None and is_source(path):
                digest = hashlib.sha256(content.read()).digest()
                entries.append(TreeEntry(path, bool(member.mode & 0o100), digest))
    return entries


def files_of_the_build(folder: Path, entries: list[TreeEntry]) -> list[str]:
    """Return the files of an archive that the folder lacks or has with other bytes.

    A `.gitignore` that the folder lacks is the repository's, which build backends put into the archive.
    """
    made = [
        one.path
        for one in entries
        if not (folder / one.path).is_file()
        or hashlib.sha256((folder / one.path).read_bytes()).digest() != one.sha256
    ]
    return [path for path in made if path != ".gitignore" or (folder / path).exists()]
