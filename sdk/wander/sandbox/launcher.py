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
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take a fifth of the launcher's time
    from typing import Any

FIRST_DESCRIPTOR = 3
FAILED = 125
"""Exit status if no sandbox was created; the reason is on standard error."""
_CLONE_NEWNS, _CLONE_NEWUSER, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x10000000, 0x1000, 0x4000, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls without a function in the C library; the same on all machines."""
_OPEN_TREE_CLONE, _EMPTY_PATH, _MOVE_EMPTY_PATH, _AT_FDCWD = 1, 0x1000, 4, -100
_ATTR_RDONLY, _ATTR_IDMAP = 0x1, 0x100000
_STAGE = "/tmp"  # noqa: S108 - hidden below a file system of this process
_LAYERS = f"{_STAGE}/layers"
PROGRAM = f"{_STAGE}/program"
"""Folder for a bubblewrap that was installed as a Python package, if the host is root."""


def main(plan: dict[str, Any]) -> None:
    """Carry out the plan and become its command. Returns only by raising.

    - `groups`: files that this process writes its id to.
    - `descriptors`: descriptors to pass on, numbered from `FIRST_DESCRIPTOR` in this order.
    - `binds`: source, device and inode of each file or folder to show.
    - `uid`: first of the user ids that a root host uses, or null.
    - `program`: files to copy below `PROGRAM`, as target and source paths; only for root.
    - `overlay`: null, or the index of a bind and a size. The bind becomes the lower layer of a file system
      whose changes stay in memory, at most that many bytes, and whose index follows those of the binds.
    - `limits`: soft and hard limits, by their names in `resource`.
    - `ignores`: names of signals that the command begins with ignoring; optional.
    - `host`: process id of the parent with which this process ends; optional.
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
    binds, overlay = plan["binds"], plan.get("overlay")
    if plan["uid"] is not None:
        user = plan["uid"] + os.getpid()
        binds = _stage(binds, plan["program"], overlay and overlay[0], user)
        _become(user)
    if overlay is not None:
        _unshare_as_ordinary_user()
    opened = [_open(*bind) for bind in binds]
    if overlay is not None:
        opened.append(_mount_overlay(opened[overlay[0]], overlay[1], plan["uid"] is not None))
    for descriptor in opened:
        os.set_inheritable(descriptor, True)  # bubblewrap closes each descriptor after mounting it
    for name, (soft, hard) in plan["limits"].items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            hard = min(hard, most)  # a limit cannot be raised
        resource.setrlimit(kind, (min(soft, hard), hard))
    command = [str(opened[word]) if isinstance(word, int) else word for word in plan["command"]]
    if "host" in plan:
        # Last, because a new user clears it. bubblewrap sets it again, but the host may be gone before that.
        _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "end with the host")
        if os.getppid() != plan["host"]:
            sys.exit(FAILED)
    for name in plan.get("ignores", ()):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
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


def _stage(
    binds: list[tuple[str, int, int]], program: dict[str, str], lower: int | None, user: int
) -> list[tuple[str, int, int]]:
    """Mount the binds where another user can reach them, even from /root, and return the new binds.

    Only this process sees these mounts. The bind with the index `lower` shows the files of its owner as files
    of `user`.
    """
    _check(_libc().unshare(_CLONE_NEWNS), "a mount namespace")
    _check(_libc().mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    sources = [_open(*bind) for bind in binds]  # opened before a mount covers one of them
    copies = {place: _read(path) for place, path in program.items()}
    _check(_libc().mount(b"tmpfs", _STAGE.encode(), b"tmpfs", 0, b"mode=755,size=4m"), "a place for mounts")
    os.mkdir(_LAYERS)
    staged: list[tuple[str, int, int]] = []
    for index, ((path, *_), source) in enumerate(zip(binds, sources, strict=True)):
        status = os.fstat(source)
        is_folder = stat.S_ISDIR(status.st_mode)
        if not status.st_mode & 0o004 or (is_folder and not status.st_mode & 0o001):
            raise PermissionError(f"`{path}` is private to root: run `chmod -R go+rX {path}`")
        target = f"{_STAGE}/{index}"
        if is_folder:
            os.mkdir(target)
        else:
            open(target, "w").close()
        if index == lower:
            _mount_owned(source, target, status.st_uid, status.st_gid, user)
        else:
            origin = f"/proc/self/fd/{source}".encode()
            _check(_libc().mount(origin, target.encode(), None, _MS_BIND | _MS_REC, None), path)
        mounted = os.stat(target)
        staged.append((target, mounted.st_dev, mounted.st_ino))
        os.close(source)
    for place, content in copies.items():
        target = f"{PROGRAM}/{place}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, 0o755)  # noqa: S103 - another user runs it
    return staged


def _mount_owned(source: int, target: str, uid: int, gid: int, user: int) -> None:
    """Mount a folder read-only, with the files of `uid` and `gid` as files of `user` (an ID-mapped mount)."""
    import ctypes

    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # it only holds a user namespace with the mapping
        os.close(done[1])
        _libc().unshare(_CLONE_NEWUSER)
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for name, number in (("uid_map", uid), ("gid_map", gid)):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(f"{number} {user} 1")
    mapping = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    for descriptor in (*ready, *done):
        os.close(descriptor)
    os.waitpid(child, 0)
    tree = _check(
        _libc().syscall(_OPEN_TREE, source, b"", _EMPTY_PATH | _OPEN_TREE_CLONE), "a copy of a mount"
    )
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_IDMAP, 0, 0, mapping)
    size = ctypes.sizeof(attributes)
    changed = _libc().syscall(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, ctypes.byref(attributes), size)
    _check(changed, "an ID-mapped mount")
    moved = _libc().syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _MOVE_EMPTY_PATH)
    _check(moved, "an ID-mapped mount")
    os.close(tree)
    os.close(mapping)


def _unshare_as_ordinary_user() -> None:
    """Enter new user and mount namespaces, in which this user may mount file systems."""
    user, group = os.getuid(), os.getgid()
    _check(_libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "its own maps")
    _check(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "namespaces for the box's files")
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    _check(_libc().mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")


def _mount_overlay(lower: int, size: int, is_staged: bool) -> int:
    """Return a descriptor of a file system of a read-only layer and changes in memory."""
    place = _LAYERS if is_staged else _STAGE
    options = f"mode=755,size={size},nr_inodes={size // 4096}".encode()
    _check(_libc().mount(b"tmpfs", place.encode(), b"tmpfs", 0, options), "memory for the box's files")
    for name in ("upper", "work", "all"):
        os.mkdir(f"{place}/{name}")
    layers = f"lowerdir=/proc/self/fd/{lower},upperdir={place}/upper,workdir={place}/work,userxattr"
    mounted = _libc().mount(b"overlay", f"{place}/all".encode(), b"overlay", 0, layers.encode())
    _check(mounted, "an overlay of the box's files")
    return os.open(f"{place}/all", os.O_PATH)


def _libc() -> Any:
    import ctypes  # imported here, because it is only needed to mount something

    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    import ctypes

    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")
    return result


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
