"""`SandboxMixin`: sandboxes for environments that make and use them themselves, in bubblewrap here."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wander_compat.verifiers.decorators import teardown
from wander_compat.verifiers.envs.sandboxes.client import LocalSandboxClient
from wander_compat.verifiers.errors import SandboxError
from wander_compat.verifiers.rubrics.rubric import Rubric
from wander_compat.verifiers.types import State


class SandboxCreationError(SandboxError):
    """A sandbox could not be made."""


class SandboxNotReadyError(SandboxError):
    """A sandbox did not start."""


class SandboxSetupError(SandboxError):
    """What prepares a sandbox failed."""


def is_retryable_sandbox_api_error(exception: BaseException) -> bool:
    """Tell whether the sandbox may answer another time: one of this machine always answers."""
    return False


is_retryable_sandbox_read_error = is_retryable_sandbox_api_error


@dataclass(frozen=True)
class SandboxTimeouts:
    """Seconds of single operations; a local sandbox answers at once."""

    read_file: int = 10
    extract: int = 60
    poll: int = 60
    mkdir: int = 10


class SandboxRequest:
    """What a sandbox is asked for; any setting of the cloud's is kept as an attribute."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


AdvancedConfigs = CreateSandboxRequest = SandboxRequest


class SandboxMonitorRubric(Rubric):
    """Reports whether a rollout's sandbox ran out of memory or of time."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.sandbox_oom)
        self.add_metric(self.sandbox_timeout)

    async def sandbox_oom(self, state: State) -> float:
        """Tell whether the sandbox ran out of memory."""
        return float(bool(state.get("sandbox_oom")))

    async def sandbox_timeout(self, state: State) -> float:
        """Tell whether the sandbox ran out of time."""
        return float(bool(state.get("sandbox_timeout")))


class SandboxMixin:
    """Makes, tracks and ends sandboxes; `init_sandbox_client` is called by a subclass's constructor."""

    SANDBOX_MAX_TIMEOUT_MINUTES = 24 * 60
    SANDBOX_SCORING_BUFFER_MINUTES = 60
    sandbox_timeout_minutes: int | None = None
    active_sandboxes: set[str]
    sandbox_client: LocalSandboxClient
    timeouts: SandboxTimeouts
    outside = True
    """Commands may read the clock and the machine, so rollouts are not declared deterministic."""

    def init_sandbox_client(self, *_: Any, timeouts: SandboxTimeouts | None = None, **cloud: Any) -> None:
        """Prepare the client; retries and limits of a cloud have no effect on this machine."""
        if not hasattr(self, "logger"):
            self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self.active_sandboxes = set()
        self.timeouts = timeouts or SandboxTimeouts()
        self.sandbox_client = LocalSandboxClient()

    def with_retry(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function itself: what fails on this machine fails again."""
        return function

    def compute_sandbox_timeout_minutes(self) -> int:
        """Return how long a sandbox may live: as set, or as the rollout with an hour for scoring."""
        if self.sandbox_timeout_minutes is not None:
            return self.sandbox_timeout_minutes
        seconds: float | None = getattr(self, "timeout_seconds", None)
        if seconds is None:
            return self.SANDBOX_MAX_TIMEOUT_MINUTES
        wanted = math.ceil(seconds / 60) + self.SANDBOX_SCORING_BUFFER_MINUTES
        return min(wanted, self.SANDBOX_MAX_TIMEOUT_MINUTES)

    def register_sandbox(self, sandbox_id: str) -> None:
        """Note a sandbox that is to be ended with the environment."""
        self.active_sandboxes.add(sandbox_id)

    def deregister_sandbox(self, sandbox_id: str) -> None:
        """Forget a sandbox."""
        self.active_sandboxes.discard(sandbox_id)

    async def create_sandbox(self, state: Any, request: Any) -> str:
        """Make a rollout's sandbox and prepare it; returns its id. Raises `SandboxError`s."""
        try:
            sandbox_id: str = (await self.sandbox_client.create(request)).id
        except SandboxError as error:
            raise SandboxCreationError(str(error)) from error
        self.register_sandbox(sandbox_id)
        state["sandbox_id"] = sandbox_id
        try:
            await self.sandbox_client.wait_for_creation(sandbox_id)
        except SandboxError as error:
            raise SandboxNotReadyError(str(error)) from error
        try:
            await self.post_sandbox_setup(state)
        except SandboxError:
            raise
        except Exception as error:
            raise SandboxSetupError(f"the sandbox could not be prepared: {error}") from error
        return sandbox_id

    async def post_sandbox_setup(self, state: Any) -> None:
        """Prepare a new sandbox; for subclasses."""

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """End a sandbox."""
        await self.sandbox_client.delete(sandbox_id)
        self.deregister_sandbox(sandbox_id)

    async def bulk_delete_sandboxes(self, sandbox_ids: list[str]) -> None:
        """End sandboxes."""
        for each in sandbox_ids:
            await self.delete_sandbox(each)

    async def run_background_job(
        self,
        state: Any,
        command: str,
        timeout: int,  # noqa: ASYNC109 - the name of the releases
        working_dir: str | None = None,
        poll_interval: int = 3,
    ) -> Any:
        """Run a command to its end, or until `timeout` seconds are over."""
        return await self.sandbox_client.run_background_job(
            state["sandbox_id"], command, timeout=timeout, working_dir=working_dir
        )

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str, **_: Any) -> None:
        """Write a file from one of this machine."""
        await self.sandbox_client.upload_file(sandbox_id, remote_path, local_path)

    async def upload_content(self, sandbox_id: str, content: str, remote_path: str, **_: Any) -> None:
        """Write a text to a file."""
        await self.sandbox_client.upload_bytes(sandbox_id, remote_path, content.encode())

    async def read_file(self, sandbox_id: str, path: str, timeout: int | None = None) -> str | None:  # noqa: ASYNC109
        """Return a file's text, or None where there is none."""
        try:
            content: str = (await self.sandbox_client.read_file(sandbox_id, path)).content
        except SandboxError:
            return None
        return content

    async def upload_bundle(self, sandbox_id: str, file_map: Mapping[str, str], dest_dir: str) -> None:
        """Write texts to files below a folder."""

        def pack() -> bytes:
            memory = io.BytesIO()
            with tarfile.open(fileobj=memory, mode="w:gz") as archive:
                for name, text in file_map.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(text.encode())
                    archive.addfile(entry, io.BytesIO(text.encode()))
            return memory.getvalue()

        await self.upload_archive(sandbox_id, await asyncio.to_thread(pack), dest_dir)

    async def upload_archive(self, sandbox_id: str, archive: bytes, folder: str) -> None:
        """Unpack an archive of this machine into a folder of the sandbox; raises `SandboxError`."""
        await self.sandbox_client.upload_bytes(sandbox_id, "/tmp/bundle.tar.gz", archive)  # noqa: S108 - its own
        done = await self.sandbox_client.execute_command(
            sandbox_id,
            "tar -xzf /tmp/bundle.tar.gz --no-same-owner && rm /tmp/bundle.tar.gz",
            working_dir=folder,
        )
        if done.exit_code:
            raise SandboxError(f"an archive could not be unpacked: {done.stderr or done.stdout}")

    @teardown
    async def teardown_mixin_sandboxes(self) -> None:
        """End every sandbox that is left."""
        await self.bulk_delete_sandboxes(list(self.active_sandboxes))
