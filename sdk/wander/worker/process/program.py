"""Runs an untrusted Python program to its end, in the sandbox or with the user's rights."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wander.sandbox.policy import SandboxPolicy
    from wander.sandbox.visible import Visible

_LONGEST_OUTPUT = 64 << 10


@dataclass(frozen=True)
class Confinement:
    """Sandbox of a program."""

    policy: SandboxPolicy
    sees: Visible
    variables: Mapping[str, str] = field(default_factory=dict)
    host_name: str = "sandbox"


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    status: int | None
    """Exit status, or None if the program was killed because it took too long."""
    output: str
    """End of the program's output."""
    out_of_memory: bool = False
    """Whether the program used all memory that the sandbox allows."""


def run_program(
    python: Path,
    words: Sequence[str],
    descriptors: Sequence[int],
    *,
    seconds: float,
    environ: Mapping[str, str],
    confinement: Confinement | None,
) -> ProgramEnd:
    """Run a module (`-m NAME`) or a file, and wait for it. Its whole session ends with it.

    After the other `words`, the program gets the numbers of the `descriptors` as it sees them. `python` and
    `environ` apply only to a program without a sandbox. Raises `SandboxError` if the sandbox cannot be made.
    """
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as once_started:
        output = stack.enter_context(tempfile.TemporaryFile())
        if confinement is None:
            confined = group = None
            command = [str(python), "-P", *words, *map(str, descriptors)]
            folder, passed = stack.enter_context(tempfile.TemporaryDirectory()), tuple(descriptors)
        else:
            from wander.sandbox.control_groups import new_control_group
            from wander.sandbox.support import explain_failure, require_support
            from wander.worker.process.sandboxed import confine, sandbox_descriptor

            support, group = require_support(), new_control_group(confinement.policy)
            stack.callback(group.remove)
            numbers = [sandbox_descriptor(index) for index in range(len(descriptors))]
            module = words[1] if words[0] == "-m" else None
            plan = {
                "module": module,
                "arguments": [*words[1 if module else 0 :], *map(str, numbers)],
                "keep": numbers,
            }
            confined = confine(
                *(confinement.policy, support, confinement.sees, group, plan, confinement.variables),
                descriptors=descriptors,
                host_name=confinement.host_name,
            )
            for descriptor in confined.own:
                once_started.callback(os.close, descriptor)
            stack.callback(os.close, confined.ready)
            command, environ, folder, passed = confined.command, confined.environ, "/", confined.descriptors
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        status: int | None = None
        with _run_in_session(command, **streams, env=environ, cwd=folder, pass_fds=passed) as process:
            once_started.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(seconds)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _LONGEST_OUTPUT))
        printed = output.read().decode("utf-8", "replace").strip()
        # If the sandbox could not be made, that is not the program's fault.
        if confined is not None and not confined.was_completed() and process.returncode > 0:
            raise explain_failure(printed)
        return ProgramEnd(status, printed, group is not None and group.out_of_memory())


@contextlib.contextmanager
def _run_in_session(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program without input. When the block ends, kill the program and its session.

    `options` are those of `subprocess.Popen`. Raises `OSError` if the program cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - the caller's own command
        command, stdin=subprocess.DEVNULL, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
