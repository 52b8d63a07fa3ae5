"""The first program in the sandbox: `python -s -P -S inside.py PLAN`, PLAN being a JSON object.

It checks that it is confined, lowers what can only be lowered from inside, finds the packages without reading
a `.pth` file, says that the sandbox is complete, and becomes the worker. Standard library alone: the
environment's packages come after it.
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
"""The exit status when this is no sandbox."""
_PR_SET_DUMPABLE = 4


def main(plan: dict[str, Any]) -> None:
    """Become what the plan names.

    - `processes`: the most processes and threads.
    - `files`: the most open files of a process.
    - `path`, `prefix`, `executable`: where packages are, the virtual environment's folder, and its Python.
    - `keep`: descriptors that the worker uses; every other one is closed.
    - `host`: null, or a descriptor of a socket to the host, and the address at which programs in here find
      the host's endpoint. The worker then gets `--fd`, a connection to the host.
    - `ready`: a descriptor that learns that all of this has worked.
    - `module` and `arguments`, or `arguments` alone, which then begin with a file.
    """
    _require_confinement()
    # Counted in this user namespace, so that neither the user's other processes nor other sandboxes count.
    resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes"], plan["processes"]))
    # What the environment starts (a REPL with a model's code) runs as the same user: keep it out of the
    # memory and the descriptors of this process, where the answers are.
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
    # Not before: a process may send as many descriptors as it may open, and the kernel counts those under way
    # for all sandboxes of a user. Another one, whose limit is this, could have used them up.
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
    """End unless the kernel says that the filter is on and that there are no rights to lose."""
    with open("/proc/self/status") as file:
        found = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wanted = {"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16}
    wrong = [name for name, value in wanted.items() if found.get(name, "").strip() != value]
    if wrong or os.getuid() == 0:
        sys.stderr.write(f"sandbox: not confined: {', '.join(wrong) or 'root'}\n")
        sys.exit(UNCONFINED)


def _close_others(kept: Iterable[int]) -> None:
    """Close every descriptor but the standard ones and those that are kept."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 30)


def _connect(host: int, address: str, port: int) -> int:
    """Give the host two sockets that listen in here, and return a descriptor of a connection to the first.

    The host accepts that one connection, and on the second socket those of programs that ask its endpoint. So
    it reaches into this network namespace, and no socket of its own namespace is left in here.
    """
    with (
        socket.socket(fileno=host) as channel,
        socket.create_server((address, port)) as endpoint,  # first, or the other might draw its port
        socket.create_server((address, 0)) as control,
    ):
        connection = socket.create_connection(control.getsockname())
        socket.send_fds(channel, [b"l"], [control.fileno(), endpoint.fileno()])
    return connection.detach()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
