"""Copy an existing package into a work folder, with a note of its origin.

The package is a folder, an sdist or a wheel on this machine. `git` fetches remote packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath
from typing import Any

import tomlkit
from wander.system.plain_files import open_plain_file
from wander.wire.postings import file_digest
from wander.wire.untrusted_text import read_project

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packages.building.build import (
    LARGEST_SOURCE,
    Builder,
    extract_bounded,
    require_plain_project,
    too_large,
)
from wander_client.packages.built_package import parse_entry_points
from wander_client.packages.needs import require_bounded, requirements_in

_LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".hg", ".prime", ".venv", "venv", "__pycache__", "*.pyc", "build", "dist", "outputs"),
    *(".*_cache", "*.egg-info"),
)
"""Files that builds and tools leave in a project's folder."""
BUILD_SYSTEM = {"requires": ["hatchling>=1.27"], "build-backend": "hatchling.build"}
_OPENING = "Imported into Wander from"
_CLOSING = "The code is as its author published it."
_NOTE = re.compile(rf"{_OPENING} (`[^\n]*?)\. {re.escape(_CLOSING)}")


@dataclass(frozen=True)
class PackageOrigin:
    """The source of an imported package."""

    source: str
    """URL, or the name of a folder or file without its parent folders."""
    revision: str | None = None
    """Commit of a repository, or version of an environment on another hub."""
    sha256: str | None = None
    """Digest of the file, or of the files in the folder."""
    importer: str | None = None
    """The hub user who imported it."""

    @property
    def note(self) -> str:
        """The line at the end of the README, which also appears on the environment's page."""
        revision = f", revision `{self.revision}`" if self.revision else ""
        digest = f", sha256 `{self.sha256}`" if self.sha256 else ""
        importer = f", by `{self.importer}`" if self.importer else ""
        return f"{_OPENING} `{self.source}`{revision}{digest}{importer}. {_CLOSING}"


def origin_in(readme: str) -> str | None:
    """Return the fields of the note in a README: source, revision, digest, importer; None without a note."""
    found = _NOTE.findall(readme)
    return found[-1].replace("`", "") if found else None


def bring_project(source: str, work: Path, builder: Builder) -> tuple[Path, PackageOrigin]:
    """Copy a folder, an sdist or a wheel into `work`; returns the project's folder and its origin.

    Raises `NotFound`, `UsageError`, `ClientError`.
    """
    path = Path(source).expanduser().resolve()
    if path.is_dir():
        copy = _copy(path, work / path.name)
        return project_in(copy, builder), PackageOrigin(path.name, sha256=folder_digest(copy))
    if not path.is_file():
        raise NotFound(f"`{source}` does not exist", hint="pass a folder, an sdist or a wheel")
    origin = PackageOrigin(path.name, sha256=file_digest(path))
    if path.suffix == ".whl":
        return unpack_wheel(path, work), origin
    if path.name.endswith((".tar.gz", ".tgz", ".zip")):
        return project_in(unpack_source(path, work), builder), origin
    raise UsageError(
        f"`{source}` is not a package", hint="pass a folder, an sdist (.tar.gz) or a wheel (.whl)"
    )


def _copy(folder: Path, target: Path) -> Path:
    """Copy a project's folder.

    Raises `ClientError` for special files, for links that lead out of the folder, and for a folder that is
    too large.
    """
    room = LARGEST_SOURCE

    def copy_file(source: str, place: str) -> None:
        nonlocal room
        with open_plain_file(Path(source)) as file, open(place, "xb") as out:
            room -= (status := os.fstat(file.fileno())).st_size
            if room < 0:
                raise too_large(folder.name, os.path.relpath(source, folder))
            shutil.copyfileobj(file, out)
        os.chmod(place, stat.S_IMODE(status.st_mode))

    try:
        shutil.copytree(folder, target, ignore=_LEFT_OUT, symlinks=True, copy_function=copy_file)
    except OSError as error:  # `shutil.Error` lists every file that cannot be copied
        faults = error.args[0] if isinstance(error, shutil.Error) else [(folder, target, error)]
        path, _, fault = faults[0]
        raise ClientError(f"`{path}` cannot be copied: {fault}", code="unsafe_file") from error
    require_plain_project(target)
    return target


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 digest of the paths and contents of a folder, without `__pycache__`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.parent.name != "__pycache__":
            digest.update(f"{path.relative_to(folder).as_posix()}\n{file_digest(path)}\n".encode())
    return digest.hexdigest()


