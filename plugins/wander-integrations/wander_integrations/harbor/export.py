"""Writes environments with a shell as Harbor task folders, for `wander env export --to harbor`.

Run as `python -m wander_integrations.harbor.export REQUEST REPLY` in the virtual environment of the
environment, with the descriptors of two files that the parent opened. The parent writes the files.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import posixpath
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from wander.boxes.base import Box, BoxSpec, CommandResult
from wander.environment import Environment
from wander.envs.sandbox import SandboxEnv
from wander.errors import ConfigError, WanderError
from wander.handle import Split
from wander.parsers import message_text
from wander.types import Example, Record, portable_json

from wander_integrations.harbor.environment import HarborEnv
from wander_integrations.harbor.folder import (
    ENVIRONMENT,
    INSTRUCTION,
    SOLUTION,
    SOLVE_SCRIPT,
    TASK_FILE,
    TEST_SCRIPT,
    TESTS,
    TaskContent,
    read_task,
)

Files = Mapping[str, bytes | str]
_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
_FILES = "files"
"""Folder below `environment` with the files that the box starts with."""


class ExportRequest(Record):
    """A request to write tasks."""

    target: str
    is_path: bool
    arguments: dict[str, Any] = Field(default_factory=dict)
    organization: str
    split: Split = "eval"
    count: int = Field(default=10, ge=1)
    image: str | None = None
    """Container image for environments whose boxes start from the host's system."""


class ExportedFile(Record):
    """A file of a task."""

    path: str
    """Path relative to the folder of all tasks."""
    content: str
    """Content in base64."""
    executable: bool


class ExportReply(Record):
    """The files of all tasks, or an error."""

    tasks: list[str] = Field(default_factory=list)
    files: list[ExportedFile] = Field(default_factory=list)
    error: str | None = None
    hint: str | None = None


def export_tasks(
    env: Environment,
    *,
    organization: str,
    split: Split = "eval",
    count: int = 10,
    image: str | None = None,
) -> dict[str, dict[str, TaskContent]]:
    """Return the files of at most `count` examples as task folders, by the name of the folder.

    A `HarborEnv` has its own tasks. Any other `SandboxEnv` needs a method `harbor_tests(example)` that
    returns the files of the folder `tests` by name, with a `test.sh` that writes the reward. The reference
    solution comes from `gold`. Raises `ConfigError` for other environments.
    """
    if not isinstance(env, SandboxEnv):
        raise ConfigError(
            f"only environments with a shell can be Harbor tasks, and this one is of the kind `{env.kind}`",
            hint="`SandboxEnv` is the base class of such environments",
        )
    folders: dict[str, dict[str, TaskContent]] = {}
    for example in env.dataset(split).examples(0, count):
        name = _slug(example.example_id)
        if name in folders:
            raise ConfigError(f"two examples would have the folder `{name}`: rename one of them")
        if isinstance(env, HarborEnv):
            folders[name] = env.tasks[example.example_id].contents("")
        else:
            folders[name] = asyncio.run(_task_files(env, example, organization, image))
    return folders


async def _task_files(
    env: SandboxEnv, example: Example, organization: str, image: str | None
) -> dict[str, TaskContent]:
    """Return the files of an example's task."""
    make_tests = getattr(env, "harbor_tests", None)
    if make_tests is None:
        raise ConfigError(
            f"`{type(env).__name__}` has no method `harbor_tests(example)`",
            hint=f"let it return the files of the folder `{TESTS}`, with a `{TEST_SCRIPT}` that writes the "
            "reward to /logs/verifier/reward.txt",
        )
    state = env.init_state(example, index=0, run_seed=0)
    spec = env.box_spec(state)
    box = RecordingBox(spec)
    made = env.setup_box(box, state)
    if asyncio.iscoroutine(made):
        await made
    files = {
        TASK_FILE: TaskContent(_task_file(env, example, organization, spec).encode(), False),
        INSTRUCTION: TaskContent(_instruction(example).encode(), False),
        f"{ENVIRONMENT}/Dockerfile": TaskContent(_dockerfile(spec, box, image).encode(), False),
    }
    for path, file in box.files.items():
        files[f"{ENVIRONMENT}/{_FILES}{path}"] = file
    tests: Files = make_tests(example)
    if TEST_SCRIPT not in tests:
        raise ConfigError(f"`harbor_tests` returned no `{TEST_SCRIPT}`", hint="it must write the reward")
    for name, content in tests.items():
        files[f"{TESTS}/{name}"] = _content(content)
    if (solution := _solution(env, example, spec)) is not None:
        files[f"{SOLUTION}/{SOLVE_SCRIPT}"] = TaskContent(solution.encode(), True)
    return files


