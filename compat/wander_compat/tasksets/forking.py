"""Starts Python programs of a task set by fork, from a process that has already imported their modules.

The library starts a tool server, a probe and a program for each rollout. Each of them would import the
library again, which takes seconds of CPU. `python -m wander_compat.tasksets.forking SOCKET MODULE...` imports
once and forks. The process that the library sees (`fork_client.py`) hands over its files, folder and
variables, waits, and exits with the program's status. If it is killed, the program gets SIGTERM, and later
SIGKILL.

A sandbox does not allow Unix sockets with a path. There, the two processes communicate over its own loopback
network, and the program opens the files of the other process through `/proc`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

GRACE = 5.0
"""Seconds that a program gets to exit by itself."""
_LARGEST_REQUEST = 4_000_000


@dataclass
class _Programs:
    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    running: dict[int, socket.socket] = field(default_factory=dict)
    ending: dict[int, float] = field(default_factory=dict)
    """Programs whose client is gone, and the time when they are killed."""

    def serve(self) -> None:
        """Fork a program for each client until standard input ends. The worker holds it open."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self._end)
        while True:
            for key, _ in self.selector.select(0.02 if self.running else None):
                key.data(key.fileobj)
            self._reap()

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
        if client.family == socket.AF_UNIX:
            data, files, *_ = socket.recv_fds(client, min(size, _LARGEST_REQUEST), 3)
        else:
            data, files = client.recv(min(size, _LARGEST_REQUEST)), []
        while len(data) < size and (more := client.recv(size - len(data))):
            data += more
        whole = 0 < size <= len(data)  # false if the client was killed during its request
        pid = os.fork() if whole else 0
        if whole and pid == 0:
            self._run(json.loads(data), files)
        for file in files:
            os.close(file)
        if not whole:
            client.close()
            return
        self.running[pid] = client
        self.selector.register(client, selectors.EVENT_READ, lambda _: self._forsake(pid))

    def _run(self, request: dict[str, Any], files: list[int]) -> None:
        """Become the program. Never returns."""
        status = 1
        try:
            die_with_parent()
            os.setsid()
            self.listener.close()
            for connection in self.running.values():
                connection.close()
            for number, file in enumerate(files or _open_files_of(request["pid"])):
                os.dup2(file, number)
                os.close(file)  # otherwise processes left by the program would hold its output open
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            tempfile.tempdir = None
            random.seed(0)
            run_python(request["argv"])
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if error.code is not None and not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        except BaseException:  # noqa: BLE001 - the program's error, reported like an interpreter does
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _forsake(self, pid: int) -> None:
        self.selector.unregister(self.running[pid])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
        self.ending[pid] = time.monotonic() + GRACE

    def _reap(self) -> None:
        for pid in [pid for pid, due in self.ending.items() if due < time.monotonic()]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            client = self.running.pop(pid)
            if self.ending.pop(pid, None) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # its children may have ignored SIGTERM
            else:
                self.selector.unregister(client)
                with contextlib.suppress(OSError):
                    client.send(bytes([os.waitstatus_to_exitcode(status) % 256]))
            client.close()

    def _end(self, _: Any) -> None:
        for pid in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)


def _open_files_of(pid: int) -> list[int]:
    """Open the standard output and error of another process in this sandbox, and an empty input."""
    shown = [os.stat(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
    output = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_APPEND)
    # Two separate openings of the same file would overwrite each other.
    error = (
        os.dup(output)
        if os.path.samestat(*shown)
        else os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND)
    )
    return [os.open(os.devnull, os.O_RDONLY), output, error]


def listen(path: str) -> socket.socket:
    """Return a socket that listens at a path. Without Unix sockets, the file at the path contains a port."""
    fresh = f"{path}.new"
    try:
        listener = socket.socket(socket.AF_UNIX)
    except OSError:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        with open(fresh, "w") as file:
            file.write(str(listener.getsockname()[1]))
    else:
        listener.bind(fresh)
        listener.listen(128)
    os.rename(fresh, path)  # as soon as the file exists, a client can connect
    return listener


def run_python(arguments: list[str]) -> None:
    """Run a Python interpreter's arguments: a module, a string or a file."""
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - like the interpreter
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


def die_with_parent() -> None:
    """End this process when its parent exits, if the system supports that."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    """Listen, import, and fork. Clients wait while modules are imported."""
    die_with_parent()
    path, *modules = sys.argv[1:]
    listener = listen(path)
    for module in modules:
        with contextlib.suppress(Exception):  # the program itself will report the import error
            importlib.import_module(module)
    gc.freeze()
    _Programs(listener).serve()


if __name__ == "__main__":
    main()
