"""The system call filter, run here as the kernel runs it, for both machines."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import struct

import pytest
from wander.sandbox.seccomp import ALLOW, CLONE_NEW_ANY, KILL, MACHINES, compile_filter, program
from wander.sandbox.syscalls import DENIED, JUDGED, NEWEST, WATCHERS

AF_UNIX, AF_INET, AF_INET6, STREAM, DATAGRAM, SEQPACKET, CLOEXEC = 1, 2, 10, 1, 2, 5, 0o2000000


def verdict(name: str, number: int, *arguments: int, audit: int | None = None, watchers: bool = True) -> int:
    """Interpret the filter of a machine for one call."""
    machine = MACHINES[name]
    given = [*arguments, *[0] * 6][:6]
    data = struct.pack("=IIQ6Q", number, machine.audit if audit is None else audit, 0, *given)
    code = program(machine, watchers=watchers)
    accumulator, place = 0, 0
    while True:
        operation, true, false, operand = code[place]
        place += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x45: bool(accumulator & operand),
            }[operation]
            place += true if holds else false


def refused(number: int) -> int:
    return 0x00050000 | number


def judged(name: str, call: str) -> int:
    number = JUDGED[call][MACHINES[name].column]
    assert number is not None
    return number


@pytest.fixture(params=sorted(MACHINES))
def name(request) -> str:
    return request.param


@pytest.mark.parametrize("watchers", [True, False])
def test_denied_system_calls_fail_and_others_work(name, watchers):
    column = MACHINES[name].column
    all_denied = DENIED if watchers else DENIED | WATCHERS
    denied = {numbers[column] for numbers in all_denied.values()} - {None}
    special = {numbers[column] for numbers in JUDGED.values()}
    for number in range(NEWEST + 1):
        if number in denied:
            assert verdict(name, number, watchers=watchers) == refused(errno.EPERM), number
        elif number not in special:
            assert verdict(name, number, watchers=watchers) == ALLOW, number
    assert len(denied) == len([numbers for numbers in all_denied.values() if numbers[column] is not None])
    assert not denied & special


def test_newer_system_calls_do_not_exist(name):
    assert verdict(name, NEWEST + 1) == refused(errno.ENOSYS)
    assert verdict(name, 100_000) == refused(errno.ENOSYS)
    assert verdict(name, judged(name, "clone3")) == refused(errno.ENOSYS)


def test_system_calls_of_other_architectures_kill_the_process(name):
    for other in {each.audit for each in MACHINES.values()} | {0x40000003, 0x40000028}:
        expected = ALLOW if other == MACHINES[name].audit else KILL
        assert verdict(name, NEWEST, audit=other) == expected
    assert verdict("x86_64", 0x40000000 | 39) == KILL
    assert verdict("x86_64", 0xFFFFFFFF) == KILL


def test_clone_cannot_create_namespaces(name):
    clone = judged(name, "clone")
    assert verdict(name, clone, 0x01200011) == ALLOW  # fork
    assert verdict(name, clone, 0x003D0F00) == ALLOW  # a thread
    for bit in range(32):
        flag = 1 << bit
        expected = refused(errno.EPERM) if flag & CLONE_NEW_ANY else ALLOW
        assert verdict(name, clone, flag) == expected
        assert verdict(name, clone, flag | 0xFF << 32) == expected


@pytest.mark.parametrize("request_number", [0x5412, 0x541C, 0x5423])
def test_input_cannot_be_injected_into_terminals(name, request_number):
    ioctl = judged(name, "ioctl")
    assert verdict(name, ioctl, 0, request_number) == refused(errno.EPERM)
    assert verdict(name, ioctl, 0, request_number | 0xABCD << 32) == refused(errno.EPERM)
    assert verdict(name, ioctl, 0, 0x5401) == ALLOW


@pytest.mark.parametrize("request_number", [1024, 1026, 1040])  # F_SETLEASE, F_NOTIFY, F_SETDELEG
def test_no_program_outside_waits_for_a_file(name, request_number):
    fcntl = judged(name, "fcntl")
    assert verdict(name, fcntl, 3, request_number) == refused(errno.EPERM)
    assert verdict(name, fcntl, 3, request_number | 1 << 32) == refused(errno.EPERM)
    for harmless in (*range(16), 1025, 1030, 1033):
        assert verdict(name, fcntl, 3, harmless) == ALLOW


def test_only_tcp_sockets_and_connected_pairs_are_allowed(name):
    socket, pair = judged(name, "socket"), judged(name, "socketpair")
    for family in range(50):
        for kind in (STREAM, DATAGRAM, 3, SEQPACKET, 6, 10):
            for protocol in (0, 1, 6, 17, 132, 262, 0x1_0006):
                tcp = family in (AF_INET, AF_INET6) and kind == STREAM and protocol in (0, 6)
                expected = ALLOW if tcp else refused(errno.EAFNOSUPPORT)
                assert verdict(name, socket, family, kind, protocol) == expected, (family, kind, protocol)
        if family != AF_UNIX:
            assert verdict(name, pair, family, STREAM) == refused(errno.EAFNOSUPPORT)
    for flags in (CLOEXEC, 0o4000, CLOEXEC | 0o4000):
        assert verdict(name, socket, AF_INET6, STREAM | flags, 6) == ALLOW
        assert verdict(name, socket, AF_INET6, DATAGRAM | flags, 0) == refused(errno.EAFNOSUPPORT)
    assert verdict(name, pair, AF_UNIX, STREAM | CLOEXEC) == ALLOW
    assert verdict(name, pair, AF_UNIX, SEQPACKET) == ALLOW
    assert verdict(name, pair, AF_UNIX, DATAGRAM | CLOEXEC) == refused(errno.EPERM)


def test_messages_cannot_be_sent_to_addresses(name):
    sendto = judged(name, "sendto")
    assert verdict(name, sendto, 3, 0, 10, 0, 0) == ALLOW
    assert verdict(name, sendto, 3, 0, 10, 0, 0x7FFF0000) == refused(errno.EPERM)
    assert verdict(name, sendto, 3, 0, 10, 0, 1 << 40) == refused(errno.EPERM)


def test_the_kernel_accepts_a_filter_of_this_size(name):
    longest = program(MACHINES[name], watchers=False)
    assert len(compile_filter(MACHINES[name])) <= 8 * len(longest)
    assert len(longest) < 4096


@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="libseccomp is not installed")
def test_system_call_numbers_match_libseccomp(name):
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    audit = MACHINES[name].audit
    for call, numbers in {**DENIED, **WATCHERS, **JUDGED}.items():
        theirs = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(audit), call.encode())
        ours = numbers[MACHINES[name].column]
        # -1: it is older than the call; below: this machine has none.
        assert theirs in (ours, -1) or (ours is None and theirs < -1), call


def test_process_1_exits_with_its_host(name):
    prctl = judged(name, "prctl")
    for signal_number in (0, 1, 15, 17, 64, 9 | 256):
        assert verdict(name, prctl, 1, signal_number) == refused(0)  # does nothing, and succeeds
        assert verdict(name, prctl, 1 | 1 << 40, signal_number) == refused(0)
    assert verdict(name, prctl, 1, 9) == ALLOW  # what a program may do for its own children
    for option in (2, 4, 15, 22, 38):
        assert verdict(name, prctl, option, 0) == ALLOW
