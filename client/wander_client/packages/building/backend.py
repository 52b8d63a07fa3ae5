"""The program that calls a project's build backend (PEP 517): `backend.py SOURCE KIND DESCRIPTOR`.

It runs in the virtual environment of the project's build requirements, usually in the sandbox, whose writes
are discarded. The built file is therefore returned through a file descriptor: a line of JSON, then the bytes.
The line is `{"file": NAME}`, or `{"requires": [...]}` when the backend needs more packages.
This module imports only the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT = {"requires": ["setuptools>=40.8.0", "wheel"], "build-backend": "setuptools.build_meta:__legacy__"}
"""Build system of a project that declares none (PEP 517)."""
LEFT_OUT = ("__pycache__", "*.pyc", ".venv", "venv", ".*_cache", ".tox", "node_modules")
"""Patterns of names that are not copied."""


def main(source: str, kind: str, descriptor: int) -> None:
    """Build a file of a kind, `wheel` or `sdist`, and write it."""
    with tempfile.TemporaryDirectory() as work:
        if not os.access(source, os.W_OK):  # backends write into the folder that they build
            place = os.path.join(work, os.path.basename(source))
            shutil.copytree(source, place, symlinks=True, ignore=_find_left_out)
            source = place
        os.chdir(source)
        backend = _load()
        lacking = [
            each
            for each in getattr(backend, f"get_requires_for_build_{kind}", _nothing)(None)
            if not _is_here(each)
        ]
        with os.fdopen(descriptor, "wb") as out:
            if lacking:
                out.write(json.dumps({"requires": lacking}).encode() + b"\n")
                return
            made = os.path.join(work, "made")
            os.mkdir(made)
            name = getattr(backend, f"build_{kind}")(made, None)
            out.write(json.dumps({"file": name}).encode() + b"\n")
            with open(os.path.join(made, name), "rb") as file:
                shutil.copyfileobj(file, out)


def _find_left_out(folder: str, names: list[str]) -> set[str]:
    """Return the names not to copy: caches, and special files such as sockets."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    special = {
        name
        for name, mode in modes.items()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    }
    return special | shutil.ignore_patterns(*LEFT_OUT)(folder, names)


def _load() -> Any:
    """Return the backend of the project in the working folder."""
    system = DEFAULT
    if os.path.exists("pyproject.toml"):
        with open("pyproject.toml", "rb") as file:
            system = {**DEFAULT, **tomllib.load(file).get("build-system", {})}
    sys.path[:0] = [os.path.abspath(path) for path in system.get("backend-path", [])]
    module, _, attributes = str(system["build-backend"]).partition(":")
    found = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        found = getattr(found, attribute)
    return found


def _nothing(settings: object) -> list[str]:
    return []


def _is_here(requirement: str) -> bool:
    name = requirement.partition(";")[0]
    for sign in "[<>=!~ (@":
        name = name.partition(sign)[0]
    try:
        distribution(name.strip())
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
