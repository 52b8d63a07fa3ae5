"""Boxes of Wander in place of the containers of `verifiers.v1`.

The library starts a container for a task that names an image, or for a program or task that needs one. Here,
the rollout's host starts a box instead (`wander.boxes`), also for an environment in a sandboxed worker. A box
has no network, so nothing can be installed in it while a rollout runs.
"""

from __future__ import annotations

import functools
import importlib
import posixpath
import shlex
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from wander.boxes.base import Box, BoxLimits, BoxSpec
from wander.clients.base import RolloutHost
from wander.errors import SandboxError

BOXES: ContextVar[RolloutBoxes] = ContextVar("wander_boxes")
"""The boxes of the rollout that the library plays in the current context."""

_OUTPUT_BYTES = 16 << 20
_SPLIT = 'f=$(mktemp) && "$@" 2>"$f"; s=$?; printf "\\n%s\\n" "$0"; cat "$f"; rm -f "$f"; exit "$s"'
"""A script that prints the standard error of a command after its output and a separator."""
_ENGINES = ("docker", "podman", "apptainer")


@dataclass
class RolloutBoxes:
    """Starts the boxes of a rollout."""

    host: RolloutHost
    images: list[str] = field(default_factory=list)
    """Identity of the image of each box."""

    async def start(self, spec: BoxSpec) -> Box:
        """Start a box. Raises `SandboxError`."""
        box = await self.host.start_box(spec)
        self.images.append(box.image_digest)
        return box


@functools.cache  # the library is changed once
def use_boxes() -> Callable[[bool], Any]:
    """Replace the library's local containers, and return a function that makes the settings of an agent.

    An agent with these settings plays in a box if its task names an image. With True, it always does.
    """
    runtimes: Any = importlib.import_module("verifiers.v1.runtimes")
    base: Any = importlib.import_module("verifiers.v1.runtimes.base")
    original = runtimes._runtime_cls

    class BoxConfig(runtimes.DockerConfig):  # type: ignore[misc]
        image: str = ""
        demanded: bool = False

    class BoxRuntime(BoxMethods, base.Runtime):  # type: ignore[misc]
        def __init__(self, config: Any, name: str | None = None) -> None:
            super().__init__(name)
            self.config = config
            self.info = runtimes.DockerRuntimeInfo(image=config.image, workdir=config.workdir or "/app")

    class ProcessRuntime(runtimes.SubprocessRuntime):  # type: ignore[misc]
        def __init__(self, config: Any, name: str | None = None) -> None:
            super().__init__(runtimes.SubprocessConfig(), name)

    def runtime_of(config: Any) -> Any:
        if isinstance(config, BoxConfig) and not config.demanded and not config.image:
            return ProcessRuntime
        return BoxRuntime if config.type in _ENGINES else original(config)

    runtimes._runtime_cls = runtime_of
    return lambda demanded: BoxConfig(demanded=demanded)


def always_starts_box(config: Any) -> bool:
    """Return whether an agent with these settings plays in a box, whatever its task asks for."""
    return config.type in _ENGINES and getattr(config, "demanded", True)


def box_spec(config: Any) -> BoxSpec:
    """Return the box for the settings of a container. Raises `SandboxError`."""
    if config.gpu:
        raise SandboxError(f"the task asks for the GPU `{config.gpu}`, which a box cannot have")
    fields = type(config).model_fields
    default = fields["image"].default
    sizes = {"memory_mb": config.memory, "disk_mb": config.disk}
    limits = {name: int(gigabytes * 1024) for name, gigabytes in sizes.items() if gigabytes is not None}
    allowed = [] if "*" in config.allow else list(config.allow)
    return BoxSpec(
        image=None if config.image == default else config.image,
        working_folder=config.workdir or "/app",
        allowed_hosts=allowed,
        limits=BoxLimits(**limits),
    )


class BoxMethods:
    """The methods of the library's `Runtime` for a box of the rollout's host."""

    box: Box
    config: Any
    process_env: Callable[[dict[str, str]], dict[str, str]]

    async def start(self) -> None:
        """Start the box."""
        self.box = await BOXES.get().start(box_spec(self.config))

    async def run(self, argv: list[str], env: dict[str, str]) -> Any:
        """Run a command, and return its exit status, its output and its errors."""
        separator = uuid.uuid4().hex
        result = await self.box.exec(
            ["sh", "-c", _SPLIT, separator, *argv],
            seconds=self.box.spec.limits.seconds,
            environment=self.process_env(env),
            output_bytes=_OUTPUT_BYTES,
        )
        if result.left_out_bytes:
            raise _fault("SandboxError", f"`{argv[0]}` printed over {_OUTPUT_BYTES >> 20} MiB")
        output, _, messages = result.output.partition(f"\n{separator}\n")
        answer: Any = importlib.import_module("verifiers.v1.runtimes").ProgramResult
        return answer(result.exit_status, output, messages)

    async def run_command(self, command: str) -> str:
        """Run a command of the model, and return what it printed."""
        seconds, environment = self.box.spec.limits.seconds, self.process_env({})
        return (await self.box.exec(command, seconds=seconds, environment=environment)).output

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a command that runs until the box stops."""
        command = f"{shlex.join(argv)} > {shlex.quote(log)} 2>&1 < /dev/null &"
        await self.box.exec(command, environment=self.process_env(env))

    async def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the content of a file."""
        most = _OUTPUT_BYTES if max_bytes is None else max_bytes
        try:
            return await self.box.download(self._absolute(path), most_bytes=most)
        except (FileNotFoundError, ValueError) as error:
            raise _fault("SandboxError", f"cannot read `{path}`: {error}") from error

    _read = read

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, and create its folder."""
        await self.box.upload({self._absolute(path): data})

    def _absolute(self, path: str) -> str:
        return posixpath.join(self.box.spec.working_folder, path)

    async def prepare_uv_script(self, script: str | bytes, *_: Any, **options: Any) -> list[str]:
        """Refuse to run a script that names its packages."""
        raise _fault(
            "TaskError",
            "a script of `verifiers.v1` installs its packages when it starts, but a box has no network; "
            "leave out `harness`, so that the model gets a tool `bash` in the box",
        )

    async def teardown(self) -> None:
        """Stop the box."""
        if hasattr(self, "box"):
            await self.box.stop()


def _fault(name: str, message: str) -> Exception:
    """Return an error of the library, whose class tells it what failed."""
    error: Exception = getattr(importlib.import_module("verifiers.v1.errors"), name)(message)
    return error
