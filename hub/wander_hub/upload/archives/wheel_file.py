"""WHEEL: the version of the format, and the tags that the file name promised."""

from __future__ import annotations

import re
from email.message import Message

from packaging.tags import InvalidTag, TooManyTagsError, parse_tag

from wander_hub.upload.archives.headers import parse
from wander_hub.upload.schemas import FileName, refusal

MAX_TAGS = 500
"""A compressed tag set multiplies out; real wheels have at most a few dozen."""
_VERSION = re.compile(r"1\.\d{1,3}")


def expand(tag: str) -> frozenset[str]:
    """Return the single tags of a compressed set; raises `ValueError` where it is none."""
    try:
        return frozenset(str(one) for one in parse_tag(tag, limit=MAX_TAGS))
    except (InvalidTag, TooManyTagsError) as error:
        raise ValueError(str(error)) from error


def check(text: bytes, filename: FileName) -> None:
    """WHEEL is complete and says what the file name says."""
    fields = parse(text, "WHEEL", "bad_wheel_file")
    version = _one(fields, "Wheel-Version")
    if not _VERSION.fullmatch(version):
        raise refusal("bad_wheel_file", f"WHEEL has the Wheel-Version `{version[:50]}`, known is 1.0")
    purelib = _one(fields, "Root-Is-Purelib")
    if purelib.lower() not in ("true", "false"):
        raise refusal("bad_wheel_file", f"WHEEL has Root-Is-Purelib `{purelib[:50]}`, neither true nor false")
    build = _one(fields, "Build") if "Build" in fields else ""
    if build != filename.build:
        said = f"`{build[:50]}`" if build else "none"
        raise refusal(
            "tag_mismatch", f"WHEEL has the build {said}, the file name `{filename.build or 'none'}`"
        )
    _check_tags(fields, filename)


def _check_tags(fields: Message, filename: FileName) -> None:
    tags: set[str] = set()
    for value in fields.get_all("Tag", []):
        try:
            tags |= expand(str(value).strip())
        except ValueError as error:
            raise refusal("bad_wheel_file", f"WHEEL has a bad tag: {error!s:.200}") from error
    if not tags:
        raise refusal("bad_wheel_file", "WHEEL has no Tag")
    if tags != filename.tags:
        odd = sorted(tags ^ filename.tags)[0]
        place = "WHEEL and not in the file name" if odd in tags else "the file name and not in WHEEL"
        raise refusal("tag_mismatch", f"the tag `{odd[:100]}` is in {place}")


def _one(fields: Message, name: str) -> str:
    values = [str(value).strip() for value in fields.get_all(name, [])]
    if len(values) != 1:
        raise refusal("bad_wheel_file", f"WHEEL has {len(values)} fields `{name}` and not one")
    return values[0]
