"""Agent programs are installed once on the host, and boxes of every backend show them read-only."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from wander.boxes import programs
from wander.boxes.base import BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.containers import ContainerBackend, _find_fault
from wander.boxes.programs import PROGRAMS, install
from wander.errors import EnvironmentFault

CODEX = PROGRAMS["codex"]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "wander" / "programs"


@pytest.fixture
def installed(cache) -> Path:
    """Codex as if it was installed: a folder with a script."""
    folder = cache / f"codex-{CODEX.version}"
    folder.mkdir(parents=True)
    (folder / "hello").write_text("#!/bin/sh\necho hello\n")
    (folder / "hello").chmod(0o755)
    return folder


@pytest.fixture
def busybox_image(busybox_root) -> str:
    packed = subprocess.run(["tar", "-C", busybox_root, "-c", "."], capture_output=True, check=True).stdout
    image = "localhost/wander-programs:1"
    subprocess.run(["podman", "import", "-", image], input=packed, capture_output=True, check=True)
    return image


@pytest.fixture(params=["system", "root", "podman"])
async def box(request, installed):
    spec, backend = BoxSpec(programs=["codex"]), BubblewrapBackend()
    if request.param != "system":
        spec = spec.model_copy(update={"root": request.getfixturevalue("busybox_root")})
    if request.param == "podman":
        if (fault := _find_fault("podman")) is not None:
            pytest.skip(f"no Podman: {fault}")
        image = request.getfixturevalue("busybox_image")
        spec, backend = BoxSpec(image=image, programs=["codex"]), ContainerBackend("podman")
    box = await backend.start(spec)
    yield box
    await box.stop()


async def test_a_box_shows_a_program_and_cannot_change_it(box, installed):
    assert (await box.exec("/opt/codex/hello")).output == "hello\n"
    assert (await box.exec("echo other > /opt/codex/hello || rm /opt/codex/hello")).exit_status != 0
    assert (installed / "hello").read_text().endswith("echo hello\n")
    assert (await box.final_state()).files == []


def test_a_program_is_installed_once_and_appears_when_it_is_complete(cache, monkeypatch):
    made: list[Path] = []

    def run_installer(program: programs.AgentProgram, folder: Path) -> None:
        made.append(folder)
        assert not (cache / f"codex-{CODEX.version}").exists()
        (folder / "file").touch()

    monkeypatch.setattr(programs, "_run_installer", run_installer)
    threads = [threading.Thread(target=install, args=("codex",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [path.name for path in cache.iterdir()] == [f"codex-{CODEX.version}"]
    assert stat.S_IMODE(install("codex").stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["codex", "mini-swe-agent"])
async def test_a_program_that_cannot_be_installed_names_the_reason(cache, monkeypatch, tmp_path, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentFault, match="is not on this machine"):
        await asyncio.to_thread(install, name)
    failing = tmp_path / ("npm" if name == "codex" else "uv")
    failing.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="no network"):
        await asyncio.to_thread(install, name)
    assert list(cache.iterdir()) == []
    with pytest.raises(EnvironmentFault, match="no agent program"):
        install("command")
