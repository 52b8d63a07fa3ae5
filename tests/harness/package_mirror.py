"""A package index of the installed packages, so that tests can install offline into new virtual environments.

Each installed distribution is packed into a wheel from its RECORD; the resulting folder is a
simple index (PEP 503) that pip and uv read by its `file://` address.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REWRITTEN = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}
"""Files that an installer writes anew."""


def closure(names: Iterable[str]) -> list[Distribution]:
    """Return the distributions and their requirements, without extras."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(name) for name in names]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found[name] = distribution(name)
        for row in map(Requirement, found[name].requires or []):
            extras = requirement.extras or {""}
            if row.marker is None or any(row.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(row)
    return list(found.values())


def wheel_members(dist: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield the wheel's members; scripts that entry points generate are left out."""
    generated = {entry.name for entry in dist.entry_points if entry.group == "console_scripts"}
    data = f"{dist.metadata['Name'].replace('-', '_')}-{dist.version}.data"
    for file in dist.files or []:
        path = PurePosixPath(file.as_posix())
        if path.suffix == ".pyc" or path.name in REWRITTEN:
            continue
        content = Path(str(file.locate())).read_bytes()
        if path.parts[0] != "..":
            yield path.as_posix(), content
        elif path.parts[-2] == "bin" and path.name not in generated:
            yield f"{data}/scripts/{path.name}", content


def pack(dist: Distribution, folder: Path) -> Path:
    """Write the wheel of an installed distribution and return its path."""
    lines = (dist.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    # compressed tag sets are the product of their parts
    parts = [".".join(dict.fromkeys(tag.split("-")[i] for tag in tags)) for i in range(3)]
    name = dist.metadata["Name"].replace("-", "_").replace(".", "_")
    path = folder / f"{name}-{dist.version}-{'-'.join(parts)}.whl"
    record, info = [], f"{name}-{dist.version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in wheel_members(dist):
            if ".dist-info/" in member:
                info = member.split("/")[0]
            details = zipfile.ZipInfo(member)
            details.external_attr = (0o100755 if "/scripts/" in member else 0o100644) << 16
            archive.writestr(details, content)
            digest = hashlib.sha256(content)
            record.append(f"{member},sha256={_urlsafe(digest.digest())},{len(content)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


def _urlsafe(digest: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def build_mirror(folder: Path, names: Iterable[str]) -> str:
    """Write an index of the named distributions and their requirements; return its address."""
    for dist in closure(names):
        page = folder / "simple" / canonicalize_name(dist.metadata["Name"])
        page.mkdir(parents=True)
        wheel = pack(dist, page)
        (page / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>')
    return (folder / "simple").as_uri()


def build_client_mirror(folder: Path, *more: str) -> str:
    """Write an index of the client's and environments' requirements and `more`, without Wander's packages."""
    address = build_mirror(folder, ["wander-sdk", "wander-client", "hatchling", "mcp", *more])
    for ours in ("wander-sdk", "wander-client", "wander-compat"):
        shutil.rmtree(folder / "simple" / ours)
    return address
