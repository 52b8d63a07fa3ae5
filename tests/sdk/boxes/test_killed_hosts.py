"""Boxes whose host is killed, while it starts them or while they run."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandboxes import needs_sandbox

pytestmark = needs_sandbox

HOST = """
import asyncio, sys
from wander.boxes.base import BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
async def main():
    print("begins", flush=True)
    box = await BubblewrapBackend().start(BoxSpec(environment={"MARK": sys.argv[1]}))
    await box.exec("setsid sleep 1000 >/dev/null 2>&1 & exec 7<>/proc/1/fd/0; setsid sleep 1000 &")
    print("runs", flush=True)
    await box.exec("sleep 1000", seconds=1000)
asyncio.run(main())
"""


def marked(mark: str) -> list[str]:
    """Return the processes of a box, and the launchers and supervisors of all boxes of this checkout."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found.append(path.name)
    return found


def kill_one(mark: str, *, while_starting: bool, pause: float = 0.0) -> None:
    with subprocess.Popen([sys.executable, "-c", HOST, mark], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"begins\n"
        if while_starting:
            time.sleep(pause)
        else:
            assert host.stdout.readline() == b"runs\n"
            assert marked(mark)
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
        host.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while marked(mark) or [child for child in children if Path("/proc", child).exists()]:
        assert time.monotonic() < deadline, (marked(mark), children)
        time.sleep(0.02)


@pytest.mark.parametrize("while_starting", [False, True])
def test_a_killed_host_leaves_nothing(while_starting, tmp_path):
    kill_one(tmp_path.name, while_starting=while_starting)


@pytest.mark.full
def test_twenty_kills_leave_nothing(tmp_path):
    for index in range(20):
        kill_one(tmp_path.name, while_starting=index % 2 == 0, pause=index * 0.01)
