"""A box whose commands and files are in the hands of a supervisor (`wander.boxes.supervisor`)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import posixpath
import resource
import signal
import socket
import sys
import tarfile
from abc import abstractmethod
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wander.boxes import supervisor
from wander.boxes.base import ENVIRONMENT, OUTPUT_BYTES, PORT, Box, BoxSpec, CommandResult, FinalState
from wander.boxes.proxy import PROXY_PORT, Proxy, proxy_variables
from wander.boxes.state import (
    MOST_READ_BYTES,
    Archive,
    Snapshot,
    check_state,
    compare,
    outermost_paths,
    read_archive,
)
from wander.boxes.supervisor_files import FILE_WORK
from wander.endpoint.server import ModelEndpoint
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.errors import SandboxError
from wander.sandbox.control_groups import CLOSE_PAUSE, CLOSE_ROUNDS, ControlGroup
from wander.system.descriptors import wait_readable
from wander.system.memory_files import make_memory_file

START_SECONDS = 60.0
"""Time for a box to start."""
_EXIT_SECONDS = 5.0
_BUSY_PAUSE = 0.01
_OPEN_FILES = 4096
_MIB = 1 << 20


class Supervisor:
    """The host's side of a supervisor: its process, and the sockets for commands and for work with files."""

    def __init__(self, process: Process, control: socket.socket, files: socket.socket, errors: int) -> None:
        self._process = process
        self._control = control
        self._files = files
        self._errors = errors

    @classmethod
    async def start(
        cls,
        *,
        groups: Sequence[str],
        uid: int | None,
        filter_code: bytes,
        limits: Mapping[str, tuple[int, int]],
        process: int | None = None,
        info: int = -1,
        complete: int = -1,
    ) -> Supervisor:
        """Start a supervisor, which enters its box as soon as the box is complete."""
        host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files, files_inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = os.memfd_create("errors")
        code = make_memory_file("filter", filter_code)
        try:
            given = (inside.fileno(), files_inside.fileno(), code, info, complete)
            handed_on = [descriptor for descriptor in given if descriptor >= 0]
            plan = {
                "groups": list(groups),
                "uid": uid,
                "process": process,
                "info": info,
                "complete": complete,
                "control": inside.fileno(),
                "files": files_inside.fileno(),
                "filter": code,
                "limits": limits,
            }
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=errors,
                env={},
                cwd="/",
                pass_fds=handed_on,
                start_new_session=True,
            )
        except BaseException:
            host.close()
            files.close()
            os.close(errors)
            raise
        finally:
            inside.close()
            files_inside.close()
            os.close(code)
        host.setblocking(False)
        files.setblocking(False)
        return cls(child, host, files, errors)

    async def wait_until_ready(self) -> int | None:
        """Return the id of the box's first process; None if the supervisor ended instead."""
        async with asyncio.timeout(START_SECONDS):
            said = await asyncio.get_running_loop().sock_recv(self._control, 4096)
        return int(json.loads(said)["process"]) if said else None

    def complaint(self) -> str:
        """Return what the supervisor wrote to standard error."""
        return os.pread(self._errors, 4096, 0).decode("utf-8", "replace").strip()

    async def send(
        self, request: Mapping[str, Any], content: bytes | socket.socket = b"", output: Sequence[int] = ()
    ) -> socket.socket:
        """Send a request, and return the socket that gets the answer. Raises `OSError`.

        A socket as the content is closed here, because the box now has it.
        """
        control = self._files if request["do"] in FILE_WORK else self._control
        answer, inside = socket.socketpair()
        asked = make_memory_file("request", json.dumps(request).encode())
        given = make_memory_file("content", content) if isinstance(content, bytes) else content.detach()
        try:
            while True:
                try:
                    socket.send_fds(control, [b"r"], [asked, inside.fileno(), given, *output])
                    return answer
                except BlockingIOError:  # hundreds of requests are waiting
                    await asyncio.sleep(_BUSY_PAUSE)
        except BaseException:
            answer.close()
            raise
        finally:
            inside.close()
            os.close(asked)
            os.close(given)

    async def close(self) -> None:
        """End the supervisor."""
        self._control.close()
        self._files.close()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        os.close(self._errors)


