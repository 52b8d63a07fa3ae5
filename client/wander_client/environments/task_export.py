"""Write an environment's examples as tasks of another format, in a program in its virtual environment.

The program returns the files, and this process writes them, so the program needs no rights on this machine.
"""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError
from wander.types import Record

from wander_client.errors import ClientError
from wander_client.packages.scaffold import require_free

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy

    from wander_client.environments.location import Location

SECONDS = 300.0
MOST_FILES = 100_000


class ExportedFile(Record):
    """A file of a task."""

    path: str = Field(min_length=1, max_length=1024)
    """Path relative to the folder of all tasks."""
    content: str
    """Content in base64."""
    executable: bool = False


class ExportReply(Record):
    """The files of all tasks, or an error."""

    tasks: list[str] = Field(default_factory=list)
    files: list[ExportedFile] = Field(default_factory=list, max_length=MOST_FILES)
    error: str | None = None
    hint: str | None = None


def export_tasks(
    location: Location,
    module: str,
    out: Path,
    policy: SandboxPolicy | None,
    *,
    arguments: dict[str, Any],
    **options: Any,
) -> list[str]:
    """Write tasks into a new or empty folder, and return their names.

    Raises `ClientError` with the program's error, and `SandboxError` if the sandbox cannot be made.
    """
    require_free(out, "choose another folder")
    request = {
        "target": str(location.folder or location.target),
        "is_path": location.folder is not None,
        "arguments": arguments,
        **options,
    }
    reply = _run(location, module, request, policy)
    if reply.error is not None:
        raise ClientError(reply.error, hint=reply.hint, code="export_failed")
    for file in reply.files:
        parts = PurePosixPath(file.path).parts
        if ".." in parts or file.path.startswith("/"):
            raise ClientError(f"the environment returned a file outside of the folder: `{file.path}`")
        path = out / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(file.content))
        path.chmod(0o755 if file.executable else 0o644)
    return reply.tasks


def _run(
    location: Location, module: str, request: dict[str, Any], policy: SandboxPolicy | None
) -> ExportReply:
    """Run the program. Request and reply are exchanged through inherited memory, as in a check."""
    import json

    from wander.system.child_environ import child_environ
    from wander.system.memory_files import open_memory_file
    from wander.worker.process.program import Confinement, run_program

    confinement = None
    if policy is not None:
        from wander.sandbox.visible import choose_binds

        confinement = Confinement(
            policy, choose_binds(location.runtime, location.folder, policy.read, policy.hide)
        )
    with contextlib.ExitStack() as stack:
        asked, told = (stack.enter_context(open_memory_file(name)) for name in ("asked", "told"))
        asked.write(json.dumps(request).encode())
        end = run_program(
            location.python,
            ["-m", module],
            [asked.fileno(), told.fileno()],
            seconds=SECONDS,
            environ=child_environ("VIRTUAL_ENV", "SSL_CERT_FILE"),
            confinement=confinement,
        )
        told.seek(0)
        try:
            return ExportReply.model_validate_json(told.read())
        except ValidationError as error:
            ending = end.output.strip().rpartition("\n")[2] or f"status {end.status}"
            raise ClientError(
                f"the program that exports `{location.label}` failed: {ending:.300}",
                hint="if a module is missing, add `wander-integrations` to the environment's dependencies",
                code="export_failed",
            ) from error
