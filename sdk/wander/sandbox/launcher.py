"""The launcher, which replaces itself with bubblewrap: `python -I -S launcher.py PLAN`, where PLAN is a JSON
object.

The host starts this program because the following steps must happen in the child process, before bubblewrap,
and in this order: join the control groups, lower the limits, and open the files to show. If the host is root,
the launcher also makes the files accessible to another user and becomes that user. It runs before any
untrusted code, uses only the standard library, and keeps its process id.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take a fifth of the launcher's time
    from typing import Any

FIRST_DESCRIPTOR = 3
FAILED = 125
"""Exit status if no sandbox was created; the reason is on standard error."""
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18
_STAGE = "/tmp"  # noqa: S108 - hidden below a file system of this process
PROGRAM = f"{_STAGE}/program"
"""Folder for a bubblewrap that was installed as a Python package, if the host is root."""


def main(plan: dict[str, Any]) -> None:
    """Carry out the plan and become its command. Returns only by raising.

    - `groups`: files that this process writes its id to.
    - `descriptors`: descriptors to pass on, numbered from `FIRST_DESCRIPTOR` in this order.
    - `binds`: source, device and inode of each file or folder to show.
    - `uid`: first of the user ids that a root host uses, or null.
    - `program`: files to copy below `PROGRAM`, as target and source paths; only for root.
    - `limits`: soft and hard limits, by their names in `resource`.
    - `command`: command to become; a number in it stands for the descriptor of the bind with that index.
    """
    for procs in plan["groups"]:
        with open(procs, "w") as file:
            file.write(str(os.getpid()))
    # If memory runs short, the kernel should kill the sandbox first and the host last.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    _number(plan["descriptors"])
    os.umask(0o022)  # independent of the host's setting, so that nothing inside the sandbox depends on it
    if plan["uid"] is None:
        opened = [_open(*bind) for bind in plan["binds"]]
    else:
        opened = _stage(plan["binds"], plan["program"])
        _become(plan["uid"] + os.getpid())
    for descriptor in opened:
        os.set_inheritable(descriptor, True)  # bubblewrap closes each descriptor after mounting it
    for name, (soft, hard) in plan["limits"].items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)  # a limit cannot be raised
        resource.setrlimit(kind, (min(soft, hard), hard))
    command = [str(opened[word]) if isinstance(word, int) else word for word in plan["command"]]
    os.chdir("/")
    os.execv(command[0], command)  # noqa: S606 - there is no shell, on purpose


def _number(descriptors: list[int]) -> None:
    """Give the passed descriptors the same numbers in every process, independent of the host's open files."""
    above = max([FIRST_DESCRIPTOR + len(descriptors), *descriptors]) + 1
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    os.closerange(FIRST_DESCRIPTOR, above)
    for number, descriptor in enumerate(copies, FIRST_DESCRIPTOR):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _open(source: str, device: int, inode: int) -> int:
    """Open a file that the host decided to show; raises `OSError` if the path now leads to another file.

    The source contains no symbolic links. A different path behind the descriptor means that a link was
    inserted.
    """
    descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if (path, status.st_dev, status.st_ino) != (source, device, inode):
        raise OSError(f"`{source}` changed while the sandbox was started")
    return descriptor


def _stage(binds: list[tuple[str, int, int]], program: dict[str, str]) -> list[int]:
    """Mount the binds where another user can reach them, even from /root. Only this process sees these
    mounts."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)} ({what})")

    check(libc.unshare(_CLONE_NEWNS), "a mount namespace")
    check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    sources = [_open(*bind) for bind in binds]  # opened before a mount covers one of them
    copies = {place: _read(path) for place, path in program.items()}
    check(libc.mount(b"tmpfs", _STAGE.encode(), b"tmpfs", 0, b"mode=755,size=4m"), "a place for mounts")
    staged: list[int] = []
    for (path, *_), source in zip(binds, sources, strict=True):
        mode = os.fstat(source).st_mode
        if not mode & 0o004 or (stat.S_ISDIR(mode) and not mode & 0o001):
            raise PermissionError(f"`{path}` is private to root: run `chmod -R go+rX {path}`")
        target = f"{_STAGE}/{len(staged)}"
        if stat.S_ISDIR(mode):
            os.mkdir(target)
        else:
            open(target, "w").close()
        origin = f"/proc/self/fd/{source}".encode()
        check(libc.mount(origin, target.encode(), None, _MS_BIND | _MS_REC, None), path)
        staged.append(os.open(target, os.O_PATH))
        os.close(source)
    for place, content in copies.items():
        target = f"{PROGRAM}/{place}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, 0o755)  # noqa: S103 - another user runs it
    return staged


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _become(user: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (another user)") from error
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise PermissionError("this process is still root")


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - every error is reported on a single line
        sys.stderr.write(f"sandbox: {error}\n")
        sys.exit(FAILED)
