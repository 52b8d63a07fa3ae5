"""The supervisor of a box: `python -I -S supervisor.py PLAN`, where PLAN is a JSON object.

It enters the namespaces of a box, gives up every right that the box's commands do not have, and then runs
commands and reads and writes files there for its host. It keeps its own process id outside of the box, so no
process of the box can see it. A second process works with files, whose children stay outside, too, so a box
that kills or stops all its processes cannot hide its files. It uses only the standard library.

After it has entered, the box's files are hostile: nothing is imported any more, no user or host is looked up
(the C library would load libraries from the box), and files are only touched by children, with the rights of
the box.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import selectors
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if __name__ != "__main__" or TYPE_CHECKING:
    from wander.boxes.supervisor_files import CHUNK, FILE_WORK, answer
else:  # started by its path, without the package
    sys.path.insert(0, os.path.dirname(__file__))
    from supervisor_files import CHUNK, FILE_WORK, answer

FAILED = 125
"""Exit status if the box is not complete or cannot be entered."""
NOT_RUNNABLE, NOT_FOUND, OUT_OF_TIME = 126, 127, 124
FILE_SECONDS = 300.0
"""Time for an operation on files."""
_KEPT = (0, 1, 3, 4, 5, 6, 7, 10)
"""Capabilities of commands over their own files, processes and ports: CHOWN, DAC_OVERRIDE, FOWNER, FSETID,
KILL, SETGID, SETUID, NET_BIND_SERVICE."""
_NAMESPACES = ("cgroup", "ipc", "net", "uts", "mnt", "pid")
_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER = 0x10000000
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_LONGEST_WAIT = 3600.0  # `poll` refuses more than 24 days
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_libc = ctypes.CDLL(None, use_errno=True)


def main(plan: dict[str, Any]) -> None:
    """Enter the box, serve its host until the host closes the socket, and end the box.

    - `groups`: files of control groups that every command joins.
    - `uid`: the box's user on the host, or null to stay the same user.
    - `process`: id of the box's first process, or null to read it from the descriptor `info` (bubblewrap's
      JSON).
    - `complete`: null, or a descriptor that delivers a byte when the box is complete.
    - `control`: descriptor of a socket to the host, for commands.
    - `files`: descriptor of a socket to the host, for work with files.
    - `filter`: descriptor of the system call filter.
    - `limits`: limits of every command, by their names in `resource`.
    """
    groups = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in plan["groups"]]
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs short of memory, the kernel should kill boxes first
    code = _read_all(plan["filter"])
    os.umask(0o022)
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    process = plan["process"] or _read_process(plan["info"])
    first = os.pidfd_open(process)
    if plan["process"] is None:
        poll = select.poll()  # `select` fails for descriptors from 1,024 on
        poll.register(plan["complete"], select.POLLIN)
        poll.register(first, select.POLLIN)
        ready = dict(poll.poll())
        if plan["complete"] not in ready or not os.read(plan["complete"], 1):
            sys.exit(FAILED)  # the launcher or bubblewrap has said why
    helper = _enter(process)
    sys.path.clear()
    sys.meta_path.clear()
    _give_up_rights(code)
    os.close(plan["files" if helper else "control"])
    control = socket.socket(fileno=plan["control" if helper else "files"])
    if helper:
        control.send(json.dumps({"process": process}).encode())
    Supervisor(control, plan["limits"], groups).serve()
    if helper:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(first, signal.SIGKILL)
        os.waitpid(helper, 0)


def _read_process(info: int) -> int:
    """Return the id of the first process, which bubblewrap reports."""
    said = b""
    while not said.rstrip().endswith(b"}"):
        part = os.read(info, CHUNK)
        if not part:
            sys.exit(FAILED)
        said += part
    return int(json.loads(said)["child-pid"])


def _enter(process: int) -> int:
    """Enter all namespaces of a process, and return the id of the child that works with files.

    The children of this process will be in the process namespace, too. In the child itself, the function
    returns 0, and its children stay outside.
    """
    helper = 0
    opened = {
        name: os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        for name in ("user", *_NAMESPACES)
    }
    # A box may be in a user namespace below the one that owns the other namespaces.
    owner = fcntl.ioctl(opened["mnt"], _NS_GET_USERNS)
    entered = os.stat("/proc/self/ns/user").st_ino
    user = os.fstat(opened["user"]).st_ino
    for descriptor, kind in ((owner, _CLONE_NEWUSER), *((opened[name], 0) for name in _NAMESPACES)):
        if kind == _CLONE_NEWUSER and os.fstat(descriptor).st_ino == entered:
            continue  # a container of root without a user namespace
        if descriptor == opened["pid"] and (helper := os.fork()) == 0:
            continue
        _check(_libc.setns(descriptor, kind), "enter the box")
    if user not in (os.fstat(owner).st_ino, entered):
        _check(_libc.setns(opened["user"], _CLONE_NEWUSER), "enter the box's user namespace")
    for descriptor in (owner, *opened.values()):
        os.close(descriptor)
    os.chdir("/")
    return helper


def _give_up_rights(code: bytes) -> None:
    """Drop all capabilities except `_KEPT`, install the filter, and become invisible to the box."""
    for number in range(64):
        if number not in _KEPT and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the last capability of this kernel
    kept = sum(1 << number for number in _KEPT)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(sets)), "drop capabilities")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "become undumpable")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    program = Program(len(code) // 8, code)
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "install the filter")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


class Output:
    """The output of a command: its first and its last bytes, and how many there were."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Keep what fits."""
        self.total += len(data)
        missing = self._half - len(self._head)
        self._head += data[:missing]
        self._tail += data[max(0, missing) :]
        if len(self._tail) > 2 * self._half + CHUNK:
            del self._tail[: -self._half]

    def parts(self) -> tuple[bytes, bytes]:
        """Return the first and the last bytes."""
        return bytes(self._head), bytes(self._tail[-self._half :])


