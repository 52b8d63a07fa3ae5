"""Build an environment's wheel and source distribution in a temporary folder, check and publish them."""

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
from wander.wire.source_tree import TreeEntry, is_source, tree_digest
from wander.wire.transfers import NewUpload, UploadFile
from wander.wire.untrusted_text import ATTESTATIONS, read_json, read_project

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
    """A built file."""

    path: Path
    kind: Literal["wheel", "sdist"]
    sha256: str
    size: int


@dataclass(frozen=True)
class BuiltPackage:
    """The wheel and the source distribution of an environment."""

    name: str
    version: str
    wheel: BuiltFile
    sdist: BuiltFile
    members: list[tuple[str, int]]
    """Files of the wheel, with their sizes in bytes."""
    source_members: list[tuple[str, int]]
    """Files of the source distribution, relative to its top folder."""
    warnings: list[str]
    tree_sha256: str | None = None
    """Digest of the source tree in the source distribution."""

    @property
    def target(self) -> str:
        """Name and version for the loader, which never mean a folder."""
        return f"{self.name}@{self.version}"


@contextmanager
def build_package(folder: Path, builder: Builder) -> Iterator[BuiltPackage]:
    """Build the wheel and the source distribution of a project. Both are removed after the block."""
    require_project(folder)
    with builder.build(folder) as built:
        package = _inspect(_distribution(built["wheel"], "wheel"), _distribution(built["sdist"], "sdist"))
        entries = source_tree(package.sdist.path)
        warnings = [
            f"`{path}` in the source distribution was written by the build and differs from `{folder.name}`"
            for path in generated_files(folder, entries)
        ]
        yield replace(package, tree_sha256=tree_digest(entries), warnings=[*package.warnings, *warnings])


