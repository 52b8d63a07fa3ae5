"""What a name on the command line means: `owner/name[@version]` on the hub, or a folder.

A folder must look like one (`.`, `./x`, `../x`, `/x`, `~/x`). `owner/name` is never taken from the disk and a
bare `name` is never looked up anywhere, so neither a folder that happens to exist nor a public package of
the same name can take the place of the environment that was meant. Commands that work on sources (`check`,
`publish`, `env lock`) take a folder as it stands (`source_spec`).
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
"""A requirement in pip's form."""
_NAME = r"(?i:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)"


@dataclass(frozen=True)
class EnvironmentName:
    """An environment on the hub."""

    owner: str
    name: str
    """In the normal form of package names: lower case, dashes."""
    version: str | None = None
    """Exact version in its normal form; None means the newest."""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")

    def fits(self, version: str | None) -> bool:
        """Tell whether the name means this version: it names none, or the same release."""
        return self.version is None or (version is not None and is_same_release(self.version, version))


def is_scripted(model: str) -> bool:
    """Return whether a model's name means a function of the environment's package: `scripted:MODULE:NAME`."""
    return model.startswith("scripted:")


def looks_like_path(spec: str) -> bool:
    """Return whether a word names a folder rather than an environment on the hub."""
    return spec in (".", "..", "~") or spec.startswith(("./", "../", "/", "~/"))


def as_folder(path: Path) -> str:
    """Return a folder's path as every command takes it for one: `./wordle`."""
    return str(path) if looks_like_path(str(path)) else f"./{path}"


def parse_run_name(text: str) -> NewRunName:
    """Return the name of a run, or none for an empty text; more than a short line is a usage error."""
    from pydantic import ValidationError
    from wander.wire.postings import NewRunName

    try:
        return NewRunName(name=text.strip())
    except ValidationError:
        raise UsageError("the name of a run is one line of at most 100 characters") from None


def parse_name(spec: str) -> EnvironmentName:
    """Parse `owner/name[@version]`; anything else is a usage error that says what was meant.

    `owner/name==version`, as pip writes it, means the same.
    """
    if not spec.strip():
        raise UsageError("the environment's name is empty", hint="write `owner/name`, or `./folder`")
    pinned = re.fullmatch(_PINNED, spec.strip())
    if pinned:
        if pinned["how"] not in ("==", "==="):
            raise UsageError(
                f"`{spec}` names no exact version",
                hint=f"write `{pinned['name']}@1.0`, or `{pinned['name']}` for the newest",
            )
        spec = f"{pinned['name']}@{pinned['version'].strip()}"
    whole, at, version = spec.strip().partition("@")
    owner, slash, name = whole.partition("/")
    if not slash:
        published = f"`owner/{spec}` (`wander search {whole}` finds it)"
        if os.path.isdir(whole):
            hint = f"write `./{whole}` for the folder here, or {published} for what is on the hub"
        else:
            hint = f"write {published}, or `./{whole}` for a folder"
        raise UsageError(f"`{spec}` names no owner", hint=hint)
    # Lower case makes a `k` of a Kelvin sign.
    if not whole.isascii() or not re.fullmatch(_OWNER, owner.lower()) or not re.fullmatch(_NAME, name):
        folder = f"; for a folder write `./{whole}`" if os.path.isdir(whole) else ""
        if looks_like_path(whole):
            folder = ": this asks for what a hub has, not for a folder"
        raise UsageError(
            f"`{spec}` is no environment name", hint=f"write `owner/name` or `owner/name@version`{folder}"
        )
    from packaging.utils import canonicalize_name  # here, because every command reads this module

    return EnvironmentName(owner.lower(), canonicalize_name(name), _version(spec, version) if at else None)


def source_spec(spec: str) -> str:
    """Return the word as one that names a folder, where a folder of that name is here.

    For commands that work on sources, which take folders as they stand.
    """
    return f"./{spec}" if not looks_like_path(spec) and os.path.isdir(spec) else spec


def parse_environment(spec: str) -> EnvironmentName | Path:
    """Return the name of an environment on the hub, or the folder that the word names."""
    if not looks_like_path(spec):
        return parse_name(spec)
    folder = Path(spec).expanduser().resolve()
    if not folder.is_dir():
        raise NotFound(f"the folder `{spec}` does not exist", hint="`wander new NAME` makes an environment")
    return folder


def _version(spec: str, version: str) -> str | None:
    from packaging.version import InvalidVersion, Version

    if version == "latest":
        return None
    try:
        return str(Version(version))
    except InvalidVersion:
        raise UsageError(
            f"`{version}` in `{spec}` is no version",
            hint="write one like `0.1.0`, or none for the newest",
        ) from None


def is_same_release(version: str, other: str) -> bool:
    """Tell whether two versions are one release, as `1.0` and `1.0.0` are (PEP 440)."""
    from packaging.utils import canonicalize_version

    return canonicalize_version(version) == canonicalize_version(other)


def environment_path(owner: str, name: str, *rest: str) -> str:
    """Return the path of an environment, or of something below it."""
    return "/".join(["/api/v1/environments", *map(quote_part, (owner, name, *rest))])


def target_path(target: str, *rest: str) -> str:
    """Return the path of an `owner` or of an environment, or of something below it."""
    if "/" in target:
        name = parse_name(target)
        return environment_path(name.owner, name.name, *rest)
    return "/".join(["/api/v1/owners", *map(quote_part, (target.lower(), *rest))])


def model_path(owner: str, name: str, *rest: str) -> str:
    """Return the path of a model, or of something below it."""
    return "/".join(["/api/v1/models", *map(quote_part, (owner, name, *rest))])


def run_path(run_id: str, *rest: str) -> str:
    """Return the path of a posted run, or of something below it."""
    return "/".join(["/api/v1/runs", *map(quote_part, (run_id, *rest))])


def quote_part(value: str) -> str:
    """Quote one part of a path; dots alone would climb out of it."""
    if value in ("", ".", ".."):
        raise UsageError(f"`{value}` is no name", hint="write `owner`, `owner/name` or `owner/name@version`")
    return quote(value, safe="")
