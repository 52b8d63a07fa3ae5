"""Attempts to escape from the sandbox, made from inside of it.

Each probe returns the resource that it reached, or raises the error that stopped it. Probes run in child
processes, because some of them are killed. `SyscallStopped` is raised if the filter answered a call; any
other error could mean that the arguments were wrong.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wander.sandbox.seccomp import CLONE_NEW_ANY, MACHINES
from wander.sandbox.syscalls import DENIED, JUDGED

Probe = Callable[[dict[str, Any]], object]
"""Function that takes the host's preparations (`bait` of `test_sandbox_probes`)."""
_SECONDS = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class SyscallStopped(OSError):
    """Raised if the filter answered a call."""


def run(bait: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Run all probes, or only the probes that `bait["only"]` names.

    Returns the outcome of each probe by name: `held` is true if the sandbox stopped it, and `how` says what
    happened.
    """
    chosen = {name: probe for name, probe in probes().items() if name in bait.get("only", probes())}
    return {name: _outcome(probe, bait) for name, probe in chosen.items()}


def probes() -> dict[str, Probe]:
    """Return all probes by name."""
    found: dict[str, Probe] = {}
    for path in ("/etc/shadow", "/etc/passwd", "/proc/kcore", "/proc/kmsg", "/dev/mem"):
        found[f"read {path}"] = partial(_read, path)
    for path in ("/sys", "/run", "/var", "/home", "/boot", "/proc/1/cwd/etc", "/proc/1/root/home"):
        found[f"list {path}"] = partial(_list, path)
    for path in ("/usr/probe", "/probe", f"{sys.prefix}/probe", f"{os.path.dirname(os.__file__)}/probe"):
        found[f"write {path}"] = partial(_write, path)
    for path in ("kernel/core_pattern", "vm/drop_caches", "net/ipv4/ip_forward", "kernel/hostname"):
        found[f"write /proc/sys/{path}"] = partial(_write, f"/proc/sys/{path}")
    found["write /proc/sysrq-trigger"] = partial(_write, "/proc/sysrq-trigger")
    for path in ("kvm", "fuse", "net/tun", "userfaultfd", "kmsg", "vda", "sda"):
        found[f"open /dev/{path}"] = partial(_write, f"/dev/{path}")
    for name in DENIED:
        found[f"call {name}"] = partial(_call, name)
    for name, family, kind, protocol in _SOCKETS:
        found[f"socket {name}"] = partial(_open_socket, family, kind, protocol)
    return found | _OTHERS


_SOCKETS = (
    ("UDP", 2, 2, 0),
    ("UDP over IPv6", 10, 2, 0),
    ("ICMP", 2, 3, 1),
    ("ping", 2, 2, 1),
    ("MPTCP", 2, 1, 262),
    ("SCTP", 2, 1, 132),
    ("SMC", 43, 1, 0),
    ("Unix", 1, 1, 0),
    ("Unix datagram", 1, 2, 0),
    ("netlink", 16, 3, 0),
    ("packet", 17, 3, 0),
    ("vsock", 40, 1, 0),
    ("Bluetooth", 31, 3, 0),
    ("kernel crypto", 38, 5, 0),
    ("TIPC", 30, 1, 0),
    ("XDP", 44, 3, 0),
)


def _read(path: str, _: dict[str, Any]) -> object:
    with open(path, "rb") as file:
        return file.read(16) or _nothing()


def _list(path: str, _: dict[str, Any]) -> object:
    return os.listdir(path) or _nothing()


def _write(path: str, _: dict[str, Any]) -> object:
    made = 0 if path.startswith(("/proc/", "/dev/")) else os.O_CREAT
    os.close(os.open(path, os.O_WRONLY | made, 0o600))
    return "opened for writing"


def _call(name: str, _: dict[str, Any]) -> object:
    return _syscall(DENIED[name], 0, 0, 0, 0, 0, 0)


def _write_elsewhere(_: dict[str, Any]) -> object:
    """Create a file on every mount except the two with a limited size."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place not in ("/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                os.mknod(f"{place}/probe")
                return f"a file in {place}"
    return _nothing()


def _open_socket(family: int, kind: int, protocol: int, _: dict[str, Any]) -> object:
    with contextlib.closing(_socket.socket(family, kind, protocol)):
        return "a socket"


def _connect_to(address: tuple[Any, ...], _: dict[str, Any]) -> object:
    with contextlib.closing(_socket.socket(10 if ":" in address[0] else 2, 1)) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(address)
        return "a connection"


def _do(got: str, call: Callable[..., object], *arguments: object) -> Probe:
    """Return a probe that makes a call and returns `got` if the call succeeds."""

    def probe(_: dict[str, Any]) -> object:
        call(*arguments)
        return got

    return probe


def _syscall(numbers: tuple[int, int | None], *arguments: int, refused: int = errno.EPERM) -> object:
    """Make a system call with arguments that are harmless if it is allowed."""
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


def _secret_variable(bait: dict[str, Any]) -> object:
    seen = json.dumps(dict(os.environ))
    for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/cmdline", "/proc/self/cmdline"):
        with contextlib.suppress(OSError):
            seen += Path(path).read_bytes().decode("utf-8", "replace")
    return "seen" if bait["secret"] in seen else _nothing()


def _name_of_a_socket(bait: dict[str, Any]) -> object:
    """Check with every socket here whether a host socket listens under a name; the error of `connect` can
    reveal it."""
    pair = _socket.socketpair()
    for descriptor in (*map(int, os.listdir("/proc/self/fd")), pair[0].fileno()):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                asked = _socket.socket(fileno=os.dup(descriptor))
                if asked.family == 1 and len({_refused(asked, name) for name in (bait["name"], "none")}) > 1:
                    return "the name of a socket"
    return _nothing()


def _refused(asked: _socket.socket, name: str) -> int:
    return asked.connect_ex(f"\0{name}")


def _secret_over_loopback(bait: dict[str, Any]) -> object:
    import socket

    # uses the library that the worker's code uses, not only the system call
    with socket.socket() as connection:
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
    """Find files and folders of the host among the open descriptors."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mode = os.fstat(int(name)).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISBLK(mode):
                target = os.readlink(f"/proc/self/fd/{name}")
                if target.startswith("/memfd:note "):  # shared with the worker, and sealed in its size
                    sealed = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
                    if fcntl.fcntl(int(name), fcntl.F_GET_SEALS) & sealed == sealed:
                        continue
                if not target.startswith("/tmp/"):
                    return target
    return _nothing()


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


def _raising_a_limit(_: dict[str, Any]) -> object:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
    return "more processes"


def _memory_of_the_worker(_: dict[str, Any]) -> object:
    """Read the worker's memory, which contains the answers, as a model's code in a REPL would try. The worker
    is this child's parent."""
    with open(f"/proc/{os.getppid()}/mem", "rb") as file:
        return file.name


def _killing_the_first_process(_: dict[str, Any]) -> object:
    os.kill(1, signal.SIGKILL)  # accepted, but without effect
    return _nothing()


def _a_file_too_long(bait: dict[str, Any]) -> object:
    with open("/tmp/long", "wb") as file:
        try:
            os.truncate(file.fileno(), bait["file_limit"] + 1)
            return "a long file"
        finally:
            os.unlink("/tmp/long")


def _fill(folder: str, size: int, most: int) -> object:
    """Write more than a folder can hold, in files below the size limit."""
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


_OTHERS: dict[str, Probe] = {
    "secret file": lambda bait: Path(bait["file"]).read_text(),
    "secret file by proc": lambda bait: Path(f"/proc/1/root{bait['file']}").read_text(),
    "secret variable": _secret_variable,
    "secret over loopback": _secret_over_loopback,
    "secret in host process": _secret_in_host_process,
    "name resolution": _name_resolution,
    "name of a socket": _name_of_a_socket,
    "connection to the internet": partial(_connect_to, ("8.8.8.8", 53)),
    "connection to the internet over IPv6": partial(_connect_to, ("2001:4860:4860::8888", 53)),
    "connection to the metadata of a cloud": partial(_connect_to, ("169.254.169.254", 80)),
    "connection to a private network": partial(_connect_to, ("10.0.0.1", 80)),
    "own process namespace": _own_process_namespace,
    "inherited files": _inherited_files,
    "datagram pair": lambda _: _socket.socketpair(1, 2),
    "connect of a pair": _do("connected", lambda: _socket.socketpair()[0].connect("/tmp/any")),
    "sendto with an address": lambda _: _socket.socketpair(1, 5)[0].sendto(b"x", "/tmp/any"),
    "clone of a namespace": lambda _: _syscall(
        JUDGED["clone"], CLONE_NEW_ANY & 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0
    ),
    "clone3": lambda _: _syscall(JUDGED["clone3"], 0, 0, refused=errno.ENOSYS),
    "typing into a terminal": lambda _: _syscall(JUDGED["ioctl"], 0, 0x5412, 0),
    "typing by a longer number": lambda _: _syscall(JUDGED["ioctl"], 0, 0x1_0000_5412, 0),
    "console selection": lambda _: _syscall(JUDGED["ioctl"], 0, 0x541C, 0),
    "a lease on a file": lambda _: _syscall(JUDGED["fcntl"], -1, fcntl.F_SETLEASE, fcntl.F_WRLCK),
    "calls of x32": _calls_of_x32,
    "calls of 32 bits": _calls_of_32_bits,
    "becoming root": _do("user 0", os.setuid, 0),
    "becoming roots group": _do("group 0", os.setgid, 0),
    "leaving groups": _do("no groups", os.setgroups, []),
    "a file elsewhere": _write_elsewhere,
    "making a device": _do("a disk", os.mknod, "/tmp/device", 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
    "raising a limit": _raising_a_limit,
    "memory of the worker": _memory_of_the_worker,
    "descriptors of the worker": lambda _: os.listdir(f"/proc/{os.getppid()}/fd"),
    "killing the first process": _killing_the_first_process,
    "a file too long": _a_file_too_long,
    "more than tmp holds": lambda bait: _fill("/tmp", bait["tmp_limit"], bait["file_limit"]),
    "more than shm holds": lambda bait: _fill("/dev/shm", bait["shm_limit"], bait["file_limit"]),
    "more processes": _more_processes,
}


def _outcome(probe: Probe, bait: dict[str, Any]) -> dict[str, Any]:
    """Run a probe in a child; a probe whose child is killed counts as stopped."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = {"held": False, "how": f"got {probe(bait)!r}"[:200]}
        except OSError as error:
            told = {"held": True, "how": errno.errorcode.get(error.errno or 0, str(error))}
        except Exception as error:  # noqa: BLE001 - setrlimit raises ValueError, which is reported
            told = {"held": True, "how": f"{type(error).__name__}: {error}"[:200]}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        ready = poll.poll(_SECONDS * 1000)
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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.load(sys.stdin))) + "\n")
