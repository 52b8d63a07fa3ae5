"""The methods of a box as messages, for code that runs in another process than its box.

`ForwardingBox` turns a method call into a message, and `carry_out` turns the message into the same call on
the real box.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Field

from wander.boxes.base import OUTPUT_BYTES, PORT, AbsolutePath, Box, BoxSpec, CommandResult, FinalState
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.errors import SandboxError
from wander.types import Record

T = TypeVar("T")


class _Method(Record):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Exec(_Method):
    """Message for `Box.exec`."""

    method: Literal["exec"] = "exec"
    command: str | list[str]
    seconds: float
    working_folder: str | None = None
    environment: dict[str, str] | None = None
    stdin: bytes = b""
    output_bytes: int = OUTPUT_BYTES


class Upload(_Method):
    """Message for `Box.upload`."""

    method: Literal["upload"] = "upload"
    files: dict[AbsolutePath, bytes]
    executable: bool = False


class Download(_Method):
    """Message for `Box.download`."""

    method: Literal["download"] = "download"
    path: str
    most_bytes: int = OUTPUT_BYTES


class Restore(_Method):
    """Message for `Box.restore`."""

    method: Literal["restore"] = "restore"
    state: FinalState


class StartProgram(_Method):
    """Message for `Box.start_program`."""

    method: Literal["start_program"] = "start_program"
    command: str | list[str]
    seconds: float
    port: int = PORT
    environment: dict[str, str] | None = None


class Answer(_Method):
    """Message for `Box.answer`."""

    method: Literal["answer"] = "answer"
    reply: EndpointReply


class WithoutArguments(_Method):
    """Message for a method of `Box` without arguments."""

    method: Literal["final_state", "keep_as_start", "next_call", "stop"]


BoxMethod = Annotated[
    Exec | Upload | Download | Restore | StartProgram | Answer | WithoutArguments,
    Field(discriminator="method"),
]
Result = bytes | CommandResult | EndpointCall | FinalState | None


class BoxResult(_Method):
    """The result of a method: at most one of the fields is set."""

    content: bytes | None = None
    command: CommandResult | None = None
    call: EndpointCall | None = None
    state: FinalState | None = None

    @classmethod
    def of(cls, result: Result) -> BoxResult:
        """Return the message for a result."""
        if isinstance(result, bytes):
            return cls(content=result)
        if isinstance(result, CommandResult):
            return cls(command=result)
        if isinstance(result, EndpointCall):
            return cls(call=result)
        return cls(state=result)


async def carry_out(box: Box, message: BoxMethod) -> BoxResult:
    """Call the method of a box that a message describes. Raises what the method raises."""
    values = {name: getattr(message, name) for name in type(message).model_fields if name != "method"}
    return BoxResult.of(await getattr(box, message.method)(**values))


class ForwardingBox(Box):
    """A box in another process. `send` delivers a message and returns the result."""

    def __init__(
        self, spec: BoxSpec, image_digest: str, send: Callable[[BoxMethod], Awaitable[BoxResult]]
    ) -> None:
        self.spec = spec
        self.image_digest = image_digest
        self._send = send

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
        """Run a command in the box."""
        message = Exec(
            command=command if isinstance(command, str) else list(command),
            seconds=seconds,
            working_folder=working_folder,
            environment=None if environment is None else dict(environment),
            stdin=stdin,
            output_bytes=output_bytes,
        )
        return _given((await self._send(message)).command)

    async def upload(self, files: Mapping[str, bytes | str], *, executable: bool = False) -> None:
        """Write files into the box."""
        contents = {
            path: content.encode() if isinstance(content, str) else content for path, content in files.items()
        }
        await self._send(Upload(files=contents, executable=executable))

    async def download(self, path: str, *, most_bytes: int = OUTPUT_BYTES) -> bytes:
        """Return the content of a file of the box."""
        return _given((await self._send(Download(path=path, most_bytes=most_bytes))).content)

    async def final_state(self) -> FinalState:
        """Return the changes in the box."""
        return _given((await self._send(WithoutArguments(method="final_state"))).state)

    async def keep_as_start(self) -> None:
        """Take the current files as the start."""
        await self._send(WithoutArguments(method="keep_as_start"))

    async def restore(self, state: FinalState) -> None:
        """Apply a final state to the box."""
        await self._send(Restore(state=state))

    async def start_program(
        self,
        command: str | Sequence[str],
        *,
        seconds: float,
        port: int = PORT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a program in the box."""
        message = StartProgram(
            command=command if isinstance(command, str) else list(command),
            seconds=seconds,
            port=port,
            environment=None if environment is None else dict(environment),
        )
        await self._send(message)

    async def next_call(self) -> EndpointCall | CommandResult:
        """Wait for the next model call of the program, or for its end."""
        result = await self._send(WithoutArguments(method="next_call"))
        return result.call or _given(result.command)

    async def answer(self, reply: EndpointReply) -> None:
        """Answer a call of the program."""
        await self._send(Answer(reply=reply))

    async def stop(self) -> None:
        """Stop the box."""
        await self._send(WithoutArguments(method="stop"))


def _given(value: T | None) -> T:
    if value is None:
        raise SandboxError("the host returned the result of another method of the box")
    return value
