"""The gate: named checks in a fixed order, cheap before dear; the first that fails is the answer.

Order: form, file name, size, digests, archive, name and version, entry point. Who the caller is was checked
before a byte of the body was read. Nothing is taken from the form but what can be compared with the file, and
`wander_check`, which is the publisher's word and shown as such.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError
from wander.wire import CheckSummary

from wander_hub import names
from wander_hub.storage import CHUNK
from wander_hub.upload import sdist, wheel
from wander_hub.upload.metadata import package_from
from wander_hub.upload.schemas import FileName, Limits, Package, Upload, refused

CHECK_FIELD = "wander_check"
CHECK_BYTES = 64 * 1024
"""Limit of that field; a summary of all checks with long messages has a quarter."""
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,240}\.(?:whl|tar\.gz)")
_DIGESTS: dict[str, Callable[[], Any]] = {
    "sha256_digest": hashlib.sha256,
    "blake2_256_digest": lambda: hashlib.blake2b(digest_size=32),
    "md5_digest": lambda: hashlib.md5(usedforsecurity=False),
}


def checked(upload: Upload, limits: Limits, *, environment: bool = True) -> Package:
    """Run every check and return what the file holds; `environment` demands that it offers one."""
    check_form(upload)
    filename = check_filename(upload)
    check_size(upload, limits)
    check_digests(upload)
    if filename.kind == "wheel":
        contents = wheel.read(upload.body, filename, limits)
    else:
        contents = sdist.read(upload.body, filename, limits)
    package = package_from(upload, filename, contents)
    check_identity(upload, filename, package)
    check_name_allowed(package)
    if environment:
        check_environment(package)
    return package


def check_form(upload: Upload) -> None:
    """The legacy protocol's fixed fields, where they are given."""
    action = upload.fields.get(":action", "file_upload")
    version = upload.fields.get("protocol_version", "1")
    if action != "file_upload" or version != "1":
        raise refused("bad_form", f"`:action={action}` with protocol {version} is not an upload", status=400)


def stated_check(upload: Upload) -> CheckSummary | None:
    """Return what the publisher says `wander check` found; None where nothing is said, as by twine and uv."""
    text = upload.fields.get(CHECK_FIELD)
    if not text:
        return None
    hint = "`wander publish --no-check` leaves it out"
    if len(text.encode(errors="replace")) > CHECK_BYTES:
        raise refused("bad_check_report", f"`{CHECK_FIELD}` is over {CHECK_BYTES:,} bytes", hint=hint)
    try:
        return CheckSummary.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise refused("bad_check_report", f"`{CHECK_FIELD}`: {reason:.300}", hint=hint) from error


def check_filename(upload: Upload) -> FileName:
    """The name is one that the packaging standards know, and cannot be mistaken for a path."""
    filename = upload.filename
    if not _FILENAME.fullmatch(filename):
        hint = "a wheel (`.whl`) or a source archive (`.tar.gz`) as `python -m build` names it"
        raise refused("bad_filename", f"`{filename[:100]!s}` is not the name of a distribution", hint=hint)
    try:
        if filename.endswith(".whl"):
            name, version, _build, _tags = parse_wheel_filename(filename)
            stem = "-".join(filename.split("-")[:2])
            return FileName("wheel", name, str(version), stem)
        name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise refused("bad_filename", f"`{filename}`: {error}") from error
    return FileName("sdist", name, str(version), filename.removesuffix(".tar.gz"))


def check_size(upload: Upload, limits: Limits) -> None:
    """Neither empty nor over the limit."""
    if upload.size == 0:
        raise refused("empty_file", f"`{upload.filename}` is empty")
    if upload.size > limits.file_bytes:
        shown = f"{limits.file_bytes / (1024 * 1024):,.0f} MiB"
        raise refused("too_large", f"`{upload.filename}` is over this hub's limit of {shown}", status=413)


def check_digests(upload: Upload) -> None:
    """Every digest that was given is that of the bytes that came."""
    given = {key: upload.fields[key].strip().lower() for key in _DIGESTS if upload.fields.get(key)}
    if not given:
        return
    running = {key: _DIGESTS[key]() for key in given}
    upload.body.seek(0)
    while chunk := upload.body.read(CHUNK):
        for one in running.values():
            one.update(chunk)
    for key, value in given.items():
        if not hmac.compare_digest(running[key].hexdigest().encode(), value.encode()):
            hint = "the file changed on its way; send it again"
            raise refused("digest_mismatch", f"`{key}` does not match the bytes that arrived", hint=hint)


def check_identity(upload: Upload, filename: FileName, package: Package) -> None:
    """File name, metadata inside the file and form agree on name and version."""
    if (filename.name, filename.version) != (package.name, package.version):
        inside = f"`{package.name}` {package.version}"
        raise refused("name_mismatch", f"`{upload.filename}` holds the metadata of {inside}")
    claimed_name, claimed_version = upload.fields.get("name"), upload.fields.get("version")
    if claimed_name and canonicalize_name(claimed_name) != package.name:
        raise refused("name_mismatch", f"the form says `{claimed_name}`, the file `{package.name}`")
    if claimed_version and _differs(claimed_version, package.version):
        raise refused("version_mismatch", f"the form says {claimed_version}, the file {package.version}")
    if "+" in package.version:
        hint = "drop the part after `+`"
        raise refused("local_version", f"{package.version} is a local version", hint=hint)


def check_name_allowed(package: Package) -> None:
    """The name is not one that the hub's own addresses use."""
    if package.name in names.RESERVED_ENVIRONMENTS:
        raise refused("reserved_name", f"the name `{package.name}` is reserved", hint="choose another name")


def check_environment(package: Package) -> None:
    """The package offers an environment: an entry point, or a module with `load_environment`."""
    if package.entry_point is None and not package.has_loader:
        hint = (
            'add `[project.entry-points."wander.environments"]` with `name = "module:load_environment"` '
            "to pyproject.toml, or define `load_environment` in the module"
        )
        raise refused("no_environment", f"`{package.filename}` offers no environment", hint=hint)


def _differs(claimed: str, version: str) -> bool:
    try:
        return str(Version(claimed)) != version
    except InvalidVersion:
        return True