def project_in(folder: Path, builder: Builder) -> Path:
    """Return a folder whose `pyproject.toml` has a `[project]` table.

    If a project has only other metadata (`setup.py`, `setup.cfg` or Poetry's table), its own backend builds a
    wheel, and the returned folder is the unpacked wheel.
    """
    try:
        stated = read_project(folder)
    except FileNotFoundError:
        stated = {}
    except (OSError, ValueError):
        return folder  # the conversion reports the error
    other = any((folder / name).is_file() for name in ("setup.py", "setup.cfg"))
    if "project" in stated or not (other or "poetry" in stated.get("tool", {})):
        return folder
    with builder.build(folder, with_source=False) as made:
        work = folder.parent / f"{folder.name}-unpacked"
        work.mkdir()
        return unpack_wheel(made["wheel"], work)


def unpack_source(path: Path, work: Path) -> Path:
    """Unpack an archive of sources; returns the folder with the project."""
    try:
        if path.suffix == ".zip":
            require_bounded(path)
            shutil.unpack_archive(path, work)
        else:
            extract_bounded(path, work)
    except (tarfile.TarError, OSError, zipfile.BadZipFile) as error:
        raise ClientError(f"`{path.name}` cannot be unpacked: {error}") from error
    if (work / "pyproject.toml").is_file():
        return work
    folders = [each for each in work.iterdir() if each.is_dir()]
    if len(folders) != 1:
        raise ClientError(f"`{path.name}` is not a source distribution: it contains {len(folders)} folders")
    return folders[0]


def unpack_wheel(path: Path, work: Path) -> Path:
    """Unpack a wheel and write a `pyproject.toml` from its metadata."""
    folder = work / path.name.split("-")[0]
    require_bounded(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in names):
                raise ClientError(f"`{path.name}` contains paths that lead outside its folder")
            information = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
            if information is None:
                raise ClientError(f"`{path.name}` has no metadata")
            archive.extractall(folder)  # noqa: S202 - the names were checked above
    except (zipfile.BadZipFile, OSError) as error:
        raise ClientError(f"`{path.name}` is not a wheel: {error}") from error
    info = folder / information.split("/")[0]
    metadata = BytesParser().parsebytes((info / "METADATA").read_bytes())
    listing = info / "entry_points.txt"
    groups = parse_entry_points(listing.read_text(encoding="utf-8")) if listing.is_file() else {}
    shutil.rmtree(info)
    # Some wheels contain their pyproject.toml, which may name other files. Ours replaces it.
    kept = sorted({name.split("/")[0] for name in names} - {info.name, "pyproject.toml"})
    body = metadata.get_payload()
    (folder / "README.md").write_text(str(body).strip() + "\n" if body else "", encoding="utf-8")
    included = [*(name for name in kept if not name.endswith(".data")), "README.md", "pyproject.toml"]
    document = {
        "build-system": BUILD_SYSTEM,
        "project": _project_of(metadata, groups),
        "tool": {"hatch": {"build": {"only-include": sorted(set(included))}}},
    }
    (folder / "pyproject.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
    return folder


def _project_of(metadata: Message, groups: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return a `[project]` table from a wheel's metadata, without the requirements of extras."""
    scripts = {
        {"console_scripts": "scripts", "gui_scripts": "gui-scripts"}[name]: groups.pop(name)
        for name in ("console_scripts", "gui_scripts")
        if name in groups
    }
    project = {
        "name": str(metadata["Name"]),
        "version": str(metadata["Version"]),
        "description": str(metadata["Summary"] or ""),
        "readme": "README.md",
        "requires-python": str(metadata["Requires-Python"] or ">=3.11"),
        "license": str(metadata["License-Expression"] or ""),
        "keywords": [word.strip() for word in str(metadata["Keywords"] or "").split(",") if word.strip()],
        "dependencies": [each for each in requirements_in(metadata) if "extra ==" not in each],
        **scripts,
        "entry-points": groups,
    }
    return {name: value for name, value in project.items() if value}
