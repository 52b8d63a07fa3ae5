"""Parse names on the command line: `owner/name[@version]` on the hub, or a folder.

A folder must look like a path (`.`, `./x`, `../x`, `/x`, `~/x`). `owner/name` never means a folder, and a
name without an owner is never looked up. So neither a folder that happens to exist nor a public package with
the same name can replace the intended environment. Commands that work on sources (`check`, `publish`, `env
lock`) also accept a folder without `./` (`source_spec`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from wander_client.errors import NotFound, UsageError

if TYPE_CHECKING:
    from wander.wire.postings import NewRunName

_OWNER = r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?"
_PINNED = r"(?P<name>[^=<>~!@\s]+)\s*(?P<how>===?|[<>~!]=|[<>])(?P<version>.*)"
"""A requirement in pip's syntax."""
_NAME = r"(?i:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)"


@dataclass(frozen=True)
class EnvironmentName:
    """An environment on the hub."""

    owner: str
    name: str
    """Name in the normal form of package names: lower case, dashes."""
    version: str | None = None
    """Exact version in its normal form, or None for the newest."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")

    def fits(self, version: str | None) -> bool:
        """Return whether the name matches this version: it has no version, or the same release."""
        return self.version is None or (version is not None and is_same_release(self.version, version))


def is_scripted(model: str) -> bool:
    """Return whether a model is a function in the environment's package: `scripted:MODULE:NAME`."""
    return model.startswith("scripted:")


def looks_like_path(spec: str) -> bool:
    """Return whether a word names a folder rather than an environment on the hub."""
    return spec in (".", "..", "~") or spec.startswith(("./", "../", "/", "~/"))


def as_folder(path: Path) -> str:
    """Return a folder's path in a form that every command accepts as a folder: `./wordle`."""
    return str(path) if looks_like_path(str(path)) else f"./{path}"


def parse_run_name(text: str) -> NewRunName:
    """Validate the name of a run; an empty text removes the name. Raises `UsageError` if it is too long."""
    from pydantic import ValidationError
    from wander.wire.postings import NewRunName

    try:
        return NewRunName(name=text.strip())
    except ValidationError:
        raise UsageError("the name of a run must be a single line of at most 100 characters") from None


def parse_name(spec: str) -> EnvironmentName:
    """Parse `owner/name[@version]`. Raises `UsageError` with a suggestion for anything else.

    Also accepts pip's form, `owner/name==version`.
    """
    if not spec.strip():
        raise UsageError("the environment's name is empty", hint="pass `owner/name`, or `./folder`")
    pinned = re.fullmatch(_PINNED, spec.strip())
    if pinned:
        if pinned["how"] not in ("==", "==="):
            raise UsageError(
                f"`{spec}` does not name an exact version",
                hint=f"pass `{pinned['name']}@1.0`, or `{pinned['name']}` for the newest",
            )
        spec = f"{pinned['name']}@{pinned['version'].strip()}"
    whole, at, version = spec.strip().partition("@")
    owner, slash, name = whole.partition("/")
    if not slash:
        published = f"`owner/{spec}` (run `wander search {whole}` to find the owner)"
        if os.path.isdir(whole):
            hint = f"pass `./{whole}` for the local folder, or {published} for an environment on the hub"
        else:
            hint = f"pass {published}, or `./{whole}` for a folder"
        raise UsageError(f"the owner is missing in `{spec}`", hint=hint)
    # str.lower() turns the Kelvin sign into an ASCII `k`, so non-ASCII names are rejected first.
    if not whole.isascii() or not re.fullmatch(_OWNER, owner.lower()) or not re.fullmatch(_NAME, name):
        folder = f"; for a folder, pass `./{whole}`" if os.path.isdir(whole) else ""
        if looks_like_path(whole):
            folder = ": this must be an environment on the hub, not a folder"
        raise UsageError(
            f"`{spec}` is not an environment's name",
            hint=f"pass `owner/name` or `owner/name@version`{folder}",
        )
    from packaging.utils import canonicalize_name  # late, because every command imports this module

    return EnvironmentName(owner.lower(), canonicalize_name(name), _version(spec, version) if at else None)


def source_spec(spec: str) -> str:
    """Return the word as a path if there is a folder of that name here.

    For commands that work on sources, which accept folders without `./`.
    """
    return f"./{spec}" if not looks_like_path(spec) and os.path.isdir(spec) else spec


def parse_environment(spec: str) -> EnvironmentName | Path:
    """Parse the name of an environment on the hub or the path of a folder."""
    if not looks_like_path(spec):
        return parse_name(spec)
    folder = Path(spec).expanduser().resolve()
    if not folder.is_dir():
        fault = f"`{spec}` is not a folder" if folder.exists() else f"the folder `{spec}` does not exist"
        raise NotFound(fault, hint="run `wander new NAME` to create an environment")
    return folder


def _version(spec: str, version: str) -> str | None:
    from packaging.version import InvalidVersion, Version

    if version == "latest":
        return None
    try:
        return str(Version(version))
    except InvalidVersion:
        raise UsageError(
            f"`{version}` in `{spec}` is not a version",
            hint="pass a version such as `0.1.0`, or leave it out for the newest",
        ) from None


def is_same_release(version: str, other: str) -> bool:
    """Return whether two versions are the same release, such as `1.0` and `1.0.0` (PEP 440)."""
    from packaging.utils import canonicalize_version

    return canonicalize_version(version) == canonicalize_version(other)


def environment_path(owner: str, name: str, *rest: str) -> str:
    """Return the API path of an environment, or a path below it."""
    return "/".join(["/api/v1/environments", *map(quote_part, (owner, name, *rest))])


def target_path(target: str, *rest: str) -> str:
    """Return the API path of an owner or an environment, or a path below it."""
    if "/" in target:
        name = parse_name(target)
        return environment_path(name.owner, name.name, *rest)
    return "/".join(["/api/v1/owners", *map(quote_part, (target.lower(), *rest))])


def model_path(owner: str, name: str, *rest: str) -> str:
    """Return the API path of a model, or a path below it."""
    return "/".join(["/api/v1/models", *map(quote_part, (owner, name, *rest))])


def run_path(run_id: str, *rest: str) -> str:
    """Return the API path of a posted run, or a path below it."""
    return "/".join(["/api/v1/runs", *map(quote_part, (run_id, *rest))])


def sealed_path(commitment: str, *rest: str) -> str:
    """Return the API path of a sealed task set, or a path below it."""
    return "/".join(["/api/v1/sealed", *map(quote_part, (commitment, *rest))])


def quote_part(value: str) -> str:
    """Quote one part of a path. Rejects `.` and `..`, which would change the path."""
    if value in ("", ".", ".."):
        raise UsageError(
            f"`{value}` is not a name", hint="pass `owner`, `owner/name` or `owner/name@version`"
        )
    return quote(value, safe="")
