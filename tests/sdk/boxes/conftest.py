"""Boxes over the system's folders and over a root folder of busybox."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from wander.boxes.base import Box, BoxLimits, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend

SMALL = BoxLimits(memory_mb=256, disk_mb=16, processes=32, seconds=120)


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory) -> str:
    """A root folder with a static busybox, which is all of its programs."""
    program = shutil.which("busybox")
    if (
        program is None
        or b"static" not in subprocess.run(["file", "-L", program], capture_output=True).stdout
    ):
        pytest.skip("no static busybox: apt install busybox-static")
    root = tmp_path_factory.mktemp("root") / "root"
    for name in ("bin", "etc", "work/given"):
        (root / name).mkdir(parents=True)
    shutil.copy(program, root / "bin/busybox")
    for applet in subprocess.run([program, "--list"], capture_output=True, text=True).stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "work/given/notes.txt").write_text("given\n")
    (root / "work/old.txt").write_text("old\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for path in (root, *root.parents):
        if path.owner() == os.environ.get("USER", "root") and path.name != "tmp" and path != Path("/"):
            path.chmod(0o755)
    return str(root)


@pytest.fixture(params=["system", "root"])
def spec(request) -> BoxSpec:
    """A spec for each kind of file system that bubblewrap offers."""
    root = request.getfixturevalue("busybox_root") if request.param == "root" else None
    return BoxSpec(root=root, limits=SMALL)


@pytest.fixture
async def box(spec) -> AsyncIterator[Box]:
    """A running box."""
    box = await BubblewrapBackend().start(spec)
    yield box
    await box.stop()
