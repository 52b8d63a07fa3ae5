"""`make setup`: pip's indexes reach uv, and what was set up once is not set up again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def set_up(root, monkeypatch):
    """The set-up script as a module, with a pip configuration of its own."""
    for variable in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    spec = importlib.util.spec_from_file_location("set_up", root / "scripts/set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pip_configuration(monkeypatch, place: Path, lines: list[str]) -> None:
    place.write_text("\n".join(["[global]", *lines, ""]))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(place))


def options(arguments: list[str]) -> set[tuple[str, str]]:
    return set(zip(arguments[::2], arguments[1::2], strict=False))


def test_indexes_and_link_folders_of_pip_are_passed_on(set_up, monkeypatch, tmp_path):
    lines = [
        "find-links = /wheels",
        "extra-index-url = https://one.example/simple https://two.example/simple",
    ]
    pip_configuration(monkeypatch, tmp_path / "pip.conf", lines)
    given = options(set_up.index_arguments())
    assert ("--find-links", "/wheels") in given
    assert ("--extra-index-url", "https://one.example/simple") in given
    assert ("--extra-index-url", "https://two.example/simple") in given
    assert ("--index-strategy", "unsafe-best-match") in given, "as pip does: the best version of all indexes"


def test_variables_win_over_the_file(set_up, monkeypatch, tmp_path):
    pip_configuration(monkeypatch, tmp_path / "pip.conf", ["find-links = /from-the-file"])
    monkeypatch.setenv("PIP_FIND_LINKS", "/from-the-variable")
    given = options(set_up.index_arguments())
    assert ("--find-links", "/from-the-variable") in given
    assert ("--find-links", "/from-the-file") not in given


def test_a_machine_without_an_index_requests_no_index(set_up, monkeypatch, tmp_path):
    pip_configuration(monkeypatch, tmp_path / "pip.conf", ["no-index = true", "find-links = /wheels"])
    assert "--no-index" in set_up.index_arguments()


def test_the_fingerprint_follows_the_lock_and_every_pyproject(set_up, monkeypatch):
    before = set_up.fingerprint()
    assert set_up.fingerprint() == before
    read = Path.read_bytes
    for changed in (set_up.CONSTRAINTS, *(member / "pyproject.toml" for member in set_up.members())):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path, one=changed: read(path) + b"\n" * (path == one))
            assert set_up.fingerprint() != before, changed
    monkeypatch.setenv("TORCH_BACKEND", "cpu")
    assert set_up.fingerprint() != before


def test_the_members_are_the_distributions_of_the_workspace(set_up, members):
    assert sorted(map(set_up.distribution_name, set_up.members())) == sorted(one.name for one in members)
    assert all("vllm" not in set_up.extras(member) for member in set_up.members())


def test_without_a_compiler_compiled_packages_are_skipped(set_up, monkeypatch, tmp_path, capfd):
    compiler = tmp_path / "cc"
    compiler.touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(set_up.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CC", f"{compiler} -pthread")
    done: list[list[str]] = []
    monkeypatch.setattr(set_up, "run", lambda command, what: done.append(command))
    before = set_up.fingerprint()
    set_up.install_everything()
    assert capfd.readouterr().out == ""
    compiler.unlink()
    set_up.install_everything()
    (said,) = capfd.readouterr().out.splitlines()
    assert "without `reasoning-gym`" in said
    everything, without = [" ".join(command) for command in done]
    assert "/environments/reasoning_gym_tasks " in everything
    assert ",reasoning-gym," in everything
    assert "reasoning" not in without
    assert "gymnasium" in without
    assert len(done[1]) == len(done[0]) - 2, "one distribution alone, and one extra of another"
    assert set_up.fingerprint() != before, "a compiler that is installed later is noticed"


def test_a_finished_setup_is_not_repeated(set_up, monkeypatch, tmp_path, capfd):
    stamp = tmp_path / "stamp"
    stamp.write_text(set_up.fingerprint())
    monkeypatch.setattr(set_up, "STAMP", stamp)
    monkeypatch.setattr(set_up, "PYTHON", Path(sys.executable))
    set_up.set_up()
    assert capfd.readouterr().out == ""


def test_a_failed_step_is_named_and_repeated(set_up, monkeypatch, tmp_path, capfd):
    def fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "")

    stamp = tmp_path / "stamp"
    stamp.write_text("of another time")
    monkeypatch.setattr(set_up, "STAMP", stamp)
    monkeypatch.setattr(set_up.subprocess, "run", fails)
    monkeypatch.setattr(sys, "argv", ["set_up.py"])
    assert set_up.main() == 1
    assert "error: make the virtual environment failed" in capfd.readouterr().err
    assert not stamp.exists()