class Command:
    """A running command, its output and the socket that gets its result."""

    def __init__(self, process: int, pipe: int, channel: socket.socket, request: dict[str, Any]) -> None:
        self.process = process
        self.pipe: int | None = pipe
        self.channel = channel
        self.output = Output(request["output_bytes"])
        self.begun = time.monotonic()
        self.deadline = self.begun + request["seconds"]
        self.timed_out = False
        self.ended = False

    def kill(self) -> None:
        """Kill the process group."""
        for kill in (os.killpg, os.kill):  # before it has called `setsid`, it has no group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.process, signal.SIGKILL)

    def read(self) -> bool:
        """Read some output; returns False at its end. Output of processes in the background is dropped."""
        data = _read_some(self.pipe, CHUNK) if self.pipe is not None else b""
        if data == b"":
            self.pipe = None
        elif data and not self.ended:
            self.output.add(data)
        return self.pipe is not None

    def finish(self, wait_status: int) -> None:
        """Read what the command has printed before it ended, and send the result."""
        if self.pipe is not None:
            waiting = array.array("i", [0])
            fcntl.ioctl(self.pipe, termios.FIONREAD, waiting)
            left = waiting[0]
            while left > 0 and (data := _read_some(self.pipe, left)):
                self.output.add(data)
                left -= len(data)
        self.ended = True
        code = os.waitstatus_to_exitcode(wait_status)
        first, last = self.output.parts()
        answer(
            self.channel,
            {
                "exit_status": OUT_OF_TIME if self.timed_out else 128 - code if code < 0 else code,
                "timed_out": self.timed_out,
                "total": self.output.total,
                "first": len(first),
                "seconds": time.monotonic() - self.begun,
            },
            first + last,
        )


