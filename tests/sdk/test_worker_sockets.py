"""The folder of a worker's socket: nobody's that is in use is removed, what killed hosts left is."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from wander.errors import LoadError
from wander.system.locked_folders import remove_left_folders
from wander.worker.host import link
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.host.link import PREFIX, make_socket_folder

HOST = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from wander.worker.host.link import make_socket_folder
folder = make_socket_folder()
(folder.path / "s").touch()
print(folder.path, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own, with a short path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("wander.worker.host.link._SOCKET_LIMIT", 1000)
    return tmp_path


def test_folders_of_killed_hosts_are_removed_at_the_next_start(place: Path) -> None:
    setting = HOST.replace(
        "folder =", "from wander.worker.host import link as m; m._SOCKET_LIMIT = 1000\nfolder ="
    )
    process = subprocess.Popen([sys.executable, "-c", setting, str(place)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        mine = make_socket_folder()
        assert left.parent == place
        assert (left / "s").exists(), "its host lives"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert left.exists()
        other = make_socket_folder()
    assert not left.exists()
    assert mine.path.exists()
    assert mine.path.stat().st_mode & 0o777 == 0o700
    for each in (mine, other, other):
        each.close()
    assert list(place.iterdir()) == []


def test_only_our_own_folders_are_removed(place: Path) -> None:
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "kept").touch()
    link, file, opened, left, another = (place / f"{PREFIX}{'0' * 15}{number}" for number in range(5))
    link.symlink_to(place / "elsewhere")
    file.touch()
    opened.mkdir(mode=0o755)
    left.mkdir(mode=0o700)
    if os.geteuid() == 0:
        another.mkdir(mode=0o700)
        os.chown(another, 12345, 12345)
    before = {path.name for path in place.iterdir()}
    remove_left_folders(place, PREFIX)
    assert before - {path.name for path in place.iterdir()} == {left.name}
    assert (place / "elsewhere" / "kept").exists()


async def test_errors_while_creating_a_socket_are_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_left(*given: object, **named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(link, "unix_serve", none_left)
    with pytest.raises(LoadError, match="Too many open files") as caught:
        await WorkerEnvironment.start(None, "any", log_path=place / "log", workers=3)
    assert caught.value.hint is None
    assert os.listdir(place) == []
