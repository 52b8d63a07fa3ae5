"""Boxes by Apptainer, through its command line, over an image or a root folder.

An instance of Apptainer is started and removed like a container, and the supervisor enters it. What a box
writes goes to a folder of the host, which is measured. This backend follows Apptainer's documentation. It has
never run, because Wander's developers have no machine with Apptainer, so it must be chosen by name.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from wander.boxes.base import Box, BoxSpec
from wander.boxes.containers import BUILD_SECONDS, IMAGE_NAME, PULL, ContainerBackend, pull_policy
from wander.boxes.programs import FOLDER, install
from wander.boxes.supervised import digest_folder
from wander.boxes.sweep import host_identity, is_gone
from wander.errors import SandboxError
from wander.sandbox.seccomp import MACHINES
from wander.system.cache_folder import cache_folder

_PREFIX = "wander-box-"
_START_SCRIPT = ".singularity.d/startscript"
"""Program of an image that runs when an instance starts, before the supervisor could confine it."""


class ApptainerBackend(ContainerBackend):
    """Starts boxes with `apptainer`."""

    is_automatic = False

    def __init__(self) -> None:
        super().__init__("apptainer")

    def unavailable_reason(self, spec: BoxSpec) -> str | None:
        """Return why no instance can be started from the spec."""
        if spec.dockerfile is not None:
            return "apptainer cannot build a Dockerfile: push the image to a registry and name it as `image`"
        if spec.image is not None and IMAGE_NAME.fullmatch(spec.image) is None:
            return f"`{spec.image}` is not the name of an image"
        if spec.image is None:
            if spec.root is None:
                return "apptainer needs an `image` or a `root` folder"
            if not Path(spec.root).is_dir() or os.path.realpath(spec.root) == "/":
                return f"the root folder `{spec.root}` does not exist, or is the host's own"
            if os.path.lexists(f"{spec.root}/{_START_SCRIPT}"):
                return f"`{spec.root}/{_START_SCRIPT}` would run before the box is confined: remove it"
        if shutil.which(self.name) is None:
            return "`apptainer` is not installed"
        if os.uname().machine not in MACHINES:
            return f"the processor `{os.uname().machine}` is not supported"
        return None

    async def start(self, spec: BoxSpec) -> Box:
        """Start a box."""
        reason = await asyncio.to_thread(self.unavailable_reason, spec)
        if reason is not None:
            raise SandboxError(f"cannot start a box with apptainer: {reason}")
        await asyncio.to_thread(_remove_left_folders)
        if spec.image is not None:
            source = await self._pull(spec.image)
            digest = f"sif:{await asyncio.to_thread(_digest_file, source)}"
        else:
            source = Path(os.path.realpath(str(spec.root)))  # noqa: ASYNC240 - a moment
            digest = f"root:{await asyncio.to_thread(digest_folder, source)}"
        programs = {name: await asyncio.to_thread(install, name) for name in spec.programs}
        name = f"{_PREFIX}{host_identity()}-{secrets.token_hex(8)}"
        changes = _changes(name)
        changes.mkdir(0o700)
        try:
            await self._run(*start_words(name, source, changes, spec, programs))
            rows = json.loads(await self._run("instance", "list", "--json", name))["instances"]
            return await self._enter(name, int(rows[0]["pid"]), spec, digest, changes=f"{changes}/upper")
        except BaseException:
            await asyncio.shield(self.remove(name))
            raise

    async def remove(self, name: str) -> None:
        """Remove an instance and what it has written."""
        await self._run("instance", "stop", "--force", name, check=False)
        await asyncio.to_thread(shutil.rmtree, _changes(name), ignore_errors=True)

    async def _pull(self, image: str) -> Path:
        """Return the file of an image, which is downloaded if the machine allows it."""
        file = cache_folder() / "images" / f"{hashlib.sha256(image.encode()).hexdigest()}.sif"
        if file.exists():
            return file
        if pull_policy() == "never":
            raise SandboxError(f"the image `{image}` is not on this machine", hint=f"set `{PULL}=missing`")
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{secrets.token_hex(8)}")
        try:
            await self._run("pull", str(part), f"docker://{image}", seconds=BUILD_SECONDS)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
        return file


def start_words(
    name: str, source: Path, changes: Path, spec: BoxSpec, programs: dict[str, Path]
) -> list[str]:
    """Return the arguments that start an instance.

    `--fakeroot` puts it into a user namespace of its own. Without control groups that Apptainer may use, it
    refuses the limits and does not start.
    """
    memory = f"{spec.limits.memory_mb}M"
    return [
        *("instance", "start", "--fakeroot", "--containall", "--no-home", "--no-mount", "hostfs,bind-paths"),
        *("--net", "--network", "none", "--hostname", "box", "--overlay", str(changes)),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(spec.limits.processes + 8)),
        *(f"--bind={folder}:{FOLDER}/{shown}:ro" for shown, folder in programs.items()),
        *(str(source), name),
    ]


def _changes(name: str) -> Path:
    """Return the folder of the host that holds what an instance has written."""
    return Path(tempfile.gettempdir(), name)


def _remove_left_folders() -> None:
    """Remove the folders of killed hosts, whose instances have ended with their supervisors."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        host = folder.name.removeprefix(_PREFIX).rpartition("-")[0]
        if host.count("-") == 3 and is_gone(host):
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _digest_file(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
