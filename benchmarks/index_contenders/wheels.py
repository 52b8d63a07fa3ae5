"""Creates the wheels that every server gets, and the static files that nginx serves."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

PROJECTS, VERSIONS, MANY = 40, 3, 300
"""40 projects with mutual dependencies in three versions, and one project with 300 versions."""
_MODULE = b"def load_environment(**arguments):\n    return arguments\n"


def make_wheels(folder: Path, many: int = MANY) -> list[Path]:
    """Write every wheel, and return them in the order of publication."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(PROJECTS):
        needs = [f"bench-pkg-{other:03d}>=1" for other in range(number + 1, min(number + 4, PROJECTS))]
        for version in range(VERSIONS):
            made.append(_wheel(folder, f"bench-pkg-{number:03d}", f"1.{version}.0", needs, 8000))
    made += [_wheel(folder, "bench-many", f"1.{version}.0", [], 300) for version in range(many)]
    return made


def make_large(folder: Path) -> Path:
    """Write a wheel of 2 MB."""
    folder.mkdir()
    return _wheel(folder, "bench-large", "1.0.0", [], 2_000_000)


def make_static(root: Path, wheels: list[Path]) -> None:
    """Write pages and files for nginx, with metadata files next to the wheels."""
    (root / "files").mkdir(parents=True)
    pages: dict[str, list[dict[str, object]]] = {}
    for wheel, metadata in _read(wheels):
        body = wheel.read_bytes()
        (root / "files" / wheel.name).write_bytes(body)
        (root / "files" / f"{wheel.name}.metadata").write_bytes(metadata)
        entry = {
            "filename": wheel.name,
            "url": f"/files/{wheel.name}",
            "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
            "requires-python": ">=3.11",
            "size": len(body),
            "upload-time": "2026-01-01T00:00:00.000000Z",
            "yanked": False,
            "core-metadata": {"sha256": hashlib.sha256(metadata).hexdigest()},
        }
        pages.setdefault(wheel.name.split("-")[0].replace("_", "-"), []).append(entry)
    for name, files in pages.items():
        folder = root / "simple" / name
        folder.mkdir(parents=True)
        page = {"meta": {"api-version": "1.4"}, "name": name, "versions": [], "files": files}
        (folder / "index.json").write_text(json.dumps(page, separators=(",", ":")))


def _read(wheels: list[Path]) -> Iterator[tuple[Path, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            yield wheel, archive.read(name)


def _wheel(folder: Path, name: str, version: str, needs: list[str], payload: int) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nRequires-Python: >=3.11\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in needs) + "\nA small wheel.\n"
    members = {
        f"{module}/__init__.py": _MODULE,
        f"{module}/data.bin": random.Random(f"{name}{version}").randbytes(payload),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(body)},{len(body)}\n" for path, body in members.items()]
    members[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, body in members.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    wheel.write_bytes(buffer.getvalue())
    return wheel


def _digest(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
