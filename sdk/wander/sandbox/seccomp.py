"""The system call filter: a classic BPF program that the kernel runs before every system call.

The filter lists denied calls instead of allowed calls, because the calls that Python, NumPy and similar
libraries need change with every release. Calls that are newer than the list fail as if they did not exist.
Rules can only check numeric arguments, because the kernel does not show a filter the data that a pointer
leads to. `clone3` therefore fails, too; the C library then uses `clone`, whose flags the filter can check.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

from wander.sandbox.syscalls import DENIED, JUDGED, NEWEST, OWNERS, WATCHERS
from wander.system.child_environ import HUB_JOB

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`. Arguments have eight bytes each, with the low half first on both
machines."""

CLONE_NEW_ANY = 0x7E020000
"""All CLONE_NEW* flags of `clone`: mount, cgroup, UTS, IPC, user, process, network."""
_SET_DEATH_SIGNAL, _SIGKILL = 1, 9
TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX type into a terminal, TIOCSETD loads line disciplines."""
FILE_REQUESTS = (1024, 1026, 1040)
"""F_SETLEASE, F_NOTIFY, F_SETDELEG."""
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 1, 2, 10, 1, 2, 5
_IPPROTO_TCP, _IPPROTO_UDP = 6, 17
_X32 = 0x40000000 - 1


@dataclass(frozen=True)
class Machine:
    """A kind of processor."""

    column: int
    """Column of its system call numbers in the tables."""
    audit: int
    """Name of the machine in the kernel (AUDIT_ARCH_*)."""
    loader: str
    """Path of the dynamic loader."""


MACHINES = {
    "x86_64": Machine(0, 0xC000003E, "/lib64/ld-linux-x86-64.so.2"),
    "aarch64": Machine(1, 0xC00000B7, "/lib/ld-linux-aarch64.so.1"),
}
"""Machines by `os.uname().machine`. Others have no filter, and so no sandbox."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def program(
    machine: Machine, *, watchers: bool, local_sockets: bool = False, one_owner: bool = False
) -> list[Instruction]:
    """Return the filter of a machine.

    - `watchers` allows the calls of that name.
    - `local_sockets` also allows UDP and Unix sockets, for a process that sees no sockets of others.
    - `one_owner` makes changes of a file's owner do nothing, for a process whose files can have only one.
    """
    code: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, KILL),  # 32-bit calls have different numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.column == 0:
        code += [(_JUMP_ABOVE, 0, 1, _X32), (_RETURN, 0, 0, KILL)]
    code += [(_JUMP_ABOVE, 0, 1, NEWEST), _refuse(errno.ENOSYS)]
    for numbers in (DENIED if watchers else DENIED | WATCHERS).values():
        code += _for_call(numbers[machine.column], [_refuse(errno.EPERM)])
    if one_owner:
        for numbers in OWNERS.values():
            code += _for_call(numbers[machine.column], [_refuse(0)])
    for name, rule in (_rules() | (_local_sockets() if local_sockets else {})).items():
        code += _for_call(JUDGED[name][machine.column], rule)
    return [*code, (_RETURN, 0, 0, ALLOW)]


