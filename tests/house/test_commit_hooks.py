"""`make hooks`: what git refuses to commit, tried in a repository of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = '"""A module."""\n\nANSWER = 42\n'


@pytest.fixture
def repository(root, tmp_path) -> Path:
    """A repository with the hooks of this one and the programs of this interpreter."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        shutil.copy(root / name, folder / name)
    (folder / ".gitignore").write_text(".venv\n")
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def hooks(repository: Path) -> subprocess.CompletedProcess[str]:
    """Stage everything and run the hooks on it, as `git commit` would."""
    environment = {**os.environ, "PRE_COMMIT_HOME": str(repository.parent / "cache")}
    subprocess.run(["git", "add", "--all"], cwd=repository, check=True)
    command = [sys.executable, "-m", "pre_commit", "run", "--color", "never"]
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)


def test_good_files_are_committed(repository):
    (repository / "good.py").write_text(GOOD)
    done = hooks(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 4


@pytest.mark.parametrize(
    ("name", "content", "hook"),
    [
        ("unformatted.py", GOOD.replace(" = ", "="), "ruff-format"),
        ("faulty.py", GOOD + "print(ANSWER)\n", "ruff-check"),
        ("misspelt.md", "How to pubish.\n", "typos"),
        ("large.bin", "0" * 201 * 1024, "large-files"),
    ],
)
def test_bad_files_are_not_committed(repository, name, content, hook):
    (repository / name).write_text(content)
    done = hooks(repository)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("Failed") == 1
    assert f"hook id: {hook}" in done.stdout
