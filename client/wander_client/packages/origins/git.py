"""Fetch a package from a git repository: a single revision, without hooks, submodules or filters."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

from wander.system.child_environ import NETWORK, child_environ

from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.packages.building.build import Builder, require_plain_project
from wander_client.packages.origins.source import PackageOrigin, folder_digest, project_in

_SECONDS = 300
_PASSED = (
    *("SSH_AUTH_SOCK", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_ASKPASS", "SSH_ASKPASS"),
    *("XDG_CONFIG_HOME", "USER", "LOGNAME"),
)
"""Environment variables passed to git so that it can use the user's credentials."""
_PROTOCOLS = "https:http:ssh:git:file"
_ADDRESS = re.compile(rf"(?:{_PROTOCOLS.replace(':', '|')})://.|[\w.-]+@[\w.-]+:.")
_PARTS = re.compile(r"(?P<url>(?:\w+://[^/]*/|[\w.-]+@[\w.-]+:|)[^@]+)(?:@(?P<revision>.*))?")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=true",
    "submodule.recurse=false",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "advice.detachedHead=false",
)


@dataclass(frozen=True)
class GitAddress:
    """An address `URL[@REVISION][#subdirectory=FOLDER]`, in its parts."""

    url: str
    revision: str | None
    subdirectory: str | None

    @property
    def shown(self) -> str:
        """The address for display, without a password and without the revision."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=host)) if parts.password else self.url
        return f"git+{url}" + (f"#subdirectory={self.subdirectory}" if self.subdirectory else "")


def parse_address(text: str) -> GitAddress:
    """Parse an address; raises `UsageError`. A local path means `file://`."""
    address, _, fragment = text.removeprefix("git+").partition("#")
    parts = _PARTS.fullmatch(address)
    url, revision = (parts["url"], parts["revision"]) if parts else (address, None)
    if not _ADDRESS.match(url) and Path(url).expanduser().is_dir():
        url = Path(url).expanduser().resolve().as_uri()
    if not _ADDRESS.match(url):
        raise UsageError(
            f"`{text}` is not the URL of a repository",
            hint="for example: `https://example.org/envs.git@main#subdirectory=environments/wordle`",
        )
    if revision is not None and (not revision or revision.startswith("-")):
        raise UsageError(
            f"`{revision}` is not a revision", hint="write a branch, a tag or a commit after `@`"
        )
    inner = re.search(r"(?:^|&)subdirectory=([^&]+)", fragment)
    return GitAddress(url, revision, inner[1].strip("/") if inner else None)


def clone_project(text: str, work: Path, builder: Builder) -> tuple[Path, PackageOrigin]:
    """Fetch one revision of a repository; returns the project's folder and its origin.

    Raises `NotFound`, `UsageError`, `Unavailable`, `ClientError`.
    """
    folder, origin = clone_folder(text, work)
    return project_in(folder, builder), origin


def clone_folder(text: str, work: Path) -> tuple[Path, PackageOrigin]:
    """Fetch one revision of a repository, or a folder of it. Raises the errors of `clone_project`."""
    address = parse_address(text)
    name = PurePosixPath(urlsplit(address.url).path or "checkout").name.removesuffix(".git") or "checkout"
    target = work / name
    _git("init", "--quiet", "--template=", str(target))
    _fetch(address, target)
    _git("-C", str(target), "checkout", "--quiet", "FETCH_HEAD")
    commit = _git("-C", str(target), "rev-parse", "HEAD").strip()
    shutil.rmtree(target / ".git")
    folder = (target / (address.subdirectory or ".")).resolve()
    if not folder.is_relative_to(target.resolve()) or not folder.is_dir():
        raise NotFound(f"`{address.url}` has no folder `{address.subdirectory}`")
    require_plain_project(target)
    return folder, PackageOrigin(address.shown, revision=commit, sha256=folder_digest(folder))


def _fetch(address: GitAddress, target: Path) -> None:
    command = ["-C", str(target), "fetch", "--quiet", "--depth", "1", "--no-tags", "--no-recurse-submodules"]
    try:
        _git(*command, "--", address.url, address.revision or "HEAD")
    except ClientError as error:
        raise ClientError(
            f"`{address.revision or 'HEAD'}` of `{address.url}` cannot be fetched",
            hint="check the URL and the revision, and that `git fetch` can read the repository",
            code="git_failed",
            detail=error.detail,
        ) from None


def _git(*arguments: str) -> str:
    """Run git without a repository's hooks and filters; raises `ClientError` with git's output."""
    settings = [part for each in _SETTINGS for part in ("-c", each)]
    environ = child_environ(
        *(*NETWORK, *_PASSED),
        GIT_TERMINAL_PROMPT="0",
        GIT_ALLOW_PROTOCOL=_PROTOCOLS,
        GIT_LFS_SKIP_SMUDGE="1",
        LC_ALL="C",
    )
    try:
        done = subprocess.run(  # noqa: S603 - no shell; addresses stand after `--`
            ["git", *settings, *arguments],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            env=environ,
            check=False,
        )
    except FileNotFoundError:
        raise ClientError("git is not installed", hint="install git, or pass a folder") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"git took more than {_SECONDS} s") from None
    if done.returncode:
        raise ClientError("git failed", code="git_failed", detail=done.stderr.strip())
    return done.stdout