def require_project(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table of a folder. Raises an error if the folder is not a Python project."""
    path = folder / "pyproject.toml"
    try:
        project: dict[str, Any] = read_project(folder).get("project", {})
    except FileNotFoundError:
        raise UsageError(
            f"`{folder}` has no `pyproject.toml`",
            hint="run `wander new NAME` to create a package",
            code="not_a_package",
        ) from None
    except (OSError, ValueError) as error:
        raise ClientError(f"`{path}` cannot be read", detail=str(error), code="bad_pyproject") from error
    if not (isinstance(project.get("name"), str) and project["name"]):
        raise ClientError(f"`{path}` has no `name` under `[project]`", hint="add one", code="bad_pyproject")
    return project


def find_published(hub: HubApi, owner: str, package: BuiltPackage) -> tuple[VersionDetail | None, bool]:
    """Return the published version, and whether the hub has all its files.

    Raises an error if a file differs.
    """
    name = canonicalize_name(package.name)
    try:
        known = hub.version(owner, name, package.version)
    except NotFound:
        return None, False
    present = {file.filename: file.sha256 for file in known.files}
    files = [package.wheel, package.sdist]
    for file in files:
        published_digest = present.get(file.path.name, file.sha256)
        if published_digest != file.sha256:
            raise ClientError(
                f"`{owner}/{name}` {package.version} already exists with different content",
                hint="versions never change: raise `version` in `pyproject.toml` and publish again",
                code="version_exists",
                detail=f"{file.path.name}\nhub:  sha256:{published_digest}\nhere: sha256:{file.sha256}",
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
    """Publish the missing files. The wheel, the source distribution and the lock become visible together.

    Resumes an interrupted upload. `check` is shown on the version's page. `lock` is attached to the version
    if it has no lock. `attestations` are listed by file name. `warn` receives the hub's warnings, and `told`
    the progress.
    """
    known, is_complete = find_published(hub, owner, package)
    if known is not None and is_complete:
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
    """Return the attestations (PEP 740) in a folder for a package's files, by file name.

    Uses the names of `pypi-attestations`: `NAME.publish.attestation`. Raises `UsageError` if a file has no
    attestation.
    """
    attestations_by_file: dict[str, list[dict[str, Any]]] = {}
    for file in (package.wheel, package.sdist):
        name = file.path.name
        for path in sorted(folder.glob(f"{glob.escape(name)}.*.attestation")):
            try:
                stated = read_json(read_plain_file(path, ATTESTATIONS.most_bytes), ATTESTATIONS)
            except (OSError, ValueError) as error:
                raise UsageError(f"`{path}` is not an attestation: {error}") from error
            if not isinstance(stated, dict):
                raise UsageError(f"`{path}` is not an attestation: it is not a JSON object")
            attestations_by_file.setdefault(name, []).append(stated)
        if name not in attestations_by_file:
            raise UsageError(
                f"`{folder}` has no attestation of `{name}`",
                hint=f"create it with `pypi-attestations sign dist/{name}` in a workflow",
            )
    return attestations_by_file


def require_sound(report: CheckReport, package: BuiltPackage, given: Path) -> None:
    """Raise `ClientError` with a line for each failed check of a built package.

    `given` is the package's folder as the user typed it.
    """
    if report.ok:
        return
    completed = sum(result.status != "skip" for result in report.checks)
    lines = [line_of(result) for result in report.failed]
    if missing := files_left_out(package):
        lines.append(f"missing in the wheel: {', '.join(missing)}")
    hint = f"run `wander check {as_folder(given)}` for details"
    if any(result.id == "load.works" for result in report.failed):
        # `wander check FOLDER` may succeed, because the folder has files that the wheel lacks.
        hint = (
            "the installed wheel has only its own files and the `dependencies` of `pyproject.toml`: add "
            "what is missing"
        )
    raise ClientError(
        f"{len(report.failed)} of {completed} checks failed, so `{package.name}` was not published",
        hint=f"{hint}; " + name_option("check", False) + " publishes it anyway",
        code="check_failed",
        detail="\n".join(lines),
    )


def files_left_out(package: BuiltPackage) -> list[str]:
    """Return the source files that are missing in the wheel, and that the environment may need."""
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
    """Return the result of a check as a single line."""
    where = f" (example `{check.example_id}`)" if check.example_id is not None else ""
    return " ".join(f"{check.id}: {check.message or check.title}{where}".split())


def summary_of(report: CheckReport) -> CheckSummary:
    """Return the summary for the hub: counts, and every check that did not pass."""
    results = [(result.id, result.status, publish_text(result.message)) for result in report.checks]
    return CheckSummary.of(sdk_version, results)


def _distribution(path: Path, kind: Literal["wheel", "sdist"]) -> BuiltFile:
    content = path.read_bytes()
    return BuiltFile(path, kind, hashlib.sha256(content).hexdigest(), len(content))


def _inspect(wheel: BuiltFile, sdist: BuiltFile) -> BuiltPackage:
    """Read the built files. Raises `ClientError` if they contain no environment."""
    version = str(parse_wheel_filename(wheel.path.name)[1])
    metadata = metadata_of(wheel.path)
    name = str(metadata["Name"])
    requirements = [read_requirement(text, name) for text in requirements_in(metadata)]
    with zipfile.ZipFile(wheel.path) as zipped:
        members = [(item.filename, item.file_size) for item in zipped.infolist() if not item.is_dir()]
        names = {name for name, _ in members}
        # Only in the top folder: a package may bundle other packages with their metadata.
        listing = [path for path in names if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", path)]
        groups = parse_entry_points(zipped.read(listing[0]).decode()) if listing else {}
        targets = groups.get(ENTRY_POINT_GROUP, {"": f"{name.replace('-', '_')}:load_environment"})
        if len(targets) != 1:
            raise ClientError(
                f"the package declares {len(targets)} environments",
                hint="publish one package per environment",
            )
        _require_function(zipped, names, *targets.values())
    with tarfile.open(sdist.path) as archive:
        sources = [(member.name.partition("/")[2], member.size) for member in archive if not member.isdir()]
    return BuiltPackage(name, version, wheel, sdist, members, sources, _warnings(requirements, wheel))


def parse_entry_points(text: str) -> dict[str, dict[str, str]]:
    """Return the entry points of a wheel, by group and name."""
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return {group: dict(parser.items(group)) for group in parser.sections()}


def _require_function(archive: zipfile.ZipFile, names: set[str], target: str) -> None:
    module, _, function = target.partition(":")
    base = module.replace(".", "/")
    modules = [name for name in (f"{base}.py", f"{base}/__init__.py") if name in names]
    if not modules:
        raise ClientError(
            f"the built wheel has no module `{module}`",
            hint="check the entry point in `pyproject.toml`, and the files that the build backend includes",
            code="no_environment",
            detail="\n".join(sorted(names)[:20]),
        )
    if (function or "load_environment") not in archive.read(modules[0]).decode("utf-8", "replace"):
        raise ClientError(
            f"`{modules[0]}` has no `{function or 'load_environment'}`",
            hint="add `def load_environment(**arguments) -> wander.Environment:`",
            code="no_environment",
        )


def _warnings(requirements: list[Requirement], wheel: BuiltFile) -> list[str]:
    """Return warnings that the checks of an environment do not cover."""
    warnings = [f"`{item}` is not from a package index" for item in requirements if item.url]
    if wheel.size > LARGE_BYTES:
        warnings.append(f"the wheel has {wheel.size / 1e6:.0f} MB; consider storing large data elsewhere")
    return warnings


def source_tree(sdist: Path) -> list[TreeEntry]:
    """Return the files of a source distribution that count as source, as a hub counts them."""
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


def generated_files(folder: Path, entries: list[TreeEntry]) -> list[str]:
    """Return the files of an archive that are missing in the folder or differ from it.

    Ignores a `.gitignore` that is not in the folder: build backends add that of the repository.
    """
    generated = [
        entry.path
        for entry in entries
        if not (folder / entry.path).is_file()
        or hashlib.sha256((folder / entry.path).read_bytes()).digest() != entry.sha256
    ]
    return [path for path in generated if path != ".gitignore" or (folder / path).exists()]
