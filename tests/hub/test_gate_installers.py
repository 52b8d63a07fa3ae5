"""Whatever the gate takes, pip and uv both install, and to the same files."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import uv
from archive_forge import DATA, INFO, WHEEL_NAME
from hypothesis import HealthCheck, Phase, event, given, settings
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.upload import checks
from wander_hub.upload.schemas import Upload
from wheel_mutator import wheels

WRITTEN_ANEW = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
PIP = """
import sys
from pip._internal.cli.main import main
for line in sys.stdin:
    wheel, target = line.rstrip("\\n").split("\\t")
    status = main(["install", "--no-deps", "--no-compile", "--no-index", "--quiet", "--no-cache-dir",
                   "--disable-pip-version-check", "--no-warn-conflicts", "--target", target, wheel])
    print(f"done {status}", flush=True)
"""
Installer = Callable[[Path, Path], tuple[int, str]]


@pytest.fixture(scope="module")
def pip() -> Iterator[Installer]:
    """Install with pip, in one process that stays: importing it takes longer than an installation."""
    environment = os.environ | {"PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-W", "ignore", "-c", PIP]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:

        def install(wheel: Path, target: Path) -> tuple[int, str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{wheel}\t{target}\n")
            process.stdin.flush()
            told = []
            for line in process.stdout:
                if line.startswith("done "):
                    return int(line.split()[1]), "".join(told)
                told.append(line)
            raise AssertionError(f"pip ended: {''.join(told)}")

        yield install
        assert process.stdin is not None
        process.stdin.close()


def with_uv(wheel: Path, target: Path) -> tuple[int, str]:
    command = [
        uv.find_uv_bin(),
        "pip",
        "install",
        "--no-deps",
        "--offline",
        "--no-index",
        "--no-config",
        "--no-cache",
    ]
    command += ["--python", sys.executable, "--target", str(target), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def installed(target: Path) -> dict[str, str]:
    """Return the digests of what an installer put there, apart from what each writes itself."""
    found = {}
    for path in target.rglob("*"):
        name = path.relative_to(target).as_posix()
        if path.is_dir() or name.startswith(("bin/", ".lock")):
            continue
        if name.startswith(f"{INFO}/") and path.name in WRITTEN_ANEW:
            continue
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def promised(body: bytes) -> dict[str, str]:
    """Return the same of what the wheel holds."""
    found = {}
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for info in archive.infolist():
            name = info.filename
            for scheme in ("purelib", "platlib", "data"):
                name = name.removeprefix(f"{DATA}/{scheme}/")
            if not info.is_dir() and not (
                name.startswith(f"{INFO}/") and name.rpartition("/")[2] in WRITTEN_ANEW
            ):
                found[name] = hashlib.sha256(archive.read(info)).hexdigest()
    return found


def is_taken(body: bytes) -> bool:
    upload = Upload("alice", WHEEL_NAME, io.BytesIO(body), len(body), hashlib.sha256(body).hexdigest())
    try:
        checks.check(upload, Settings())
    except HubProblem as problem:
        event(f"refused: {problem.code}")
        return False
    event("taken")
    return True


def compare(drawn: tuple[bytes, list[str]], pip: Installer) -> None:
    body, notes = drawn
    if not is_taken(body):
        return
    with TemporaryDirectory() as folder:
        wheel = Path(folder) / WHEEL_NAME
        wheel.write_bytes(body)
        outcomes = {}
        for name, install in (("pip", pip), ("uv", with_uv)):
            status, told = install(wheel, Path(folder) / name)
            assert status == 0, f"{name} does not install what was made by {notes}: {told}"
            outcomes[name] = installed(Path(folder) / name)
        assert outcomes["pip"] == outcomes["uv"] == promised(body), notes


QUIET = {
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}


@pytest.mark.full
@settings(max_examples=60, derandomize=True, **QUIET)
@given(drawn=wheels())
def test_pip_and_uv_install_accepted_archives(drawn, pip):
    compare(drawn, pip)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5000, **QUIET)
@given(drawn=wheels())
def test_pip_and_uv_install_many_accepted_archives(drawn, pip):
    compare(drawn, pip)
