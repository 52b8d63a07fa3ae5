"""Reads the core metadata inside a file; the form's copy of it is never looked at."""

from __future__ import annotations

import re

from packaging.metadata import InvalidMetadata, Metadata
from packaging.utils import canonicalize_name

from wander_hub.upload.schemas import Contents, FileName, Package, Upload, refused

_SUMMARY_LENGTH = 512
_README_BYTES = 2 * 1024 * 1024
_MAX_TAGS = 32
_SPACE = re.compile(r"\s+")


def package_from(upload: Upload, filename: FileName, contents: Contents) -> Package:
    """Return the package that a file describes, or refuse metadata that the standard does not allow."""
    metadata = _parsed(contents.metadata)
    summary = _SPACE.sub(" ", metadata.summary or "").strip()
    if len(summary) > _SUMMARY_LENGTH:
        raise refused("bad_metadata", f"the summary is longer than {_SUMMARY_LENGTH} characters")
    readme = metadata.description or ""
    if len(readme.encode()) > _README_BYTES:
        raise refused("bad_metadata", f"the README is over {_README_BYTES:,} bytes")
    return Package(
        filename=upload.filename,
        kind=filename.kind,
        size=upload.size,
        sha256=upload.sha256,
        name=canonicalize_name(metadata.name),
        version=str(metadata.version),
        summary=summary,
        requires_python=str(metadata.requires_python) if metadata.requires_python else None,
        requires_dist=[str(one) for one in metadata.requires_dist or []],
        license=_licence(metadata),
        tags=_tags(metadata),
        readme=readme,
        readme_type=(metadata.description_content_type or "text/x-rst").split(";")[0].strip().lower(),
        entry_point=contents.entry_point,
        has_loader=contents.has_loader,
        core_metadata=contents.metadata if filename.kind == "wheel" else None,
    )


def _parsed(text: bytes) -> Metadata:
    try:
        text.decode()
        return Metadata.from_email(text, validate=True)
    except UnicodeDecodeError as error:
        raise refused("bad_metadata", "the metadata is not UTF-8") from error
    except (ExceptionGroup, InvalidMetadata, ValueError) as error:
        faults = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        detail = "; ".join(str(one) for one in faults[:3])
        raise refused("bad_metadata", f"the metadata is not valid: {detail}") from error


def _licence(metadata: Metadata) -> str | None:
    text = metadata.license_expression or metadata.license
    return _SPACE.sub(" ", text).strip()[:100] if text else None


def _tags(metadata: Metadata) -> list[str]:
    words = [_SPACE.sub("-", one.strip().lower())[:40] for one in metadata.keywords or []]
    return list(dict.fromkeys(one for one in words if one))[:_MAX_TAGS]
