"""Wheels that unpack to far more than they have, or than they state, are refused before uv sees them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from lying_hub import LyingHub
from wander_client.errors import ClientError
from wander_client.packages import needs
from wander_client.packages.needs import require_bounded

METADATA = "Metadata-Version: 2.1\nName: bomb\nVersion: 1.0\n"


def wheel(place: Path, zeros: int, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = place / "bomb-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("bomb-1.0.dist-info/METADATA", METADATA)
        with archive.open("zeros", "w", force_zip64=True) as file:
            for _ in range(zeros >> 16):
                file.write(bytes(1 << 16))
    return path


def understate(path: Path, stated: int) -> None:
    """Write a smaller size of the last entry into the archive's directory."""
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", stated)
    path.write_bytes(content)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_FREE_UNPACKED", 1 << 20)


@pytest.mark.parametrize("size", [2 << 20, 8 << 20, 32 << 20])
def test_a_wheel_that_unpacks_too_large_is_rejected(tmp_path: Path, size: int) -> None:
    with pytest.raises(ClientError) as refused:
        require_bounded(wheel(tmp_path, size))
    assert refused.value.code == "unsafe_package"


@pytest.mark.parametrize("stated", [0, 1, 1 << 10, (1 << 19) - 1])
def test_a_wheel_that_unpacks_larger_than_stated_is_rejected(tmp_path: Path, stated: int) -> None:
    path = wheel(tmp_path, 1 << 19)
    understate(path, stated)
    with pytest.raises(ClientError) as refused:
        require_bounded(path)
    assert refused.value.code in ("unsafe_package", "bad_wheel")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_rejected(tmp_path: Path, method: int) -> None:
    with pytest.raises(ClientError) as refused:
        require_bounded(wheel(tmp_path, 1 << 18, method))
    assert refused.value.code == "unsafe_package"


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000, b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_not_an_archive_is_not_a_wheel(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bomb-1.0-py3-none-any.whl"
    path.write_bytes(content)
    if content.startswith(b"PK\x05"):
        require_bounded(path)  # an empty archive, which has no METADATA either
        return
    with pytest.raises(ClientError) as refused:
        require_bounded(path)
    assert refused.value.code == "bad_wheel"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_an_ordinary_wheel_is_accepted(tmp_path: Path, method: int) -> None:
    require_bounded(wheel(tmp_path, 1 << 19, method))


def test_a_rejected_wheel_of_a_hub_is_removed(
    wander: Wander, behind: LyingHub, home: Path, tmp_path: Path
) -> None:
    import hashlib

    (tmp_path / "made").mkdir()
    content = wheel(tmp_path / "made", 8 << 20).read_bytes()
    name = "say_env-0.1.0-py3-none-any.whl"

    def edit(data: Any) -> None:
        for file in data["files"]:
            file |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "url": "/bomb.whl"}

    behind.edit("/versions/0.1.0$", edit)
    behind.answer("/bomb.whl$", body=content)
    refused = wander("install", "admin/say-env@0.1.0", "--json")
    assert refused.json["error"]["code"] == "unsafe_package", refused.out
    assert not list((home / "cache").rglob(name))
