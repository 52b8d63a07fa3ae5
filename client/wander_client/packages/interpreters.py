"""Choose the Python for a package: this one if it fits, another on this machine, or a new one from uv."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.markers import Environment, default_environment
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags
from packaging.version import Version

from wander_client.errors import ClientError
from wander_client.packages.uv import run_uv

OLDEST_PYTHON = Version("3.11")
"""Oldest Python that `wander-sdk` supports."""


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    path: Path
    version: str
    """Full version, such as `3.12.1`."""
    executable: str
    """Path without symbolic links. For a virtual environment, this is its base interpreter."""
    prefix: str
    """Installation folder of this interpreter, without symbolic links."""

    @property
    def minor(self) -> str:
        """Version as used in markers, such as `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def environment(self) -> Environment:
        """Values of the markers in requirements."""
        versions = {"python_version": self.minor, "python_full_version": self.version}
        return {**default_environment(), **versions, "implementation_version": self.version}  # type: ignore[typeddict-item]

    @property
    def tags(self) -> list[Tag]:
        """Supported wheel tags, the best first."""
        if self == HERE:
            return list(sys_tags())
        major, minor, *_ = map(int, self.version.split(".")[:2])
        name = f"cp{major}{minor}"
        return list(chain(cpython_tags((major, minor), [name]), compatible_tags((major, minor), name)))

    def __str__(self) -> str:
        return f"{sys.implementation.name} {self.minor} on {sys.platform} ({platform.machine()})"


HERE = Interpreter(
    Path(sys.executable),
    platform.python_version(),
    os.path.realpath(sys._base_executable),  # type: ignore[attr-defined]
    os.path.realpath(sys.base_prefix),
)
"""The Python that runs this process."""


_DESCRIBE = "; ".join(
    (
        "import json, os, platform, sys",
        "folders = map(os.path.realpath, (sys._base_executable, sys.base_prefix))",
        "print(json.dumps([platform.python_version(), *folders]))",
    )
)
"""Code that prints the description of an interpreter."""


def choose_python(
    requires: str | None, label: str, note: Callable[[str], None] = lambda text: None
) -> Interpreter:
    """Return a Python of the required versions. `note` is called before a Python is downloaded.

    Raises `ClientError` if that Python is missing.
    """
    try:
        wanted = SpecifierSet(str(requires or ""))  # a `pyproject.toml` can contain any value here
    except InvalidSpecifier as error:
        raise ClientError(
            f"{label} requires Python `{requires}`, which is not a version specifier",
            hint="fix `requires-python` in `pyproject.toml`",
            code="python_version",
        ) from error
    if wanted.contains(HERE.version, prereleases=True):
        return HERE
    versions = (f"3.{minor}.{micro}" for minor in range(OLDEST_PYTHON.minor, 30) for micro in range(30))
    if not any(wanted.contains(version, prereleases=True) for version in versions):
        raise ClientError(
            f"{label} needs Python {wanted}, and `wander-sdk` needs >={OLDEST_PYTHON}",
            hint="allow a newer Python in its `requires-python`, or choose another version",
            code="python_version",
        )
    request = f"{wanted},>={OLDEST_PYTHON}"
    try:
        return _find(request)
    except ClientError:
        note(f"downloading Python {wanted} for {label}, because this is {HERE.version}")
    try:
        run_uv(["python", "install", request], doing=f"downloading Python {wanted}")
        return _find(request)
    except ClientError as error:
        raise ClientError(
            f"{label} needs Python {wanted}; this is {HERE.version}, and no other could be found or "
            "downloaded",
            hint=f"install one while you are online: `uv python install '{request}'`",
            code="python_version",
            detail=error.detail,
        ) from error


def _find(request: str) -> Interpreter:
    """Return the Python that uv finds for a request. Raises `ClientError` if it finds no interpreter."""
    arguments = ["python", "find", "--no-project", "--system", request]
    path = run_uv(arguments, doing="finding a Python", variables={"PATH": _search_path()})
    return describe_interpreter(Path(path.strip()))


def describe_interpreter(path: Path) -> Interpreter:
    """Run the interpreter at a path, and return its description. Raises `ClientError` if it does not run."""
    try:
        output = subprocess.run([path, "-I", "-S", "-c", _DESCRIBE], capture_output=True, check=True).stdout  # noqa: S603
        return Interpreter(path, *json.loads(output))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ClientError(f"`{path}` does not run: {error}", code="python_version") from error


def _search_path() -> str:
    """Return PATH with pyenv's Pythons first, because pyenv's own shims work only for the selected Python."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = map(str, sorted(root.glob("versions/*/bin"), reverse=True))
    return os.pathsep.join([*folders, os.environ.get("PATH", "")])
