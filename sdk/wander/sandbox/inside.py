"""The first program in the sandbox: `python -s -P -S inside.py PLAN`, where PLAN is a JSON object.

It checks that it is confined, lowers the limits that can only be lowered from inside, sets the import path
without reading `.pth` files, reports that the sandbox is complete, and becomes the worker. It uses only the
standard library, because the environment's packages become importable later.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import site
import socket
import sys
from collections.abc import Iterable
from typing import Any

UNCONFINED = 126
"""Exit status if the process is not confined."""
_PR_SET_DUMPABLE = 4


def main(plan: dict[str, Any]) -> None:
    """Become the program that the plan names.

    - `processes`: maximum number of processes and threads.
    - `files`: maximum number of open files of a process.
    - `path`, `prefix`, `executable`: folders of packages, the virtual environment's folder, and its Python.
    - `keep`: descriptors that the worker uses; all others are closed.
    - `host`: null, or a descriptor of a socket to the host, and the address where programs in the sandbox
      find the host's endpoint. The worker then gets `--fd`, a connection to the host.
    - `ready`: descriptor that reports that all of these steps succeeded.
    - `module` and `arguments`, or only `arguments`, which then begin with a file.
    """
    _require_confinement()
    # The kernel counts processes per user namespace, so this limit excludes the user's other processes and
    # other sandboxes.
    resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes"], plan["processes"]))
    # Programs that the environment starts (such as a REPL with a model's code) run as the same user. This
    # setting keeps them from reading the memory and descriptors of this process, which contain the answers.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    host = plan["host"] or ()
    _close_others([*plan["keep"], plan["ready"], *host[:1]])
    sys.path += plan["path"]
    sys.prefix = sys.exec_prefix = plan["prefix"]
    sys.executable = plan["executable"]
    site.setquit()
    site.sethelper()
    sys.argv = plan["arguments"]
    if host:
        sys.argv += ["--fd", str(_connect(*host))]
    # This limit is set last. A process may send as many descriptors as it may open, and the kernel counts
    # descriptors in transit for all sandboxes of a user. Another sandbox with the same limit could have used
    # them up.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = plan["files"] if most == resource.RLIM_INFINITY else min(plan["files"], most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.write(plan["ready"], b"1")
    os.close(plan["ready"])
    if plan["module"] is not None:
        runpy.run_module(plan["module"], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(plan["arguments"][0], run_name="__main__")


def _require_confinement() -> None:
    """Exit unless the kernel confirms that the filter is active and that the process has no capabilities."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wanted = {"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16}
    wrong = [name for name, value in wanted.items() if status.get(name, "").strip() != value]
    if wrong or os.getuid() == 0:
        sys.stderr.write(f"sandbox: not confined: {', '.join(wrong) or 'root'}\n")
        sys.exit(UNCONFINED)


def _close_others(kept: Iterable[int]) -> None:
    """Close all descriptors except the standard streams and the kept ones."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 30)


def _connect(host: int, address: str, port: int) -> int:
    """Send the host two listening sockets, and return a descriptor of a connection to the first.

    The host accepts this connection on the first socket. On the second socket, it accepts connections of
    programs that call its endpoint. The host can then reach into this network namespace, and no socket of
    the host's own namespace remains in here.
    """
    with (
        socket.socket(fileno=host) as channel,
        # created first, because the other socket's random port could be the same
        socket.create_server((address, port)) as endpoint,
        socket.create_server((address, 0)) as control,
    ):
        connection = socket.create_connection(control.getsockname())
        socket.send_fds(channel, [b"l"], [control.fileno(), endpoint.fileno()])
    return connection.detach()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