class Supervisor:
    """Serves requests. Each comes with a socket for its answer."""

    def __init__(self, control: socket.socket, limits: dict[str, list[int]], groups: list[int]) -> None:
        self._control = control
        self._limits = limits
        self._groups = groups
        # The filter may deny epoll.
        self._selector = selectors.PollSelector()
        self._deadlines: dict[int, tuple[float, Callable[[], None]]] = {}
        self._selector.register(control, selectors.EVENT_READ, self._receive)

    def serve(self) -> None:
        """Serve until the host closes its socket."""
        while self._control.fileno() >= 0:
            for when, act in list(self._deadlines.values()):
                if when <= time.monotonic():
                    act()
            waits = [when - time.monotonic() for when, _ in self._deadlines.values()]
            for key, _ in self._selector.select(max(0.0, min([*waits, _LONGEST_WAIT]))):
                if key.fd in self._selector.get_map():  # another event of this round may have ended it
                    key.data()
        for ended in self._deadlines:
            signal.pidfd_send_signal(ended, signal.SIGKILL)

    def _receive(self) -> None:
        data, received, _, _ = socket.recv_fds(self._control, 1, 4)
        if not data:
            self._control.close()
            return
        if len(received) < 3:
            raise OSError("no descriptor is left")
        request = json.loads(_read_all(received[0]))
        channel = socket.socket(fileno=received[1])
        try:
            match request["do"]:
                case "exec":
                    self._exec(request, channel, *received[2:])
                case "listen":
                    _listen(channel, request["port"])
                case _:
                    self._touch_files(request, channel, received[2])
        except OSError as error:  # no process, descriptor or port is left
            answer(channel, {"error": "OSError", "text": str(error)})
        finally:
            for descriptor in (received[0], *received[2:]):
                os.close(descriptor)

    def _exec(self, request: dict[str, Any], channel: socket.socket, *given: int) -> None:
        reading, writing = os.pipe()
        stdin, output = (*given, writing)[:2]  # the host may want the output in a file of its own
        try:
            process, ended = _fork(lambda: self._run(request, stdin, output), channel)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        command = Command(process, reading, channel, request)

        def expire() -> None:
            command.timed_out = True
            command.kill()
            self._deadlines.pop(ended, None)

        def hung_up() -> None:  # the host no longer waits for the result
            self._selector.unregister(channel)
            command.kill()

        def finish() -> None:
            self._forget(ended)
            if channel in self._selector.get_map():
                self._selector.unregister(channel)
            command.finish(os.waitpid(process, 0)[1])

        def read() -> None:
            if not command.read():
                self._selector.unregister(reading)
                os.close(reading)

        self._deadlines[ended] = (command.deadline, expire)
        self._selector.register(reading, selectors.EVENT_READ, read)
        self._selector.register(channel, selectors.EVENT_READ, hung_up)
        self._selector.register(ended, selectors.EVENT_READ, finish)

    def _touch_files(self, request: dict[str, Any], channel: socket.socket, content: int) -> None:
        process, ended = _fork(lambda: FILE_WORK[request["do"]](request, channel, content), channel)
        channel.close()

        def finish() -> None:
            self._forget(ended)
            os.waitpid(process, 0)

        self._deadlines[ended] = (time.monotonic() + FILE_SECONDS, lambda: os.kill(process, signal.SIGKILL))
        self._selector.register(ended, selectors.EVENT_READ, finish)

    def _forget(self, ended: int) -> None:
        self._selector.unregister(ended)
        self._deadlines.pop(ended, None)
        os.close(ended)

    def _run(self, request: dict[str, Any], stdin: int, output: int) -> None:
        """Become a command. Returns only by exiting, or by raising if no command can be started."""
        for group in self._groups:
            os.write(group, b"0")
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        os.nice(5)  # the host goes first
        for name, (soft, hard) in self._limits.items():
            resource.setrlimit(getattr(resource, name), (soft, hard))
        os.closerange(3, 1 << 30)  # the sockets to the host
        words = request["command"]
        if isinstance(words, str):
            shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
            words = [shell, "-c", words]
        what = request["folder"]
        try:
            os.chdir(what)
            what = words[0]
            os.execvpe(what, words, request["environment"])  # noqa: S606 - the words come from the host
        except (OSError, ValueError) as error:  # it has a null byte, or it is longer than the kernel accepts
            why = error.strerror if isinstance(error, OSError) else error
            os.write(2, f"cannot run `{what}`: {why}\n".encode("utf-8", "replace"))
            missing = isinstance(error, FileNotFoundError) and what == words[0]
            os._exit(NOT_FOUND if missing else NOT_RUNNABLE)


def _fork(work: Callable[[], None], channel: socket.socket) -> tuple[int, int]:
    """Run `work` in a child, which answers if it raises. Returns the child's id and a descriptor of it."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except (OSError, ValueError) as error:
            answer(channel, {"error": type(error).__name__, "text": str(error)})
        except Exception as error:  # noqa: BLE001 - the host quotes it
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(FAILED)
    try:
        return process, os.pidfd_open(process)
    except OSError:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise


def _listen(channel: socket.socket, port: int) -> None:
    """Send the host a socket that listens inside the box."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(channel, [b"l"], [listener.fileno()])
    channel.close()


def _read_some(descriptor: int, size: int) -> bytes | None:
    """Return bytes, b"" at the end, and None if the pipe is empty."""
    try:
        return os.read(descriptor, min(size, CHUNK))
    except BlockingIOError:
        return None


def _read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        sys.stderr.write(f"box: {error}\n")
        sys.exit(FAILED)
