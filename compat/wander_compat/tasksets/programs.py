"""Runs programs of task sets without a network, with the interpreter of the environment, and started by fork.

The library writes a program as a script that names its packages (PEP 723), and makes uv fetch them when a
rollout starts. Here they were installed and locked with the environment (`wander_client.packages.needs`).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.requirements import Requirement
from wander.errors import EnvironmentFault
from wander.modules import script_blocks

from wander_compat.tasksets import fork_client, forking

PRELOADED = ("verifiers.v1", "openai", "mcp", "mcp.client.streamable_http", "uvicorn", "tenacity")
"""Modules that the library's programs and tool servers import."""


def prepare_programs_here(module: str) -> None:
    """Make the library's local runtime run programs with this interpreter, without a package index.

    `module` is that of the task set, which contains its tool servers.
    """
    runtime: Any = importlib.import_module("verifiers.v1.runtimes.subprocess").SubprocessRuntime
    runtime.prepare_uv_script = _prepare
    forker = Forker([*PRELOADED, module])
    for name in ("run", "run_background"):
        setattr(runtime, name, _forked(getattr(runtime, name), forker))


async def _prepare(runtime: Any, script: str | bytes, env: Any = None, **_: Any) -> list[str]:
    content = script.encode() if isinstance(script, str) else script
    missing = missing_packages(content.decode())
    if missing:
        named = ", ".join(f"`{requirement}`" for requirement in missing)
        raise EnvironmentFault(
            f"the program needs {named}, which is not installed with this environment",
            hint="ask its author to add it to the package's dependencies",
        )
    path = f".wander-{hashlib.sha256(content).hexdigest()[:16]}.py"
    await runtime.write(path, content)
    return [sys.executable, path]


def _forked(method: Any, forker: Forker) -> Any:
    async def run(runtime: Any, argv: list[str], *arguments: Any, **options: Any) -> Any:
        return await method(runtime, forker.command(argv), *arguments, **options)

    return run


class Forker:
    """The process that forks Python programs.

    It starts with the first program, and ends with this process.
    """

    def __init__(self, modules: list[str]) -> None:
        self._modules = modules
        self._socket = ""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, argv: list[str]) -> list[str]:
        """Return a command that forks a Python program. Any other command is returned unchanged."""
        if len(argv) < 2 or argv[0] != sys.executable:
            return argv
        if argv[1].startswith("-") and argv[1] not in ("-m", "-c"):
            return argv
        if self._process is None or self._process.poll() is not None:
            self._start()
        return [sys.executable, "-I", "-S", fork_client.__file__, self._socket, *argv[1:]]

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="wander-fork-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._socket = f"{folder}/socket"
        command = [sys.executable, "-m", forking.__name__, self._socket, *self._modules]
        # The child's standard input is a pipe from this process. When this process dies, the child sees its
        # end and exits.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - our own module
        while not os.path.exists(self._socket) and self._process.poll() is None:
            time.sleep(0.01)


def missing_packages(script: str) -> list[str]:
    """Return the requirements of a script that are not installed here."""
    stated = tomllib.loads(next(script_blocks(script), "")).get("dependencies", [])
    return [text for text in stated if not _is_met(Requirement(text))]


def _is_met(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
