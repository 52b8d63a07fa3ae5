"""The system call filter: a classic BPF program that the kernel runs before every call.

A list of what is denied and not of what is allowed, since what Python, NumPy and their like need changes with
every release; calls that are newer than this list do not exist in the sandbox. Every argument that a rule
looks at is a number: the kernel shows no filter what a pointer points to, which is why `clone3` does not
exist either (the C library then takes `clone`, whose flags can be seen).
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

from wander.sandbox.syscalls import DENIED, JUDGED, NEWEST, WATCHERS
from wander.system.child_environ import HUB_JOB

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`; arguments are eight bytes each, low half first on both machines."""

CLONE_NEW_ANY = 0x7E020000
"""Every CLONE_NEW* flag that `clone` knows: mount, cgroup, UTS, IPC, user, process, network."""
_SET_DEATH_SIGNAL, _SIGKILL = 1, 9
TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX type into a terminal, TIOCSETD loads line disciplines."""
FILE_REQUESTS = (1024, 1026, 1040)
"""F_SETLEASE, F_NOTIFY, F_SETDELEG."""
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_SEQPACKET, _IPPROTO_TCP = 1, 2, 10, 1, 5, 6
_X32 = 0x40000000 - 1


@dataclass(frozen=True)
class Machine:
    """One kind of processor."""

    column: int
    """Where its numbers stand in the tables."""
    audit: int
    """What the kernel calls it (AUDIT_ARCH_*)."""
    loader: str
    """The program that loads and runs others."""


MACHINES = {
    "x86_64": Machine(0, 0xC000003E, "/lib64/ld-linux-x86-64.so.2"),
    "aarch64": Machine(1, 0xC00000B7, "/lib/ld-linux-aarch64.so.1"),
}
"""By `os.uname().machine`; no other has a filter, and so no sandbox."""

Instruction = tuple[int, int, int, int]
"""Code, jump where true, jump where false, operand."""


def program(machine: Machine, *, watchers: bool) -> list[Instruction]:
    """Return the filter of a machine; `watchers` are allowed or denied."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, KILL),  # 32-bit calls have numbers of their own
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.column == 0:
        code += [(_JUMP_ABOVE, 0, 1, _X32), (_RETURN, 0, 0, KILL)]
    code += [(_JUMP_ABOVE, 0, 1, NEWEST), _refuse(errno.ENOSYS)]
    for numbers in (DENIED if watchers else DENIED | WATCHERS).values():
        code += _for_call(numbers[machine.column], [_refuse(errno.EPERM)])
    for name, rule in _rules().items():
        code += _for_call(JUDGED[name][machine.column], rule)
    return [*code, (_RETURN, 0, 0, ALLOW)]


def compile_filter(machine: Machine) -> bytes:
    """Return the filter as the kernel reads it: an array of `struct sock_filter`."""
    # The sandboxes of root have users of their own.
    watchers = os.geteuid() == 0 or os.environ.get(HUB_JOB) != "1"
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program(machine, watchers=watchers))


def _rules() -> dict[str, list[Instruction]]:
    """Return, for each judged call, instructions that end with its verdict."""
    allow, refuse = (_RETURN, 0, 0, ALLOW), _refuse(errno.EPERM)

    def unless(requests: tuple[int, ...]) -> list[Instruction]:
        """Refuse these values of the second argument, of which the kernel reads the low half alone."""
        each = [((_JUMP_EQUAL, 0, 1, request), refuse) for request in requests]
        return [_argument(1), *(line for pair in each for line in pair), allow]

    return {
        "clone": [_argument(0), (_JUMP_BITS, 0, 1, CLONE_NEW_ANY), refuse, allow],
        "clone3": [_refuse(errno.ENOSYS)],
        "ioctl": unless(TERMINAL_REQUESTS),
        # The sandbox of an ordinary user owns what that user does. With a lease on a file that is shown, it
        # would make every program outside wait 45 s to open it.
        "fcntl": unless(FILE_REQUESTS),
        # Process 1 has to go with bubblewrap's outermost process. It runs what others in here write into its
        # memory (`/proc/1/mem`), and without this the sandbox could have it stay when its host is killed.
        "prctl": [
            _argument(0),
            (_JUMP_EQUAL, 1, 0, _SET_DEATH_SIGNAL),
            allow,
            _argument(1),
            (_JUMP_EQUAL, 1, 0, _SIGKILL),
            refuse,
            allow,
        ],
        # TCP, whose only network is the sandbox's own loopback. A socket of another family could reach the
        # kernel's rarer protocols, and one of `AF_UNIX` the sockets of programs outside, by a path that is
        # shown.
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
        # Pairs that stay connected to each other; a pair of datagram sockets could send to any path.
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


def _for_call(number: int | None, verdict: list[Instruction]) -> list[Instruction]:
    """Run `verdict`, which ends the program, for one call; other calls jump over it."""
    return [] if number is None else [(_JUMP_EQUAL, 0, len(verdict), number), *verdict]


def _argument(position: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * position + (4 if high else 0))


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)
