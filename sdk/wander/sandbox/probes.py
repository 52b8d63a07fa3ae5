"""Attempts to get out, made from inside; run by the self-test, by the tests, and by whoever wants to see.

Each probe returns what it got hold of, or raises what stopped it. They run in children of their own, since
some of them are killed. `SyscallStopped` is raised for a call that the filter answered: another error would
only say that the arguments were bad.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wander.sandbox.seccomp import CLONE_NEW_ANY, MACHINES
from wander.sandbox.syscalls import DENIED, JUDGED

Probe = Callable[[dict[str, Any]], object]
"""Takes what the host has prepared (`Bait` of `wander.worker.process.sandbox_check`)."""
_SECONDS = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class SyscallStopped(OSError):
    """The filter answered."""


def run(bait: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Run the probes, or those that the bait names in `only`; return for each `held`, whether it was stopped,
    and `how`.
    """
    chosen = {name: probe for name, probe in probes().items() if name in bait.get("only", probes())}
    return {name: _outcome(probe, bait) for name, probe in chosen.items()}


def probes() -> dict[str, Probe]:
    """Return every probe by its name."""
    found: dict[str, Probe] = {}
    for path in ("/etc/shadow", "/etc/passwd", "/proc/kcore", "/proc/kmsg", "/dev/mem"):
        found[f"read {path}"] = _read(path)
    for path in ("/sys", "/run", "/var", "/home", "/boot", "/proc/1/cwd/etc", "/proc/1/root/home"):
        found[f"list {path}"] = _list(path)
    for path in ("/usr/probe", "/probe", f"{sys.prefix}/probe", f"{os.path.dirname(os.__file__)}/probe"):
        found[f"write {path}"] = _write(path)
    for path in ("kernel/core_pattern", "vm/drop_caches", "net/ipv4/ip_forward", "kernel/hostname"):
        found[f"write /proc/sys/{path}"] = _write(f"/proc/sys/{path}")
    found["write /proc/sysrq-trigger"] = _write("/proc/sysrq-trigger")
    for path in ("kvm", "fuse", "net/tun", "userfaultfd", "kmsg", "vda", "sda"):
        found[f"open /dev/{path}"] = _write(f"/dev/{path}")
    for name in DENIED:
        found[f"call {name}"] = _call(name)
    for name, family, kind in _SOCKETS:
        found[f"socket {name}"] = _open_socket(family, kind)
    return found | {function.__name__.strip("_").replace("_", " "): function for function in _OTHERS}


_SOCKETS = (
    ("TCP", 2, 1),
    ("UDP", 2, 2),
    ("TCP over IPv6", 10, 1),
    ("ICMP", 2, 3),
    ("MPTCP", 2, 1),
    ("Unix", 1, 1),
    ("Unix datagram", 1, 2),
    ("netlink", 16, 3),
    ("packet", 17, 3),
    ("vsock", 40, 1),
    ("Bluetooth", 31, 3),
    ("kernel crypto", 38, 5),
    ("TIPC", 30, 1),
)


def _read(path: str) -> Probe:
    def probe(_: dict[str, Any]) -> object:
        with open(path, "rb") as file:
            return file.read(16) or _nothing()

    return probe


def _list(path: str) -> Probe:
    return lambda _: os.listdir(path) or _nothing()


def _write(path: str) -> Probe:
    def probe(_: dict[str, Any]) -> object:
        os.close(
            os.open(path, os.O_WRONLY | (0 if path.startswith(("/proc/", "/dev/")) else os.O_CREAT), 0o600)
        )
        return "opened for writing"

    return probe


def _call(name: str) -> Probe:
    def probe(_: dict[str, Any]) -> object:
        return _syscall(DENIED[name], 0, 0, 0, 0, 0, 0)

    return probe


def _open_socket(family: int, kind: int) -> Probe:
    def probe(_: dict[str, Any]) -> object:
        with contextlib.closing(_socket.socket(family, kind)):
            return "a socket"

    return probe


def _syscall(numbers: tuple[int, int | None], *arguments: int, refused: int = errno.EPERM) -> object:
    """Make a call with arguments that are harmless where it is allowed."""
    number = numbers[MACHINES[platform.machine()].column]
    if number is None:
        raise SyscallStopped(errno.ENOSYS, "this machine has no such call")
    result = _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(each) for each in arguments))
    failed = ctypes.get_errno()
    if result != 0 and failed == refused:
        raise SyscallStopped(failed, os.strerror(failed))
    return f"returned {result}, {errno.errorcode.get(failed, failed)}"