class RecordingBox(Box):
    """A box that only keeps the files that a task writes into it."""

    image_digest = ""

    def __init__(self, spec: BoxSpec) -> None:
        self.spec = spec
        self.files: dict[str, TaskContent] = {}

    async def upload(self, files: Files, *, executable: bool = False) -> None:
        """Keep the files."""
        for path, content in files.items():
            kept = _content(content)
            self.files[posixpath.normpath(path)] = TaskContent(kept.content, executable or kept.executable)

    async def exec(self, *arguments: Any, **options: Any) -> CommandResult:
        """Refuse a command, because a Dockerfile without builds cannot run it."""
        raise ConfigError(
            "`setup_box` runs a command, so it cannot become a Dockerfile",
            hint="write the files with `box.upload`",
        )

    download = final_state = keep_as_start = restore = exec  # type: ignore[assignment]
    start_program = next_call = answer = exec  # type: ignore[assignment]

    async def stop(self) -> None:
        """Do nothing."""


def _content(content: bytes | str) -> TaskContent:
    data = content.encode() if isinstance(content, str) else content
    return TaskContent(data, data.startswith((b"#!", b"\x7fELF")))


def _task_file(env: SandboxEnv, example: Example, organization: str, spec: BoxSpec) -> str:
    """Return the text of `task.toml`."""
    seconds = env.timeout_seconds or 900.0
    other_paths = [path for path in spec.state_paths if path != spec.working_folder]
    return "\n".join(
        [
            'schema_version = "1.4"',
            "",
            "[task]",
            f"name = {portable_json(f'{organization}/{_slug(example.example_id)}')}",
            f"description = {portable_json(env.summary)}",
            "",
            "[metadata]",
            f"environment = {portable_json(env.info.name)}",
            "",
            "[metadata.wander]",
            f"state_paths = {portable_json(other_paths)}",
            "",
            "[agent]",
            f"timeout_sec = {seconds:.1f}",
            "",
            "[verifier]",
            f"timeout_sec = {max(600.0, env.command_seconds):.1f}",
            "",
            "[environment]",
            'network_mode = "no-network"' if not spec.allowed_hosts else 'network_mode = "allowlist"',
            *([f"allowed_hosts = {portable_json(spec.allowed_hosts)}"] if spec.allowed_hosts else []),
            f"workdir = {portable_json(spec.working_folder)}",
            f"memory_mb = {spec.limits.memory_mb}",
            f"storage_mb = {spec.limits.disk_mb}",
            *(["", "[environment.env]"] if spec.environment else []),
            *(f"{portable_json(name)} = {portable_json(value)}" for name, value in spec.environment.items()),
            "",
        ]
    )


def _instruction(example: Example) -> str:
    """Return the user's messages of an example as one text."""
    texts = [message_text(message) for message in example.prompt if message.get("role") != "system"]
    return "\n\n".join(texts) + "\n"


def _dockerfile(spec: BoxSpec, box: RecordingBox, image: str | None) -> str:
    if spec.dockerfile is not None or spec.root is not None:
        raise ConfigError(
            "boxes that start from a Dockerfile or a root folder cannot be exported",
            hint="start them from an image",
        )
    base = spec.image or image
    if base is None:
        raise ConfigError(
            "the environment's boxes start from the host's system, and a Harbor task needs an image",
            hint="name one with the same programs: `--image python:3.12-slim`",
        )
    lines = [f"FROM {base}", f"WORKDIR {spec.working_folder}"]
    if box.files:
        lines.append(f"COPY {_FILES}/ /")
    return "\n".join(lines) + "\n"


def _solution(env: SandboxEnv, example: Example, spec: BoxSpec) -> str | None:
    """Return a script with the commands of the reference solution; None without a list of commands."""
    gold: Any = env.gold(example)
    if not isinstance(gold, Sequence) or isinstance(gold, str):
        return None
    commands = []
    for message in gold:
        for call in message.get("tool_calls", []) if isinstance(message, dict) else []:
            commands.append(json.loads(call["function"]["arguments"])["command"])
    return "\n".join(["#!/bin/bash", f"cd {spec.working_folder}", *commands, ""]) if commands else None


def _slug(name: str) -> str:
    return _NAME.sub("-", name.rpartition("/")[2]).strip(".-_") or "task"


def write_folders(folders: Mapping[str, Mapping[str, TaskContent]], out: Path) -> None:
    """Write task folders, and check that each can be read."""
    for name, files in folders.items():
        for inside, file in files.items():
            path = out / name / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(0o755 if file.executable else 0o644)
        read_task(out / name)


def main() -> None:
    """Answer a request."""
    from wander.loading import find_factory, find_path_factory

    asked, told = map(int, sys.argv[1:])
    request = ExportRequest.model_validate_json(os.pread(asked, os.fstat(asked).st_size, 0))
    reply = ExportReply()
    try:
        factory = (find_path_factory if request.is_path else find_factory)(request.target)
        env = factory.build(dict(request.arguments))
        options = request.model_dump(include={"organization", "split", "count", "image"})
        folders = export_tasks(env, **options)
        with tempfile.TemporaryDirectory() as work:
            write_folders(folders, Path(work))
        reply.tasks = list(folders)
        reply.files = [
            ExportedFile(
                path=f"{name}/{inside}",
                content=base64.b64encode(file.content).decode(),
                executable=file.executable,
            )
            for name, files in folders.items()
            for inside, file in files.items()
        ]
    except WanderError as error:
        reply.error, reply.hint = str(error), error.hint
    with os.fdopen(told, "wb") as out:
        out.write(reply.model_dump_json().encode())


if __name__ == "__main__":
    main()
