"""Turns itself into bubblewrap: `python -I -S launcher.py PLAN`, PLAN being a JSON object.

The host starts it because what it does has to happen in the child, before bubblewrap, and in this order: join
the control groups, lower the limits, and, where the host is root, show the folders to another user and become
that user. It runs before anything untrusted does, with the standard library alone, and keeps its process id.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would cost a fifth of the launcher's time
    from typing import Any

FAILED = 125
"""The exit status when no sandbox was made; the reason is on standard error."""
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18
STAGE = "/tmp"  # noqa: S108 - covered by a file system of this process's own


def main(plan: dict[str, Any]) -> None:
    """Carry out the plan; returns only by raising."""
    for procs in plan["groups"]:
        with open(procs, "w") as file:
            file.write(str(os.getpid()))
    # Where memory runs short, the sandbox goes first and the host last.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    for name, (soft, hard) in plan["limits"].items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)  # a limit can only be lowered
        resource.setrlimit(kind, (min(soft, hard), hard))
    if plan["uid"] is not None:
        _show(plan["binds"])
        _become(plan["uid"] + os.getpid())
    os.chdir("/")
    os.execv(plan["command"][0], plan["command"])  # noqa: S606 - there is no shell, on purpose


def stage_path(index: int) -> str:
    """Return where a root launcher shows the bind of that number."""
    return f"{STAGE}/{index}"


def _show(paths: list[str]) -> None:
    """Mount the paths where another user can reach them, even out of /root; seen by this process alone."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)} ({what})")

    check(libc.unshare(_CLONE_NEWNS), "a mount namespace")
    check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    opened = [os.open(path, os.O_PATH) for path in paths]  # before one of them is covered
    check(libc.mount(b"tmpfs", STAGE.encode(), b"tmpfs", 0, b"mode=755,size=1m"), "a place for mounts")
    for index, fd in enumerate(opened):
        mode = os.fstat(fd).st_mode
        if not mode & 0o004 or (stat.S_ISDIR(mode) and not mode & 0o001):
            raise PermissionError(f"`{paths[index]}` is private to root: run `chmod -R go+rX {paths[index]}`")
        target = stage_path(index)
        if stat.S_ISDIR(mode):
            os.mkdir(target)
        else:
            open(target, "w").close()
        source = f"/proc/self/fd/{fd}".encode()
        check(libc.mount(source, target.encode(), None, _MS_BIND | _MS_REC, None), paths[index])


def _become(user: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (another user)") from error
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise PermissionError("this process is root still")


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - told in one line, whatever it is
        sys.stderr.write(f"sandbox: {error}\n")
        sys.exit(FAILED)
