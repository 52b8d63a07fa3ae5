"""The gate: named checks in a fixed order, cheap ones first; the first check that fails is the answer.

The order is form, file name, size, then a single pass over the bytes that checks the archive and the digests,
then the core metadata, name and version, clashing names, entry point. The caller's rights were checked before
the body was read. The form is trusted only where it can be compared with the file, except for `wander_check`,
which is the publisher's claim and displayed as such. Codes and texts of refusals are in
`wander_hub.upload_rules.RULES`.
"""

from __future__ import annotations

import hmac
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from wander.wire import CheckSummary
from wander.wire.package_index import check_requirement
from wander.wire.untrusted_text import CHECK_REPORT, RefusedText, read_record

from wander_hub import names
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.upload.archives import sdist, wheel
from wander_hub.upload.archives.members import clip
from wander_hub.upload.archives.metadata import package_from, parse_metadata
from wander_hub.upload.archives.stream import DIGESTS, ByteStream
from wander_hub.upload.findings import Findings, refusal
from wander_hub.upload.schemas import Contents, FileName, Package, Upload

if TYPE_CHECKING:  # packaging.metadata holds the text of every license, so the first upload imports it
    from packaging.metadata import Metadata

CHECK_FIELD = "wander_check"
_SHA256_FIELD = "sha256_digest"
_PRIVATE = "Private ::"
"""PyPI refuses these classifiers to prevent accidental publication; a hub accepts private packages."""
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,240}\.(?:whl|tar\.gz)")
_FILE_TYPES = {"bdist_wheel": "wheel", "sdist": "sdist"}
_WANDER_MODULES = frozenset(
    {"wander", "wander_client", "wander_compat", "wander_hub", "verifiers"}
    | {"wander_integrations", "wander_ray"}
)


def check(upload: Upload, settings: Settings, *, environment: bool = True) -> Package:
    """Run every check and return the package.

    `environment` requires that it offers an environment and is not one of the hub's own packages.
    """
    check_form(upload)
    filename = check_filename(upload.filename)
    check_size(upload.filename, upload.size, settings)
    findings = Findings(settings.upload_policy)
    contents = check_bytes(upload, filename, settings, findings)
    metadata_file = "METADATA" if filename.kind == "wheel" else "PKG-INFO"
    metadata = parse_metadata(contents.metadata, metadata_file)
    check_metadata(metadata, metadata_file, contents, findings)
    package = package_from(upload, filename, contents, metadata)
    check_identity(upload, filename, package, findings)
    check_modules(contents, findings, own=not environment)
    if environment:
        check_environment(package)
    return replace(package, warnings=findings.warnings())


def check_form(upload: Upload) -> None:
    """Require that the fixed fields of the legacy protocol are right, if the form has them."""
    action = upload.fields.get(":action", "file_upload")
    version = upload.fields.get("protocol_version", "1")
    if action != "file_upload" or version != "1":
        raise refusal(
            "bad_form", f"`:action={action[:50]}` with protocol version {version[:50]} is not an upload"
        )
    kind = upload.fields.get("filetype")
    if kind and _FILE_TYPES.get(kind) != ("wheel" if upload.filename.endswith(".whl") else "sdist"):
        raise refusal("bad_form", f"`filetype` is `{kind[:50]}`, but `{upload.filename[:100]}` is not")


def parse_check(upload: Upload) -> CheckSummary | None:
    """Return the publisher's `wander check` results, or None if the form does not give them, as with twine
    and uv."""
    text = upload.fields.get(CHECK_FIELD)
    if not text:
        return None
    hint = "publish without it: `wander publish --no-check`"
    try:
        return read_record(CheckSummary, text, CHECK_REPORT)
    except RefusedText as error:
        raise refusal("bad_check_report", f"`{CHECK_FIELD}`: {error!s:.300}", hint=hint) from error


def check_filename(filename: str) -> FileName:
    """Require a file name that the packaging standards allow and that cannot be mistaken for a path."""
    if not _FILENAME.fullmatch(filename):
        detail = f"`{filename[:100]!s}` is not a valid file name for a distribution"
        raise refusal("bad_filename", detail.encode("utf-8", "replace").decode())
    try:
        if filename.endswith(".whl"):
            parts = filename.removesuffix(".whl").split("-")
            tags = wheel.expand_tag("-".join(parts[-3:]))  # limited in size, unlike the next call
            name, version, build, _tags = parse_wheel_filename(filename)
            stem = "-".join(parts[:2])
            return FileName("wheel", name, str(version), stem, parts[2] if build else "", tags)
        stem = filename.removesuffix(".tar.gz")
        name, version = parse_sdist_filename(filename)
        wanted = f"{name.replace('-', '_')}-{version}"
        if stem != wanted:
            raise ValueError(f"PEP 625 requires the name `{wanted}.tar.gz`")
        return FileName("sdist", name, str(version), stem)
    except (InvalidWheelFilename, InvalidSdistFilename, ValueError) as error:
        raise refusal("bad_filename", f"`{filename}`: {error!s:.300}") from error


