"""The Python that runs a package: this one where it fits, another of this machine, or one that uv fetches."""

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
"""What `wander-sdk` needs at least."""


@dataclass(frozen=True)
class Interpreter:
    """One Python of this machine."""

    path: Path
    version: str
    """All of it, such as `3.12.1`."""
    executable: str
    """The interpreter without symbolic links; that of its base, if it is a virtual environment's."""
    prefix: str
    """The folder in which that one is installed, without symbolic links."""

    @property
    def minor(self) -> str:
        """Its version as markers have it, such as `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def environment(self) -> Environment:
        """What the markers of requirements say of it."""
        versions = {"python_version": self.minor, "python_full_version": self.version}
        return {**default_environment(), **versions, "implementation_version": self.version}  # type: ignore[typeddict-item]

    @property
    def tags(self) -> list[Tag]:
        """The tags of wheels that it takes, the best first."""
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
"""Program that an interpreter runs to describe itself."""


def choose_python(
    requires: str | None, what: str, note: Callable[[str], None] = lambda text: None
) -> Interpreter:
    """Return the Python for something that requires these versions; `note` is told when one is fetched.

    Raises `ClientError` where none is to be had.
    """
    try:
        wanted = SpecifierSet(str(requires or ""))  # a `pyproject.toml` may have anything there
    except InvalidSpecifier as error:
        raise ClientError(
            f"{what} requires Python `{requires}`, which is no version specifier",
            hint="correct `requires-python` in `pyproject.toml`",
            code="python_version",
        ) from error
    if wanted.contains(HERE.version, prereleases=True):
        return HERE
    versions = (f"3.{minor}.{micro}" for minor in range(OLDEST_PYTHON.minor, 30) for micro in range(30))
    if not any(wanted.contains(version, prereleases=True) for version in versions):
        raise ClientError(
            f"{what} needs Python {wanted}, and `wander-sdk` needs >={OLDEST_PYTHON}",
            hint="allow a newer Python in its `requires-python`, or choose another version of it",
            code="python_version",
        )
    request = f"{wanted},>={OLDEST_PYTHON}"
    try:
        return _find(request)
    except ClientError:
        note(f"fetching Python {wanted} for {what}: this is {HERE.version}")
    try:
        run_uv(["python", "install", request], doing=f"fetching Python {wanted}")
        return _find(request)
    except ClientError as error:
        raise ClientError(
            f"{what} needs Python {wanted}; this is {HERE.version}, and no other could be found or fetched",
            hint=f"install such a Python where there is a network: `uv python install '{request}'`",
            code="python_version",
            detail=error.detail,
        ) from error


def _find(request: str) -> Interpreter:
    """Return the Python that uv finds for a request; raises `ClientError`."""
    arguments = ["python", "find", "--no-project", "--system", request]
    found = run_uv(arguments, doing="finding a Python", variables={"PATH": _search_path()})
    return describe_interpreter(Path(found.strip()))


def describe_interpreter(path: Path) -> Interpreter:
    """Return the interpreter at a path, which is run for it; raises `ClientError`."""
    try:
        output = subprocess.run([path, "-I", "-S", "-c", _DESCRIBE], capture_output=True, check=True).stdout  # noqa: S603
        return Interpreter(path, *json.loads(output))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ClientError(f"`{path}` does not run: {error}", code="python_version") from error


def _search_path() -> str:
    """Return PATH with pyenv's Pythons ahead: what it puts there itself fails for all but the chosen one."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = map(str, sorted(root.glob("versions/*/bin"), reverse=True))
    return os.pathsep.join([*found, os.environ.get("PATH", "")])