def compile_filter(machine: Machine, *, local_sockets: bool = False, one_owner: bool = False) -> bytes:
    """Return the filter of `program` in the kernel's format: an array of `struct sock_filter`."""
    # The sandboxes of root run as separate users.
    watchers = os.geteuid() == 0 or os.environ.get(HUB_JOB) != "1"
    code = program(machine, watchers=watchers, local_sockets=local_sockets, one_owner=one_owner)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _rules() -> dict[str, list[Instruction]]:
    """Return the instructions for each call that depends on its arguments; they end with its verdict."""
    allow, refuse = (_RETURN, 0, 0, ALLOW), _refuse(errno.EPERM)

    def unless(requests: tuple[int, ...]) -> list[Instruction]:
        """Deny these values of the second argument. The kernel reads only its low half."""
        checks = [((_JUMP_EQUAL, 0, 1, request), refuse) for request in requests]
        return [_argument(1), *(line for check in checks for line in check), allow]

    return {
        "clone": [_argument(0), (_JUMP_BITS, 0, 1, CLONE_NEW_ANY), refuse, allow],
        "clone3": [_refuse(errno.ENOSYS)],
        "ioctl": unless(TERMINAL_REQUESTS),
        # The sandbox of an ordinary user shares the user's rights on files. A lease on a visible file would
        # make every program outside the sandbox wait 45 s to open that file.
        "fcntl": unless(FILE_REQUESTS),
        # Process 1 must exit together with bubblewrap's outermost process. Processes in the sandbox can write
        # to its memory (`/proc/1/mem`). Without this rule, they could make it survive the death of its host.
        # A request for another signal does nothing and succeeds, because Codex runs no commands if it fails.
        "prctl": [
            _argument(0),
            (_JUMP_EQUAL, 1, 0, _SET_DEATH_SIGNAL),
            allow,
            _argument(1),
            (_JUMP_EQUAL, 1, 0, _SIGKILL),
            _refuse(0),
            allow,
        ],
        # Only TCP is allowed, and its only network is the sandbox's own loopback. Sockets of other families
        # could reach rarely used protocols of the kernel. A socket of `AF_UNIX` could reach sockets of
        # programs outside through a visible path.
        "socket": [
            _argument(0),
            (_JUMP_EQUAL, 1, 0, _AF_INET),
            (_JUMP_EQUAL, 0, 6, _AF_INET6),
            _argument(1),
            (_AND, 0, 0, 0xF),
            (_JUMP_EQUAL, 0, 3, _SOCK_STREAM),
            _argument(2),
            (_JUMP_EQUAL, 2, 0, 0),
            (_JUMP_EQUAL, 1, 0, _IPPROTO_TCP),
            _refuse(errno.EAFNOSUPPORT),
            allow,
        ],
        # Only connected pairs are allowed, because datagram sockets of a pair could send to any path.
        "socketpair": [
            _argument(0),
            (_JUMP_EQUAL, 1, 0, _AF_UNIX),
            _refuse(errno.EAFNOSUPPORT),
            _argument(1),
            (_AND, 0, 0, 0xF),
            (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
            (_JUMP_EQUAL, 1, 0, _SOCK_SEQPACKET),
            refuse,
            allow,
        ],
        # `send` is `sendto` without an address.
        "sendto": [
            _argument(4),
            (_JUMP_EQUAL, 1, 0, 0),
            refuse,
            _argument(4, high=True),
            (_JUMP_EQUAL, 1, 0, 0),
            refuse,
            allow,
        ],
    }


def _local_sockets() -> dict[str, list[Instruction]]:
    """Return the rules that `local_sockets` replaces: stream and datagram sockets of TCP, UDP and Unix."""
    allow, refuse = (_RETURN, 0, 0, ALLOW), _refuse(errno.EAFNOSUPPORT)
    return {
        "socket": [
            _argument(0),
            (_JUMP_EQUAL, 8, 0, _AF_UNIX),
            (_JUMP_EQUAL, 1, 0, _AF_INET),
            (_JUMP_EQUAL, 0, 7, _AF_INET6),
            _argument(1),
            (_AND, 0, 0, 0xF),
            (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
            (_JUMP_EQUAL, 0, 3, _SOCK_DGRAM),
            _argument(2),
            (_JUMP_ABOVE, 1, 0, _IPPROTO_UDP),  # 0, TCP and UDP are the numbers up to this one that exist
            allow,
            refuse,
        ],
        "socketpair": [_argument(0), (_JUMP_EQUAL, 0, 1, _AF_UNIX), allow, refuse],
        "sendto": [allow],
    }


def _for_call(number: int | None, verdict: list[Instruction]) -> list[Instruction]:
    """Run `verdict`, which ends the program, for a call; other calls skip it."""
    return [] if number is None else [(_JUMP_EQUAL, 0, len(verdict), number), *verdict]


def _argument(position: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * position + (4 if high else 0))


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)
