"""Publish with `wander`; install with `wander`, pip and uv. `test_package_clients` has the other tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from live_hub import BIN

LOADS = "import reverse_text; print(type(reverse_text.load_environment()).__name__)"


@pytest.fixture
def package(machine) -> Path:
    """A new environment, named for its test's machine alone."""
    name = f"rhyme-{machine.home.parent.name.strip('_').replace('_', '-')[-12:].strip('-')}".lower()
    machine.wander("new", machine.home / name)
    readme = machine.home / name / "README.md"
    readme.write_text(readme.read_text().replace("This text came with `wander new`", ""))
    return machine.home / name


def upload_url(hub) -> str:
    return f"{hub.url}/admin/legacy/"


def built(machine, package: Path) -> list[Path]:
    folder = machine.home / "dist"
    done = machine.run("uv", "build", "--quiet", "--no-build-isolation", "--out-dir", folder, package)
    assert done.returncode == 0, done.stderr
    return sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))


def test_wander_publishes_what_a_second_machine_installs_by_name(machine, bundled):
    installed = machine.wander("install", "admin/tictactoe")
    assert "tictactoe" in json.dumps(installed)
    listed = json.dumps(machine.wander("env", "list"))
    assert "tictactoe" in listed
    python = next(machine.home.glob("data/**/bin/python"))
    code = "import tictactoe, wander; print(wander.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(machine.home) in done.stdout, "the environment has an SDK of its own, from the hub"


@pytest.mark.full
def test_pip_installs_from_the_index_of_the_owner(machine, bundled, hub):
    python = machine.fresh_venv("pip-venv")
    indexes = ["--index-url", machine.mirror, "--extra-index-url", f"{hub.url}/wander/simple/"]
    indexes += ["--extra-index-url", f"{hub.url}/admin/simple/"]
    done = machine.run("pip", "--python", python, "install", "--quiet", *indexes, "reverse-text")
    assert done.returncode == 0, done.stderr
    loaded = subprocess.run([python, "-c", LOADS], capture_output=True, text=True)
    assert loaded.stdout.strip() == "SingleTurnEnv", loaded.stderr


@pytest.mark.full
def test_the_command_itself_installs_from_the_hub_and_a_mirror(machine, hub):
    python = machine.fresh_venv("command-venv")
    index = ["--index", f"{hub.url}/wander/simple/"]
    done = machine.run("uv", "pip", "install", "--python", python, *index, "wander-client")
    assert done.returncode == 0, done.stderr
    command = [python.with_name("wander"), "search", "--json"]
    searched = subprocess.run(command, capture_output=True, text=True, env=machine.environment)
    assert searched.returncode == 0, searched.stderr
    assert str(BIN) != str(python.parent)


@pytest.mark.full
def test_changed_files_of_a_published_version_are_rejected(machine, package):
    machine.wander("publish", package, "--no-check")
    again = machine.run("wander", "publish", package, "--no-check")
    assert again.returncode == 0, "the same bytes again are fine"
    readme = package / "README.md"
    readme.write_text(readme.read_text() + "\nmore\n")
    said = machine.refused(1, "publish", package, "--no-check")
    assert "0.1.0" in said


def test_an_invalid_wheel_is_rejected_by_name(machine, package, hub):
    wheel = next(path for path in built(machine, package) if path.suffix == ".whl")
    broken = wheel.with_name(wheel.name)
    broken.write_bytes(b"PK\x03\x04 this is no archive")
    login = ["--publish-url", upload_url(hub), "--token", hub.token]
    done = machine.run("uv", "publish", *login, broken)
    assert done.returncode != 0
    assert machine.run("wander", "env", "info", f"admin/{package.name}").returncode == 3, (
        "nothing was published"
    )


def test_a_wheel_with_a_false_record_is_rejected(machine, package, hub):
    wheel = next(path for path in built(machine, package) if path.suffix == ".whl")
    forged = machine.home / wheel.name
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(forged, "w") as bad:
        for member in good.infolist():
            content = good.read(member)
            bad.writestr(member, content + b"\n# more\n" if member.filename.endswith(".py") else content)
    done = machine.run("uv", "publish", "--publish-url", upload_url(hub), "--token", hub.token, forged)
    assert done.returncode != 0
    assert "RECORD" in done.stderr + done.stdout
    shutil.rmtree(machine.home / "dist")