def check_size(filename: str, size: int, settings: Settings) -> None:
    """Require a file that is neither empty nor over the limit."""
    if size == 0:
        raise refusal("empty_file", f"`{filename}` is empty")
    if size > settings.max_upload_bytes:
        allowed = f"{settings.max_upload_bytes / (1024 * 1024):,.0f} MiB"
        raise refusal("too_large", f"`{filename}` exceeds this hub's limit of {allowed}")


def check_bytes(upload: Upload, filename: FileName, settings: Settings, findings: Findings) -> Contents:
    """Read the file once from start to end, checking the archive and the digests together.

    If both are wrong, the digests are reported: the file was damaged in transit.
    """
    given = {key: upload.fields[key].strip().lower() for key in DIGESTS if upload.fields.get(key)}
    stream = ByteStream(upload.body, given.keys() - {_SHA256_FIELD})
    try:
        if filename.kind == "wheel":
            contents = wheel.read(stream, upload.body, filename, settings, upload.size, findings)
        else:
            contents = sdist.read(stream, filename, settings, upload.size, findings)
    except HubProblem:
        check_digests(stream, given, upload.sha256)
        raise
    check_digests(stream, given, upload.sha256)
    return contents


def check_digests(stream: ByteStream, given: Mapping[str, str], sha256: str) -> None:
    """Require that every digest in the form matches the bytes received; SHA-256 is known from the upload."""
    others = stream.digests() if given.keys() - {_SHA256_FIELD} else {}
    real = {**others, _SHA256_FIELD: sha256}
    for key, value in given.items():
        if not hmac.compare_digest(real[key].encode(), value.encode(errors="replace")):
            raise refusal("digest_mismatch", f"`{key}` does not match the bytes that arrived")


def check_metadata(metadata: Metadata, metadata_file: str, contents: Contents, findings: Findings) -> None:
    """Require license files that exist, requirements that are safe to install, and a single license."""
    from trove_classifiers import classifiers as known_classifiers

    for path in metadata.license_files or []:
        if path not in contents.license_files:
            detail = f"the file `{clip(path)}`, which `License-File` names, is not in the archive"
            raise refusal("license_file_missing", detail)
    for requirement in metadata.requires_dist or []:
        try:
            check_requirement(str(requirement), requirement.url)
        except ValueError as error:
            raise refusal(
                "unsafe_requirement", f"the requirement `{clip(str(requirement))}`: {error}"
            ) from error
        if requirement.url:
            findings.apply("direct_url", f"the requirement `{requirement!s:.200}` names an address")
    for classifier in metadata.classifiers or []:
        if classifier not in known_classifiers and not classifier.startswith(_PRIVATE):
            findings.apply("unknown_classifier", f"`{clip(classifier)}` is not a known classifier")
    if metadata.license_expression and metadata.license:
        detail = f"{metadata_file} has both `License-Expression` and the deprecated `License` (PEP 639)"
        raise refusal("bad_metadata", detail)


def check_identity(upload: Upload, filename: FileName, package: Package, findings: Findings) -> None:
    """Require that file name, metadata and form agree, and that the name is not reserved."""
    if (filename.name, filename.version) != (package.name, package.version):
        inside = f"`{package.name}` {package.version}"
        raise refusal("name_mismatch", f"`{upload.filename}` contains the metadata of {inside}")
    claimed_name, claimed_version = upload.fields.get("name"), upload.fields.get("version")
    if claimed_name and names.normalize_environment(claimed_name) != package.name:
        raise refusal(
            "name_mismatch",
            f"the names differ: `{claimed_name[:100]}` in the form, `{package.name}` in the file",
        )
    try:
        fits = not claimed_version or names.normalize_version(claimed_version) == package.version
    except ValueError:  # not a version, or a number with thousands of digits
        fits = False
    if claimed_version and not fits:
        raise refusal(
            "version_mismatch",
            f"the versions differ: {claimed_version[:100]} in the form, {package.version} in the file",
        )
    if "+" in package.version:
        findings.apply("local_version", f"{package.version} is a local version")
    if package.name in names.RESERVED_ENVIRONMENTS:
        raise refusal("reserved_name", f"the name `{package.name}` is reserved")


def check_modules(contents: Contents, findings: Findings, *, own: bool) -> None:
    """Require that no module replaces a module of Python or of Wander, unless the package is the hub's
    `own`."""
    for module in sorted(contents.modules):
        if module in sys.stdlib_module_names:
            findings.apply("shadows_stdlib", f"`{module}` is a module of the Python standard library")
        if module in _WANDER_MODULES and not own:
            findings.apply("shadows_wander", f"`{module}` is a module of Wander")


def check_environment(package: Package) -> None:
    """Require that the package offers an environment: an entry point, or a module with `load_environment`."""
    if package.contents.entry_point is None and not package.contents.has_loader:
        raise refusal("no_environment", f"`{package.filename}` does not offer an environment")