def _nothing() -> object:
    raise FileNotFoundError(errno.ENOENT, "nothing is there")


def _secret_file(bait: dict[str, Any]) -> object:
    return Path(bait["file"]).read_text()


def _secret_file_by_proc(bait: dict[str, Any]) -> object:
    return Path(f"/proc/1/root{bait['file']}").read_text()


def _secret_variable(bait: dict[str, Any]) -> object:
    seen = json.dumps(dict(os.environ))
    for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/cmdline", "/proc/self/cmdline"):
        with contextlib.suppress(OSError):
            seen += Path(path).read_bytes().decode("utf-8", "replace")
    return "seen" if bait["secret"] in seen else _nothing()


def _secret_over_loopback(bait: dict[str, Any]) -> object:
    import socket

    with socket.socket() as connection:  # what the worker's code gets, and not the system call alone
        connection.settimeout(_SECONDS)
        connection.connect(("127.0.0.1", bait["port"]))
        return connection.recv(64)


def _secret_in_host_process(bait: dict[str, Any]) -> object:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if bait["secret"].encode() in Path("/proc", name, "cmdline").read_bytes():
                return f"in process {name}"
    return _nothing()


def _name_resolution(_: dict[str, Any]) -> object:
    import socket

    return socket.getaddrinfo("localhost.example.org", 80)


def _own_process_namespace(_: dict[str, Any]) -> object:
    return _nothing() if Path("/proc/1/comm").read_text().strip() == "bwrap" else "pid 1 is another's"


