"""Bring an existing package to a folder of ours: from a folder, an sdist, a wheel or a git address."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from wander_client.errors import ClientError, NotFound, UsageError

_LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    "build",
    "dist",
    "outputs",
    ".*_cache",
    "*.egg-info",
)
_GIT = re.compile(r"git\+|(?:https?|ssh|file)://.*\.git(?:[@#]|$)|git@")
_CLONE_SECONDS = 300


def brought(source: str, work: Path) -> Path:
    """Copy what a source names into `work` and return the project's folder; nothing of it is run.

    `git+URL[@REVISION][#subdirectory=FOLDER]` is cloned. Raises `NotFound`, `UsageError`, `ClientError`.
    """
    if _GIT.match(source):
        return _cloned(source, work)
    path = Path(source).expanduser()
    if path.is_dir():
        return Path(shutil.copytree(path, work / path.resolve().name, ignore=_LEFT_OUT))
    if not path.is_file():
        raise NotFound(
            f"`{source}` does not exist", hint="give a folder, an sdist, a wheel, or `git+https://...`"
        )
    if path.suffix == ".whl":
        return _unpacked_wheel(path, work)
    if path.name.endswith((".tar.gz", ".tgz", ".zip")):
        return _unpacked_source(path, work)
    raise UsageError(f"`{source}` is no package", hint="give a folder, an sdist (.tar.gz) or a wheel (.whl)")


def _cloned(source: str, work: Path) -> Path:
    address, _, fragment = source.removeprefix("git+").partition("#")
    address, revision = _split_revision(address)
    target = work / (PurePosixPath(address).name.removesuffix(".git") or "checkout")
    command = ["git", "clone", "--quiet", "--depth", "1"]
    command += ["--branch", revision] if revision else []
    try:
        done = subprocess.run(  # noqa: S603 - no shell; the address stands after `--`
            [*command, "--", address, str(target)],
            capture_output=True, text=True, timeout=_CLONE_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ClientError("git is not installed", hint="install git, or give a folder") from None
    except subprocess.TimeoutExpired:
        raise ClientError(f"cloning `{address}` took more than {_CLONE_SECONDS} s") from None
    if done.returncode:
        raise ClientError(f"`{address}` cannot be cloned", detail=done.stderr.strip())
    shutil.rmtree(target / ".git", ignore_errors=True)
    inner = re.search(r"subdirectory=([^&]+)", fragment)
    folder = (target / inner[1]).resolve() if inner else target
    if target.resolve() not in (folder.resolve(), *folder.resolve().parents) or not folder.is_dir():
        raise NotFound(f"`{address}` has no folder `{inner[1] if inner else ''}`")
    return folder


def _split_revision(address: str) -> tuple[str, str | None]:
    head, at, tail = address.rpartition("@")
    if at and head and "/" not in tail and ":" not in tail:
        return head, tail
    return address, None


def _unpacked_source(path: Path, work: Path) -> Path:
    try:
        if path.suffix == ".zip":
            shutil.unpack_archive(path, work)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(work, filter="data")
    except (tarfile.TarError, OSError, zipfile.BadZipFile) as error:
        raise ClientError(f"`{path}` cannot be unpacked: {error}") from error
    folders = [each for each in work.iterdir() if each.is_dir()]
    if len(folders) != 1:
        raise ClientError(f"`{path}` is no source distribution: it holds {len(folders)} folders")
    return folders[0]


def _unpacked_wheel(path: Path, work: Path) -> Path:
    """Unpack a wheel and write the `pyproject.toml` that its metadata means."""
    folder = work / path.name.split("-")[0]
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in names):
                raise ClientError(f"`{path}` holds files that would land outside of it")
            information = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
            if information is None:
                raise ClientError(f"`{path}` has no metadata")
            metadata = BytesParser().parsebytes(archive.read(information))
            archive.extractall(folder)  # noqa: S202 - the names were looked at
    except (zipfile.BadZipFile, OSError) as error:
        raise ClientError(f"`{path}` is no wheel: {error}") from error
    info = folder / information.split("/")[0]
    kept = sorted({name.split("/")[0] for name in names} - {info.name})
    shutil.rmtree(info)
    (folder / "pyproject.toml").unlink(missing_ok=True)  # some wheels ship theirs; it may name other files
    included = [name for name in kept if name != "pyproject.toml"]
    body = metadata.get_payload()
    (folder / "README.md").write_text(str(body).strip() + "\n" if body else "", encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        _project_text(
            {
                "name": str(metadata["Name"]),
                "version": str(metadata["Version"]),
                "description": str(metadata["Summary"] or ""),
                "readme": "README.md",
                "requires-python": str(metadata["Requires-Python"] or ">=3.11"),
                "license": str(metadata["License-Expression"] or ""),
                "dependencies": [
                    str(each)
                    for each in metadata.get_all("Requires-Dist") or []
                    if "extra ==" not in str(each)
                ],
            },
            included,
        ),
        encoding="utf-8",
    )
    return folder


def _project_text(project: dict[str, str | list[str]], included: list[str]) -> str:
    import json

    # JSON text and lists of text are TOML as well.
    lines = [f"{name} = {json.dumps(value)}" for name, value in project.items() if value]
    return (
        '[build-system]\nrequires = ["hatchling>=1.27"]\nbuild-backend = "hatchling.build"\n\n[project]\n'
        + "\n".join(lines)
        + f"\n\n[tool.hatch.build]\nonly-include = {json.dumps([*included, 'README.md', 'pyproject.toml'])}\n"
    )
