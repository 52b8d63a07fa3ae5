"""The interface of boxes, and the values that describe them.

A box is a file system with its own processes, and without a network unless it allows single hosts. An
environment asks its host for one (`RolloutHost.start_box`), because a sandboxed worker cannot start one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from wander.endpoint.values import EndpointCall, EndpointReply
from wander.types import Record

WORKING_FOLDER = "/work"
PORT = 8080
"""Default port of the endpoint that a program calls as its model."""
RECORD = "box"
"""Key of a rollout's `info` with the identity and the final state of its box."""
OUTPUT_BYTES = 1 << 20
"""Default for the maximum number of bytes that are kept of a command's output."""
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
"""Environment variables of every command, so that its output does not depend on the host."""
AbsolutePath = Annotated[str, Field(pattern=r"^/", max_length=1024)]


SYSTEM = "system:"
"""Prefix of the identity of boxes that show the host's system folders."""


def is_same_image(recorded: object, image_digest: str) -> bool:
    """Return whether a recorded box can be compared with a box of this machine.

    The system folders of two machines differ, but their usual programs give the same results.
    """
    if image_digest.startswith(SYSTEM):
        return isinstance(recorded, str) and recorded.startswith(SYSTEM)
    return recorded == image_digest


class BoxLimits(Record):
    """Limits of a box. A backend that cannot enforce one says so when the box starts."""

    memory_mb: int = Field(default=2048, ge=16)
    """Memory of all processes together, in MiB."""
    disk_mb: int = Field(default=1024, ge=1)
    """Files that the box may write, in MiB."""
    processes: int = Field(default=256, ge=4)
    seconds: float = Field(default=3600.0, gt=0)
    """Lifetime of the box."""


class BoxSpec(Record):
    """The source of a box, and its settings. At most one of `image`, `dockerfile` and `root` is set.

    Without them, the box shows the host's system folders (`/usr`, `/etc/alternatives`...) read-only.
    """

    image: str | None = None
    """Name of a container image."""
    dockerfile: str | None = None
    """Folder with a `Dockerfile`, which is built and cached by the digest of the folder."""
    root: str | None = None
    """Folder with a whole file system. It is never written to."""
    working_folder: AbsolutePath = WORKING_FOLDER
    """Folder in which commands start. It is created if it does not exist."""
    state_paths: list[AbsolutePath] = Field(default_factory=list)
    """Folders whose changes are the final state; empty for only the working folder."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables of every command."""
    programs: list[str] = Field(default_factory=list)
    """Names of agent programs (`wander.boxes.programs`) that the host installs and shows read-only in
    `/opt`."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Hosts that the box may reach by HTTPS (`pypi.org`, `*.example.org`, `example.org:8443`), if the
    machine's owner allows them; empty for no network at all."""
    limits: BoxLimits = Field(default_factory=BoxLimits)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [name for name in ("image", "dockerfile", "root") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a box has one source, got {' and '.join(f'`{name}`' for name in given)}")
        return self

    @property
    def recorded_paths(self) -> list[str]:
        """Folders whose changes are the final state."""
        return self.state_paths or [self.working_folder]


class CommandResult(Record):
    """The result of a command."""

    output: str
    """Standard output and standard error in the order of writing, cut in the middle if they are too long."""
    exit_status: int
    """Exit status; 128 + N if signal N ended the command, and 124 if it ran out of time."""
    timed_out: bool = False
    left_out_bytes: int = 0
    """Number of bytes that are missing in `output`."""
    seconds: float = 0.0


class ChangedFile(Record):
    """A file or folder of a box that is new, changed or removed."""

    path: AbsolutePath
    kind: Literal["file", "folder", "link", "removed"]
    executable: bool = False
    size: int = 0
    sha256: str | None = None
    """Digest of a file's content."""
    target: str | None = None
    """Target of a symbolic link."""
    text: str | None = None
    """Content of a file that is valid UTF-8."""
    base64: str | None = None
    """Content of any other file. If a file has neither `text` nor `base64`, the state was too large to record
    contents."""


class FinalState(Record):
    """The changes that a box's processes have made below the recorded paths."""

    digest: str
    """SHA-256 of the canonical JSON of `files` without `text` and `base64`."""
    files: list[ChangedFile]
    """Changes, sorted by the parts of their paths: a folder comes before its files."""
    too_large: bool = False
    """Whether the contents of the files are left out, so that nobody can score the state again."""


class Box(ABC):
    """A running box. All methods raise `SandboxError` if the box itself fails."""

    spec: BoxSpec
    image_digest: str
    """Identity of what the box was started from."""

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        seconds: float = 60.0,
        working_folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int = OUTPUT_BYTES,
    ) -> CommandResult:
        """Run a command for at most `seconds` and return its output. A text is run by `bash -c`, or `sh -c`.

        When the command exits or runs out of time, its process ends; processes that it left in the background
        continue until the box stops.
        """

    @abstractmethod
    async def upload(self, files: Mapping[str, bytes | str], *, executable: bool = False) -> None:
        """Write files, by absolute path, and create their folders."""

    @abstractmethod
    async def download(self, path: str, *, most_bytes: int = OUTPUT_BYTES) -> bytes:
        """Return the content of a file. Raises `FileNotFoundError`, and `ValueError` for a larger file."""

    @abstractmethod
    async def final_state(self) -> FinalState:
        """Return what has changed below the recorded paths since the last `keep_as_start`."""

    @abstractmethod
    async def keep_as_start(self) -> None:
        """Take the current files below the recorded paths as the start that `final_state` compares with."""

    @abstractmethod
    async def restore(self, state: FinalState) -> None:
        """Apply a final state to this box. Raises `ValueError` for an invalid or empty one."""

    @abstractmethod
    async def start_program(
        self,
        command: str | Sequence[str],
        *,
        seconds: float,
        port: int = PORT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a program that may call models at `http://127.0.0.1:PORT` inside the box.

        `$WANDER_ENDPOINT` and the usual variables of OpenAI's and Anthropic's clients name the endpoint.
        """

    @abstractmethod
    async def next_call(self) -> EndpointCall | CommandResult:
        """Wait for the program's next model call, or return its result when it has ended."""

    @abstractmethod
    async def answer(self, reply: EndpointReply) -> None:
        """Answer a call of the program."""

    @abstractmethod
    async def stop(self) -> None:
        """End all processes and remove the box. May be called repeatedly."""


class BoxBackend(ABC):
    """Starts boxes on this machine."""

    name: str
    is_automatic = True
    """Whether the backend may be chosen without being named."""

    @abstractmethod
    def unavailable_reason(self, spec: BoxSpec) -> str | None:
        """Return why this backend cannot start a box from the spec on this machine; None if it can."""

    @abstractmethod
    async def start(self, spec: BoxSpec) -> Box:
        """Start a box. Raises `SandboxError`."""
