"""The parsed sources of the whole house, read once."""

from __future__ import annotations

import ast
import gc
import glob
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("sdk", "client", "hub", "compat", "plugins", "environments", "migrations", "tests", "benchmarks"),
    *("experiments", "scripts"),
)
SKIPPED = {"__pycache__", "build", "dist", ".venv", "node_modules"}


@dataclass(frozen=True)
class Source:
    """One Python file of the repository."""

    path: str
    """Relative to the root, with forward slashes."""
    text: str
    nodes: list[ast.AST]
    """The module and every node of its tree."""

    @property
    def is_test(self) -> bool:
        return "tests" in self.path.split("/")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace."""

    folder: Path
    pyproject: dict[str, Any]

    @property
    def name(self) -> str:
        return self.pyproject["project"]["name"]

    @property
    def is_environment(self) -> bool:
        return self.folder.parent.name == "environments"

    def packages(self) -> list[str]:
        """Folders and modules that its wheel holds, relative to the member."""
        target = self.pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
        return [*target.get("packages", []), *target.get("only-include", []), *target.get("include", [])]


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in SKIPPED and not path.name.startswith("."):
            found += _files(path)
        elif path.suffix == ".py":
            found.append(path)
    return found


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    paths = [path for folder in FOLDERS if (ROOT / folder).is_dir() for path in _files(ROOT / folder)]
    assert len(paths) > 20
    texts = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]
    # The search for garbage among two million nodes takes three times as long as to parse them.
    gc.disable()
    found = [Source(path, text, list(ast.walk(ast.parse(text, path)))) for path, text in texts]
    gc.freeze()
    gc.enable()
    return found


@pytest.fixture(scope="session")
def members() -> list[Member]:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]["members"]
    folders = [Path(path) for pattern in patterns for path in sorted(glob.glob(str(ROOT / pattern)))]
    return [
        Member(folder, tomllib.loads((folder / "pyproject.toml").read_text()))
        for folder in folders
        if (folder / "pyproject.toml").is_file()
    ]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT
