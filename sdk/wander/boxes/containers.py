"""Boxes by Podman and Docker, through their command lines.

The program only starts and removes the container. Commands and files go through the same supervisor as with
bubblewrap, so this process must have the rights of the container's owner: root, or the user of a rootless
Podman or Docker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wander.boxes.base import Box, BoxBackend, BoxSpec
from wander.boxes.programs import FOLDER, install
from wander.boxes.supervised import SupervisedBox, Supervisor, command_limits, digest_folder
from wander.boxes.sweep import HOST_LABEL, host_identity, remove_orphans
from wander.errors import SandboxError
from wander.sandbox.control_groups import ControlGroup
from wander.sandbox.seccomp import MACHINES, compile_filter

PULL = "WANDER_BOX_PULL"
"""Variable that allows to download missing images: `never` (the default) or `missing`."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE")
_FIRST = "while :; do sleep 3600 & wait; done"
"""First process of a container: a shell, because `wait` also reaps orphans."""
_ULIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
"""Limits of the first process. Podman's defaults are above what a container of its own may allow."""
_COMMAND_SECONDS, BUILD_SECONDS = 60.0, 1800.0
_DISK_PAUSE = 1.0
"""Seconds between measurements of the files that a container has written."""
_NEEDS_CHROOT = ("error running container", "cgroup", "namespace", "runc", "crun")
_MIB = 1 << 20
IMAGE_NAME = re.compile(
    r"(?!(dir|docker|docker-archive|docker-daemon|containers-storage|oci|oci-archive|ostree|sif|tarball):)"
    r"([a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?/)?[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*"
    r"(:[a-zA-Z0-9_][a-zA-Z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?"
)
"""Name of an image. Podman also reads files and folders of the host by names such as `dir:/home`."""


class ContainerBackend(BoxBackend):
    """Starts boxes with `podman` or `docker`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._swept = False
        self._building: dict[tuple[int, str], asyncio.Lock] = {}

    def unavailable_reason(self, spec: BoxSpec) -> str | None:
        """Return why no container can be started from the spec, asking the program the first time."""
        if spec.image is None and spec.dockerfile is None:
            return f"{self.name} needs an `image` or a `dockerfile`"
        if spec.image is not None and IMAGE_NAME.fullmatch(spec.image) is None:
            return f"`{spec.image}` is not the name of an image"
        if spec.dockerfile is not None and not Path(spec.dockerfile, "Dockerfile").is_file():
            return f"`{spec.dockerfile}` has no `Dockerfile`"
        return _find_fault(self.name)

    async def start(self, spec: BoxSpec) -> Box:
        """Start a box."""
        reason = await asyncio.to_thread(self.unavailable_reason, spec)
        if reason is not None:
            raise SandboxError(f"cannot start a box with {self.name}: {reason}")
        if not self._swept:
            self._swept = True
            await asyncio.to_thread(remove_orphans, self.name)
        image = await self._build(spec.dockerfile) if spec.dockerfile is not None else str(spec.image)
        facts = await self._inspect_image(image)
        programs = {name: await asyncio.to_thread(install, name) for name in spec.programs}
        name = f"wander-box-{secrets.token_hex(8)}"
        try:
            await self._run(*_start_words(self.name, name, facts["Id"], spec, programs))
            return await self._attach(name, facts, spec)
        except BaseException:
            await asyncio.shield(self.remove(name))
            raise

    async def remove(self, name: str) -> None:
        """Remove a container, if it exists."""
        await self._run("rm", "--force", "--volumes", name, check=False)

    async def _attach(self, name: str, facts: dict[str, Any], spec: BoxSpec) -> Box:
        """Return the box of a running container."""
        container = json.loads(await self._run("container", "inspect", name))[0]
        variables = dict(pair.split("=", 1) for pair in facts["Config"].get("Env") or () if "=" in pair)
        digest = "image:" + str(facts["Id"]).removeprefix("sha256:")
        changes = (container.get("GraphDriver") or {}).get("Data", {}).get("UpperDir")
        return await self._enter(name, int(container["State"]["Pid"]), spec, digest, changes, variables)

    async def _enter(
        self,
        name: str,
        process: int,
        spec: BoxSpec,
        digest: str,
        changes: str | None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Box:
        """Return the box of a container, given the id of its first process and the folder of its changes."""
        groups = [path for path in _group_files(process) if os.access(path, os.W_OK)]
        held = await Supervisor.start(
            groups=groups,
            uid=None,
            filter_code=compile_filter(MACHINES[os.uname().machine], local_sockets=True),
            limits=command_limits(spec, has_group=bool(groups)),
            process=process,
        )
        if await held.wait_until_ready() is None:
            complaint = held.complaint()
            await held.close()
            raise SandboxError(f"cannot enter the container: {complaint}")
        box = _ContainerBox(spec, digest, held, process, ControlGroup(), variables)
        box.attach(self, name, changes)
        try:
            await box.prepare(has_files=True)
        except BaseException:
            await box.stop()
            raise
        return box

    async def _build(self, folder: str) -> str:
        """Build the image of a folder with a Dockerfile, unless it exists, and return its name."""
        folder = await asyncio.to_thread(os.path.abspath, folder)
        digest = await asyncio.to_thread(digest_folder, Path(folder))
        image = f"localhost/wander-box:{digest[:32]}"
        loop = asyncio.get_running_loop()  # a lock belongs to one loop
        async with self._building.setdefault((id(loop), image), asyncio.Lock()):
            if await self._find_image(image) is not None:
                return image
            words = ["build", "--tag", image, f"--pull={pull_policy() == 'missing'}".lower()]
            if self.name == "podman":
                words[-1] = f"--pull={pull_policy()}"
            try:
                await self._run(*words, folder, seconds=BUILD_SECONDS)
            except SandboxError as error:
                if self.name != "podman" or not any(part in str(error) for part in _NEEDS_CHROOT):
                    raise
                await self._run(*words, "--isolation=chroot", folder, seconds=BUILD_SECONDS)
        return image

    async def _find_image(self, image: str) -> dict[str, Any] | None:
        text = await self._run("image", "inspect", image, check=False)
        return json.loads(text)[0] if text.strip() else None

    async def _inspect_image(self, image: str) -> dict[str, Any]:
        """Return the facts about an image; raises `SandboxError` if it is missing or of another machine."""
        facts = await self._find_image(image)
        if facts is None and pull_policy() == "missing":
            await self._run("pull", image, seconds=BUILD_SECONDS)
            facts = await self._find_image(image)
        if facts is None:
            raise SandboxError(
                f"the image `{image}` is not on this machine",
                hint=f"run `{self.name} pull {image}`, or set `{PULL}=missing`",
            )
        own = _ARCHITECTURES.get(platform.machine(), platform.machine())
        if facts.get("Architecture") not in (own, None, ""):
            raise SandboxError(
                f"the image `{image}` is for {facts['Architecture']}, and this machine is {own}",
                hint=f"name an image for {own}",
            )
        return facts

    async def _run(self, *words: str, check: bool = True, seconds: float = _COMMAND_SECONDS) -> str:
        """Run the program and return its output; raises `SandboxError` with its last error lines."""
        process = await asyncio.create_subprocess_exec(
            *(self.name, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            # Podman's monitor leaves a file `oom` in the working folder if a container runs out of memory.
            cwd=tempfile.gettempdir(),
        )
        try:
            async with asyncio.timeout(seconds):
                output, errors = await process.communicate()
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"`{self.name} {words[0]}` took longer than {seconds:g} s") from error
            raise
        if check and process.returncode != 0:
            said = errors.decode("utf-8", "replace").strip().splitlines()[-5:]
            raise SandboxError(f"`{self.name} {words[0]}` failed: {' | '.join(said)[-1000:]}")
        return output.decode("utf-8", "replace") if process.returncode == 0 else ""


class _ContainerBox(SupervisedBox):
    """A box in a container. A task measures what the container has written, because Podman and Docker can
    limit it only on some file systems."""

    def attach(self, backend: ContainerBackend, name: str, changes: str | None) -> None:
        """Own a container, whose changes are in a folder of the host."""
        self._backend = backend
        self._name = name
        self._measuring = asyncio.ensure_future(self._measure(changes)) if changes is not None else None

    async def _measure(self, changes: str) -> None:
        most = self.spec.limits.disk_mb
        while True:
            await asyncio.sleep(_DISK_PAUSE)
            used = await asyncio.to_thread(_disk_use, changes)
            if used > most * _MIB:
                self._ending = f"it wrote more than {most} MiB"
                self._kill()
                return

    async def _end(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
        await self._backend.remove(self._name)


def _start_words(program: str, name: str, image: str, spec: BoxSpec, programs: dict[str, Path]) -> list[str]:
    """Return the arguments that start a container."""
    limits = spec.limits
    memory = f"{limits.memory_mb}m"
    return [
        *("run", "--detach", "--name", name, "--label", f"{HOST_LABEL}={host_identity()}", "--pull=never"),
        *("--network=none", "--hostname=box", "--user=0:0", "--workdir=/", "--entrypoint=/bin/sh"),
        *("--cap-drop=ALL", *(f"--cap-add={capability}" for capability in _CAPABILITIES)),
        *("--security-opt=no-new-privileges", f"--memory={memory}", f"--memory-swap={memory}"),
        *(f"--pids-limit={limits.processes + 8}", "--shm-size=64m", *_ULIMITS),
        *(["--no-healthcheck"] if program == "podman" else []),
        *(f"--volume={folder}:{FOLDER}/{shown}:ro" for shown, folder in programs.items()),
        *(image, "-c", _FIRST),
    ]


@functools.cache
def _find_fault(program: str) -> str | None:
    """Return why a program cannot be used on this machine."""
    if shutil.which(program) is None:
        return f"`{program}` is not installed"
    if os.uname().machine not in MACHINES:
        return f"the processor `{os.uname().machine}` is not supported"
    asked = [program, "info", "--format", "{{json .}}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return f"`{program} info` failed: {error}"
    if done.returncode != 0 or "Cannot connect" in done.stderr + done.stdout:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        return f"`{program} info` failed: {said[-1][-300:]}"
    facts = json.loads(done.stdout)
    is_rootless = "rootless" in str(facts.get("SecurityOptions", "")) or facts.get("host", {}).get(
        "security", {}
    ).get("rootless", False)
    if os.geteuid() != 0 and not is_rootless:
        return f"the containers of `{program}` belong to root, and a box must be entered: use rootless Podman"
    return None


def _group_files(process: int) -> Iterator[str]:
    """Yield the files by which another process joins the control groups of a process."""
    root = Path("/sys/fs/cgroup")
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" and (root / "cgroup.controllers").exists():
            yield f"{root}{path}/cgroup.procs"
        elif controllers in ("memory", "pids"):
            yield f"{root}/{controllers}{path}/cgroup.procs"


def _disk_use(folder: str) -> int:
    """Return the bytes that the files below a folder take."""
    total = 0
    for current, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{current}/{name}").st_blocks * 512
    return total


def pull_policy() -> str:
    """Return whether missing images may be downloaded: `never` or `missing`."""
    value = os.environ.get(PULL, "").strip() or "never"
    if value not in ("never", "missing"):
        raise SandboxError(f"`{PULL}={value}` is not a policy", hint="use `never` or `missing`")
    return value