def _inherited_files(_: dict[str, Any]) -> object:
    """Folders and files of the host among the open descriptors."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mode = os.fstat(int(name)).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISBLK(mode):
                target = os.readlink(f"/proc/self/fd/{name}")
                if not target.startswith("/tmp/") and not _is_note(int(name), target):  # noqa: S108 - its own
                    return target
    return _nothing()


def _is_note(descriptor: int, target: str) -> bool:
    """Tell whether a descriptor is the memory that the host shares with the worker, sealed in its size."""
    if not target.startswith("/memfd:note "):
        return False
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    return bool(seals & fcntl.F_SEAL_GROW and seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_SEAL)


def _datagram_pair(_: dict[str, Any]) -> object:
    return _socket.socketpair(1, 2)


def _connect_of_a_pair(_: dict[str, Any]) -> object:
    _socket.socketpair()[0].connect("/tmp/any")  # noqa: S108
    return "connected"


def _sendto_with_an_address(_: dict[str, Any]) -> object:
    return _socket.socketpair(1, 5)[0].sendto(b"x", "/tmp/any")  # noqa: S108


def _clone_of_a_namespace(_: dict[str, Any]) -> object:
    return _syscall(JUDGED["clone"], CLONE_NEW_ANY & 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)


def _clone3(_: dict[str, Any]) -> object:
    return _syscall(JUDGED["clone3"], 0, 0, refused=errno.ENOSYS)


def _typing_into_a_terminal(_: dict[str, Any]) -> object:
    return _syscall(JUDGED["ioctl"], 0, 0x5412, 0)


def _typing_by_a_longer_number(_: dict[str, Any]) -> object:
    return _syscall(JUDGED["ioctl"], 0, 0x1_0000_5412, 0)


def _console_selection(_: dict[str, Any]) -> object:
    return _syscall(JUDGED["ioctl"], 0, 0x541C, 0)


def _calls_of_x32(_: dict[str, Any]) -> object:
    if platform.machine() != "x86_64":
        return _nothing()
    return _libc.syscall(ctypes.c_long(0x40000000 | 39))  # getpid


def _calls_of_32_bits(_: dict[str, Any]) -> object:
    if platform.machine() != "x86_64":
        return _nothing()
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # eax = 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def _becoming_root(_: dict[str, Any]) -> object:
    os.setuid(0)
    return "user 0"


def _becoming_roots_group(_: dict[str, Any]) -> object:
    os.setgid(0)
    return "group 0"


def _leaving_groups(_: dict[str, Any]) -> object:
    os.setgroups([])
    return "no groups"


def _making_a_device(_: dict[str, Any]) -> object:
    os.mknod("/tmp/device", 0o600 | stat.S_IFBLK, os.makedev(254, 0))  # noqa: S108
    return "a disk"


def _raising_a_limit(_: dict[str, Any]) -> object:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
    return "more processes"


def _memory_of_the_worker(_: dict[str, Any]) -> object:
    """What a model's code in a REPL would like to read: the answers. The worker is this child's parent."""
    with open(f"/proc/{os.getppid()}/mem", "rb") as file:
        return file.name


def _descriptors_of_the_worker(_: dict[str, Any]) -> object:
    return os.listdir(f"/proc/{os.getppid()}/fd")


def _killing_the_first_process(_: dict[str, Any]) -> object:
    os.kill(1, signal.SIGKILL)  # accepted, and without effect
    return _nothing()


def _a_file_too_long(bait: dict[str, Any]) -> object:
    with open("/tmp/long", "wb") as file:  # noqa: S108
        try:
            os.truncate(file.fileno(), bait["file_limit"] + 1)
            return "a long file"
        finally:
            os.unlink("/tmp/long")  # noqa: S108


def _more_than_tmp_holds(bait: dict[str, Any]) -> object:
    return _fill("/tmp", bait["tmp_limit"], bait["file_limit"])  # noqa: S108


def _more_than_shm_holds(bait: dict[str, Any]) -> object:
    return _fill("/dev/shm", bait["shm_limit"], bait["file_limit"])  # noqa: S108


def _fill(folder: str, size: int, most: int) -> object:
    """Write more than a folder holds, in files that are not too long."""
    block, written = b"\0" * (1 << 20), 0
    names: list[str] = []
    try:
        while written <= size:
            names.append(f"{folder}/fill-{len(names)}")
            with open(names[-1], "wb", buffering=0) as file:
                for _ in range(max(1, most // len(block))):
                    written += file.write(block)
                    if written > size:
                        break
        return f"{written} bytes"
    finally:
        for name in names:
            os.unlink(name)


def _more_processes(bait: dict[str, Any]) -> object:
    children: list[int] = []
    try:
        for _ in range(bait["process_limit"] + 1):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
        return f"{len(children)} processes"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


_OTHERS: tuple[Probe, ...] = (
    _secret_file,
    _secret_file_by_proc,
    _secret_variable,
    _secret_over_loopback,
    _secret_in_host_process,
    _name_resolution,
    _own_process_namespace,
    _inherited_files,
    _datagram_pair,
    _connect_of_a_pair,
    _sendto_with_an_address,
    _clone_of_a_namespace,
    _clone3,
    _typing_into_a_terminal,
    _typing_by_a_longer_number,
    _console_selection,
    _calls_of_x32,
    _calls_of_32_bits,
    _becoming_root,
    _becoming_roots_group,
    _leaving_groups,
    _making_a_device,
    _raising_a_limit,
    _memory_of_the_worker,
    _descriptors_of_the_worker,
    _killing_the_first_process,
    _a_file_too_long,
    _more_than_tmp_holds,
    _more_than_shm_holds,
    _more_processes,
)


def _outcome(probe: Probe, bait: dict[str, Any]) -> dict[str, Any]:
    """Run a probe in a child; what kills the child has stopped it too."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for line in _tell(probe, bait):
            os.write(writing, line.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        ready, _, _ = select.select([pipe], [], [], _SECONDS)
        said = pipe.read(65536) if ready else b""
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if said:
        found: dict[str, Any] = json.loads(said)
        return found
    if not ready:
        return {"held": False, "how": f"no end within {_SECONDS:g} s"}
    return {"held": True, "how": f"killed by {signal.Signals(os.WTERMSIG(status)).name}"}


def _tell(probe: Probe, bait: dict[str, Any]) -> Iterator[str]:
    try:
        got = probe(bait)
        yield json.dumps({"held": False, "how": f"got {got!r}"[:200]})
    except OSError as error:
        yield json.dumps({"held": True, "how": errno.errorcode.get(error.errno or 0, str(error))})
    except Exception as error:  # noqa: BLE001 - setrlimit raises ValueError; the outcome tells
        yield json.dumps({"held": True, "how": f"{type(error).__name__}: {error}"[:200]})


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.load(sys.stdin))) + "\n")
