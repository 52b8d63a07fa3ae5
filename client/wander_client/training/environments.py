"""The environments of a training run, each in a process of its own, and how its manifest names them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wander.sandbox import SandboxPolicy

from wander_client.environments.location import OpenedEnvironment, locate, open_environment
from wander_client.environments.replay import locate_begun
from wander_client.environments.workers import WorkerChoice

if TYPE_CHECKING:
    from wander.handle import EnvironmentHandle
    from wander.train.rollouts.environments import EnvironmentChoice
    from wander.wire import EnvironmentPin

    from wander_client.context import Invocation


class TrainingEnvironments:
    """Opens what a training run names.

    `spec` is the environment of the command; `run` the run's folder, which pins it once the run is begun.
    """

    def __init__(
        self,
        context: Invocation,
        spec: str,
        run: Path,
        *,
        workers: int = 1,
        sandbox: SandboxPolicy | None = None,
    ) -> None:
        self._context = context
        self._spec = spec
        self._run = run
        self._workers = WorkerChoice(workers)
        self._sandbox = sandbox
        self._opened: list[tuple[EnvironmentChoice, OpenedEnvironment]] = []

    @contextlib.asynccontextmanager
    async def open(self, choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
        """Open an environment, in the very version that the run was begun with."""
        location = (
            locate_begun(self._context, self._spec, self._run)
            if choice.name is None
            else locate(self._context, choice.name)
        )
        async with open_environment(
            self._context, location, choice.arguments, sandbox=self._sandbox, workers=self._workers
        ) as environment:
            self._opened.append((choice, environment))
            yield environment.handle

    def pin(self, choice: EnvironmentChoice) -> EnvironmentPin:
        """Return how a manifest names an environment that is open; a folder with the digest of its code."""
        opened = next(environment for one, environment in self._opened if one == choice)
        folder = opened.location.folder
        if folder is None:
            return opened.pin
        return opened.pin.model_copy(update={"source_sha256": source_digest(folder)})


def source_digest(folder: Path) -> str:
    """Return the digest of the Python files and the `pyproject.toml` of an environment's folder."""
    from wander.wire.source_tree import TreeEntry, tree_digest

    return tree_digest(
        TreeEntry(path.relative_to(folder).as_posix(), False, hashlib.sha256(path.read_bytes()).digest())
        for path in _source_files(folder)
    )


def _source_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "site-packages"]
        for name in files:
            if name.endswith(".py") or (name == "pyproject.toml" and Path(place) == folder):
                yield Path(place, name)