class SupervisedBox(Box):
    """A box with a supervisor. A backend adds how the box ends (`_end`)."""

    def __init__(
        self,
        spec: BoxSpec,
        image_digest: str,
        held: Supervisor,
        first: int,
        group: ControlGroup,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        self.image_digest = image_digest
        self._supervisor = held
        self._first = os.pidfd_open(first)
        self._group = group
        self._proxy = Proxy(spec.allowed_hosts)
        outside = proxy_variables() if spec.allowed_hosts else {}
        self._environment = {**ENVIRONMENT, **variables, **outside, **spec.environment}
        self._roots = outermost_paths(spec.recorded_paths)
        self._start: Snapshot = {}
        self._ending = "its first process was killed"
        self._is_killed = False
        self._stopping: asyncio.Task[None] | None = None
        self._endpoint: ModelEndpoint | None = None
        self._program: asyncio.Task[CommandResult] | None = None
        self._timer = asyncio.get_running_loop().call_later(spec.limits.seconds, self._expire)

    async def prepare(self, *, has_files: bool) -> None:
        """Create the usual folders, note the files at the start, and open the way to the allowed hosts."""
        folders = [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/root", 0o700)]  # noqa: S108 - paths in the box
        folders += [(path, 0o755) for path in (*self._roots, self.spec.working_folder)]
        header, _ = await self._request({"do": "make folders", "folders": folders})
        if "error" in header:
            raise SandboxError(f"cannot create the folders of the box: {header['text']}")
        if has_files:
            await self.keep_as_start()
        if self.spec.allowed_hosts:
            await self._proxy.serve(await self._listen(PROXY_PORT))

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        seconds: float = 60.0,
        working_folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes | socket.socket = b"",
        output_bytes: int = OUTPUT_BYTES,
        output_file: int | None = None,
    ) -> CommandResult:
        """Run a command; see `Box.exec`. It may also get a socket, and write to a file of the host."""
        request = {
            "do": "exec",
            "command": command if isinstance(command, str) else list(command),
            "folder": working_folder or self.spec.working_folder,
            "environment": {**self._environment, **(environment or {})},
            "seconds": seconds,
            "output_bytes": output_bytes,
        }
        files = () if output_file is None else (output_file,)
        header, output = await self._request(request, stdin, files)
        if "error" in header:
            raise SandboxError(f"the box cannot start a command: {header['text']}")
        first, last = output[: header["first"]], output[header["first"] :]
        left_out = header["total"] - len(output)
        note = f"\n... [{left_out} of {header['total']} bytes left out] ...\n" if left_out else ""
        if left_out:
            text = first.decode("utf-8", "replace") + note + last.decode("utf-8", "replace")
        else:
            text = output.decode("utf-8", "replace")
        return CommandResult(
            output=text,
            exit_status=header["exit_status"],
            timed_out=header["timed_out"],
            left_out_bytes=left_out,
            seconds=header["seconds"],
        )

    async def upload(self, files: Mapping[str, bytes | str], *, executable: bool = False) -> None:
        """Write files; see `Box.upload`."""
        contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        for path in contents:
            if not path.startswith("/") or posixpath.normpath(path) != path or "\0" in path:
                raise ValueError(f"`{path}` is not a normal absolute path")
        mode = 0o755 if executable else 0o644
        rows = [(path, len(data), mode) for path, data in contents.items()]
        _raise_error((await self._request({"do": "write", "files": rows}, b"".join(contents.values())))[0])

    async def download(self, path: str, *, most_bytes: int = OUTPUT_BYTES) -> bytes:
        """Return the content of a file; see `Box.download`."""
        header, data = await self._request({"do": "read", "path": path, "most_bytes": most_bytes})
        _raise_error(header, of_files=True)
        return data

    async def final_state(self) -> FinalState:
        """Return what has changed; see `Box.final_state`."""
        archive = await self._read_archive(self._start)
        return await asyncio.to_thread(compare, self._start, archive)

    async def keep_as_start(self) -> None:
        """Compare with the current files from now on."""
        self._start = (await self._read_archive(None)).files

    async def restore(self, state: FinalState) -> None:
        """Apply a final state; see `Box.restore`.

        Links that lead out of the recorded folders are left out unless they lead to a file that exists,
        because they could lead to files that a verifier adds later.
        """
        checked = await asyncio.to_thread(lambda: list(check_state(state, self._roots)))
        rows = [
            (change.path, change.kind, change.executable, change.target, len(content))
            for change, content in checked
        ]
        request = {"do": "apply", "changes": rows, "roots": self._roots}
        header, _ = await self._request(request, b"".join(content for _, content in checked))
        if "error" in header:
            raise ValueError(f"the state does not fit this box: {header['text']}")

    async def start_program(
        self,
        command: str | Sequence[str],
        *,
        seconds: float,
        port: int = PORT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a program that may call models; see `Box.start_program`."""
        if self._program is not None:
            raise SandboxError("the box already runs a program")
        listener = await self._listen(port)
        self._endpoint = ModelEndpoint()
        await self._endpoint.serve([listener])
        variables = {**endpoint_variables(port), **(environment or {})}
        running = self.exec(command, seconds=seconds, environment=variables)
        self._program = asyncio.ensure_future(running)

    async def next_call(self) -> EndpointCall | CommandResult:
        """Wait for the program's next model call or its end; see `Box.next_call`."""
        self._require_running()
        if self._program is None or self._endpoint is None:
            raise SandboxError("the box runs no program")
        call = asyncio.ensure_future(self._endpoint.next_call())
        try:
            await asyncio.wait([call, self._program], return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not self._program.done():
                arrived: EndpointCall = call.result()
                return arrived
        finally:
            call.cancel()
        self._require_running()
        program, self._program = self._program, None
        await self._endpoint.close()
        return program.result()

    async def answer(self, reply: EndpointReply) -> None:
        """Answer a call of the program."""
        if self._endpoint is not None:
            self._endpoint.answer(reply)

    async def stop(self) -> None:
        """End all processes and remove the box."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._timer.cancel()
        self._kill()
        if self._program is not None:
            self._program.cancel()
            await asyncio.gather(self._program, return_exceptions=True)
        if self._endpoint is not None:
            await self._endpoint.close()
        await self._proxy.close()
        await self._end()
        await self._supervisor.close()
        await close_group(self._group)
        os.close(self._first)

    @abstractmethod
    async def _end(self) -> None:
        """Wait for the end of the box's processes, and remove what its backend made for it."""

    def _expire(self) -> None:
        self._ending = f"it reached its lifetime of {self.spec.limits.seconds:g} s"
        self._kill()

    def _kill(self) -> None:
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _require_running(self) -> None:
        if self._stopping is not None:
            raise SandboxError("the box was stopped")
        if self._is_killed or wait_readable(self._first, 0):
            if self._group.out_of_memory():
                self._ending = f"it ran out of memory ({self.spec.limits.memory_mb} MiB)"
            raise SandboxError(f"the box has ended: {self._ending}")

    async def _send(
        self, request: Mapping[str, Any], content: bytes | socket.socket = b"", output: Sequence[int] = ()
    ) -> socket.socket:
        self._require_running()
        try:
            return await self._supervisor.send(request, content, output)
        except OSError as error:
            raise SandboxError(
                f"the supervisor of the box has ended: {self._supervisor.complaint()}"
            ) from error

    async def _request(
        self, request: Mapping[str, Any], content: bytes | socket.socket = b"", output: Sequence[int] = ()
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the header and the data of its answer."""
        channel = await self._send(request, content, output)
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        try:
            answer = await reader.read()
        finally:
            writer.close()
        self._require_running()
        header, newline, data = answer.partition(b"\n")
        if not newline:
            raise SandboxError(f"the box did not finish `{request['do']}`: {self._supervisor.complaint()}")
        return json.loads(header), data

    async def _listen(self, port: int) -> socket.socket:
        """Return a socket that listens on 127.0.0.1 inside the box."""
        channel = await self._send({"do": "listen", "port": port})
        with channel:
            channel.settimeout(START_SECONDS)
            data, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, channel, 4096, 1)
        if not descriptors:
            why = json.loads(data)["text"] if data else "it ended"
            raise SandboxError(f"the box cannot listen on port {port}: {why}")
        os.set_inheritable(descriptors[0], False)
        return socket.socket(fileno=descriptors[0])

    async def _read_archive(self, start: Snapshot | None) -> Archive:
        # More can only be holes, or one file under many names. Reading them would take the host's time.
        most = MOST_READ_BYTES
        if start is not None:
            most = min(most, self.spec.limits.disk_mb * _MIB + sum(file.size for file in start.values()))
        channel = await self._send({"do": "archive", "paths": self._roots})
        try:
            archive = await asyncio.to_thread(_receive_archive, channel, start, most)
        finally:
            channel.close()
        self._require_running()
        return archive


def endpoint_variables(port: int) -> dict[str, str]:
    """Return the variables that name the endpoint of a program to the clients of OpenAI and Anthropic."""
    address = f"http://127.0.0.1:{port}"
    return {
        "WANDER_ENDPOINT": address,
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": "wander",
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "wander",
    }


def command_limits(spec: BoxSpec, *, has_group: bool) -> dict[str, tuple[int, int]]:
    """Return the limits of every command, by their names in `resource`.

    Memory is limited per process if no control group limits it for all processes together.
    """
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_SIGPENDING": 256,
        "RLIMIT_FSIZE": (spec.limits.disk_mb + 1) * _MIB,  # the file system is full before
        "RLIMIT_NPROC": spec.limits.processes,
    }
    if not has_group:
        limits["RLIMIT_AS"] = spec.limits.memory_mb * _MIB
    return {name: (_lowered(name, most),) * 2 for name, most in limits.items()}


def _lowered(name: str, most: int) -> int:
    """Return a limit that is not above this process's own, which its children cannot raise."""
    own = resource.getrlimit(getattr(resource, name))[1]
    return most if own == resource.RLIM_INFINITY else min(most, own)


async def close_group(group: ControlGroup) -> None:
    """Remove a control group, giving killed processes two seconds to exit."""
    for _ in range(CLOSE_ROUNDS):
        if group.close():
            return
        await asyncio.sleep(CLOSE_PAUSE)


def _receive_archive(channel: socket.socket, start: Snapshot | None, most: int) -> Archive:
    channel.settimeout(supervisor.FILE_SECONDS)
    try:
        with channel.makefile("rb") as stream:
            return read_archive(stream, start, most)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise SandboxError(f"the files of the box cannot be read: {error}") from error


def _raise_error(header: Mapping[str, Any], *, of_files: bool = False) -> None:
    if "error" in header:
        if header["error"] == "FileNotFoundError":
            raise FileNotFoundError(header["text"])
        if of_files:
            raise ValueError(header["text"])
        raise SandboxError(f"cannot write to the box: {header['text']}")


def digest_folder(folder: Path) -> str:
    """Return the digest of a folder's names, kinds, executable bits, links and contents."""
    total = hashlib.sha256()
    for path in _walk(folder):
        status = path.lstat()
        row: list[Any] = [str(path.relative_to(folder)), status.st_mode & 0o170111]
        if path.is_symlink():
            row.append(os.readlink(path))
        elif path.is_file():
            with open(path, "rb") as file:
                row.append(hashlib.file_digest(file, "sha256").hexdigest())
        total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


def _walk(folder: Path) -> Iterable[Path]:
    for current, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            yield Path(current, name)
