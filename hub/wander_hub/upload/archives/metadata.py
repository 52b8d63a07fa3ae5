"""The core metadata inside a file; the copy in the upload form is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from wander_hub.environments.readme import render
from wander_hub.upload.archives import limits
from wander_hub.upload.archives.headers import decode
from wander_hub.upload.archives.members import clip
from wander_hub.upload.findings import refusal
from wander_hub.upload.schemas import Contents, FileName, Package, Upload

if TYPE_CHECKING:  # packaging.metadata holds the text of every license, so the first upload imports it
    from packaging.metadata import Metadata, RawMetadata

_MAX_TAGS = 32
_NAME_CHARS = 128
_VERSION_CHARS = 64
_LICENSE_FACTOR = 16
"""`License` may hold a license in full; the longest in common use, the GPL, has 35,000 characters."""
_ALL_FACTOR = 128
"""Limit on all fields together, in multiples of the longest value: parsing requirements takes time."""
_LICENSE_FILES_SINCE = Version("2.4")
_SPACE = re.compile(r"\s+")


def package_from(upload: Upload, filename: FileName, contents: Contents, metadata: Metadata) -> Package:
    """Return the package that a file describes."""
    license_text = metadata.license_expression or metadata.license
    readme = metadata.description or ""
    readme_type = (metadata.description_content_type or "text/x-rst").split(";")[0].strip().lower()
    keywords = [_SPACE.sub("-", keyword.strip().lower())[:40] for keyword in metadata.keywords or []]
    return Package(
        filename=upload.filename,
        kind=filename.kind,
        size=upload.size,
        sha256=upload.sha256,
        name=canonicalize_name(metadata.name),
        version=str(metadata.version),
        summary=_SPACE.sub(" ", metadata.summary or "").strip(),
        requires_python=str(metadata.requires_python) if metadata.requires_python else None,
        requires_dist=[str(requirement) for requirement in metadata.requires_dist or []],
        license=_SPACE.sub(" ", license_text).strip()[:100] if license_text else None,
        tags=list(dict.fromkeys(keyword for keyword in keywords if keyword))[:_MAX_TAGS],
        readme=readme,
        readme_type=readme_type,
        readme_html=render(readme, readme_type),
        contents=contents,
        core_metadata=contents.metadata if filename.kind == "wheel" else None,
    )


def parse_metadata(text: bytes, what: str) -> Metadata:
    """Return core metadata that the standard allows; refuse any other. `what` is the name of its file."""
    from packaging.metadata import InvalidMetadata, Metadata, parse_email

    decode(text, what, "bad_metadata")
    raw, unknown = parse_email(text)
    if unknown:
        name = min(unknown)
        detail = f"{what} has the field `{clip(name)}`, which is unknown, repeated or malformed"
        raise refusal("bad_metadata", detail)
    _check_lengths(raw, what)
    for label, value in (("Name", raw.get("name", "")), ("Version", raw.get("version", ""))):
        if not value.isascii():  # parsers strip spaces of all kinds from a number
            raise refusal("bad_metadata", f"`{label}` in {what} contains a non-ASCII character")
    with suppress(InvalidVersion):  # validation below refuses it
        # Setuptools 57 to 76 wrote `License-File` into metadata 2.1, before the standard allowed it.
        if Version(raw.get("metadata_version", "")) < _LICENSE_FILES_SINCE:
            raw.pop("license_files", None)
    try:
        return Metadata.from_raw(raw, validate=True)
    except (ExceptionGroup, InvalidMetadata, ValueError, RecursionError) as error:
        faults = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        detail = "; ".join(_explain(fault) for fault in faults[:3])
        raise refusal("bad_metadata", f"{what} is not valid: {detail:.600}") from error


def _explain(fault: Exception) -> str:
    from packaging.metadata import InvalidMetadata

    text = str(fault)
    if isinstance(fault, InvalidMetadata) and fault.field not in text:
        return f"`{fault.field}`: {text}"
    return text or type(fault).__name__


def _check_lengths(raw: RawMetadata, what: str) -> None:
    """Require that no text is longer, and no list has more values, than the hub stores."""
    most: Mapping[str, int] = {
        "name": min(_NAME_CHARS, limits.MAX_FIELD_CHARS),
        "version": min(_VERSION_CHARS, limits.MAX_FIELD_CHARS),
        "summary": limits.MAX_SUMMARY_CHARS,
        "license": limits.MAX_FIELD_CHARS * _LICENSE_FACTOR,
    }
    total = 0
    for field, value in raw.items():
        label = field.replace("_", "-")
        if field == "description":
            size = len(str(value).encode())
            if size > limits.MAX_README_BYTES:
                detail = f"the README in {what} has {size:,} bytes, more than {limits.MAX_README_BYTES:,}"
                raise refusal("text_too_long", detail)
            continue
        count = 0
        for count, text in enumerate(_texts(value), 1):  # noqa: B007 - the count is used after the loop
            allowed = most.get(field, limits.MAX_FIELD_CHARS)
            total += len(text)
            if len(text) > allowed:
                detail = f"`{label}` in {what} has {len(text):,} characters, more than {allowed:,}"
                raise refusal("text_too_long", detail)
        if count > limits.MAX_FIELD_VALUES:
            detail = f"`{label}` in {what} has {count:,} values, more than {limits.MAX_FIELD_VALUES:,}"
            raise refusal("text_too_long", detail)
    if total > limits.MAX_FIELD_CHARS * _ALL_FACTOR:
        detail = (
            f"the fields of {what} have {total:,} characters in total, "
            f"more than {limits.MAX_FIELD_CHARS * _ALL_FACTOR:,}"
        )
        raise refusal("text_too_long", detail)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{key}, {text}" for key, text in value.items())
    elif isinstance(value, list):
        yield from map(str, value)
    else:
        yield str(value)
