"""The first program in the sandbox: `python -s -P -S inside.py PLAN`, PLAN being a JSON object.

It checks that it is confined, lowers what can only be lowered from inside, finds the packages without reading
a `.pth` file, and becomes the worker. Standard library alone: the environment's packages come after it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import runpy
import site
import socket
import sys
from typing import Any, ClassVar

UNCONFINED = 126
"""The exit status when this is no sandbox."""
_PR_SET_DUMPABLE = 4


def main(plan: dict[str, Any]) -> None:
    """Become what the plan names."""
    _require_confinement()
    # Counted in this user namespace, so that neither the user's other processes nor other sandboxes count.
    resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes"], plan["processes"]))
    # What the environment starts (a REPL with a model's code) runs as the same user: keep it out of the
    # memory and the descriptors of this process, where the answers are.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.path += plan["path"]
    sys.prefix = sys.exec_prefix = plan["prefix"]
    site.setquit()
    site.sethelper()
    if plan["calls"] is not None:
        os.set_inheritable(plan["calls"], False)
        HostSocket.host = socket.socket(fileno=plan["calls"])
        HostSocket.endpoint = (plan["calls_host"], plan["calls_port"])
        socket.socket = HostSocket  # type: ignore[misc]
    sys.argv = plan["arguments"]
    if plan["module"] is not None:
        runpy.run_module(plan["module"], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(plan["arguments"][0], run_name="__main__")


def _require_confinement() -> None:
    """End unless the kernel says that the filter is on and that there are no rights to lose."""
    with open("/proc/self/status") as file:
        found = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wanted = {"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16}
    wrong = [name for name, value in wanted.items() if found.get(name, "").strip() != value]
    if wrong or os.getuid() == 0:
        sys.stderr.write(f"sandbox: not confined: {', '.join(wrong) or 'root'}\n")
        sys.exit(UNCONFINED)


class HostSocket(socket.socket):
    """A TCP socket that can connect to the host's endpoint alone: a pair of sockets, one of them the host's.

    There is no network here, and the kernel makes no socket that could reach one. Code that brings its own
    OpenAI client finds the endpoint in `OPENAI_BASE_URL` all the same.
    """

    host: ClassVar[socket.socket]
    """Takes the ends that are the host's."""
    endpoint: ClassVar[tuple[str, int]]
    _far: socket.socket | None = None
    _paired = False

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        """Take the place of `socket.socket`."""
        stream = type == -1 or type & 0xF == socket.SOCK_STREAM
        if fileno is not None or not stream or family not in (-1, socket.AF_INET, socket.AF_INET6):
            super().__init__(family, type, proto, fileno)
            return
        near, self._far = socket.socketpair()
        super().__init__(near.family, near.type, near.proto, near.detach())
        self._paired = True

    def connect(self, address: Any) -> None:
        """Connect; raises `OSError` for any other address than the endpoint's."""
        if not self._paired:
            super().connect(address)
        elif self._far is None:
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        elif not isinstance(address, tuple) or address[:2] != self.endpoint:
            raise OSError(errno.ENETUNREACH, "Network is unreachable: the sandbox has none")
        else:
            socket.send_fds(self.host, [b"c"], [self._far.fileno()])
            self._far.close()
            self._far = None

    def connect_ex(self, address: Any) -> int:
        """Connect, and return the error's number."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def close(self) -> None:
        """Close both ends that are still here."""
        if self._far is not None:
            self._far.close()
        super().close()

    def setsockopt(self, *arguments: Any) -> None:
        """Set an option; those of TCP and IP mean nothing here."""
        if not self._paired or arguments[0] == socket.SOL_SOCKET:
            super().setsockopt(*arguments)

    def getpeername(self) -> Any:
        """Return the endpoint's address once connected."""
        return self.endpoint if self._paired and self._far is None else super().getpeername()

    def getsockname(self) -> Any:
        """Return an address as TCP sockets have one."""
        return ("127.0.0.1", 0) if self._paired else super().getsockname()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
