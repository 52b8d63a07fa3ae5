"""Exhausts every resource that the kernel counts per user across namespaces.

`python user_counts.py FOLDER` does so in the sandbox, then outside while the sandbox holds its share, and
prints for both the amount of each resource and the final error.
"""

import ctypes
import errno
import fcntl
import os
import select
import sys

libc = ctypes.CDLL(None, use_errno=True)
kept = []
"""So that nothing is given back."""


def call(name, *arguments):
    kept.append(getattr(libc, name)(*arguments))
    if kept[-1] < 0:
        raise OSError(ctypes.get_errno(), name)


def watch_file():
    kept.extend([select.epoll(), os.pipe()])
    kept[-2].register(kept[-1][0])


def lease(file):
    """Take a lease on a file, which only its owner may; others then wait 45 s to open it."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        kept.append(os.dup(descriptor))
    finally:
        os.close(descriptor)


def take(most, what, *arguments):
    for number in range(most):
        try:
            what(*arguments)
        except OSError as error:
            return number, errno.errorcode[error.errno]
    return most, None


def take_all(most, file):
    context, timer = ctypes.c_ulong(0), ctypes.c_void_p()
    setup = 206 if os.uname().machine == "x86_64" else 0
    return {
        "watched files": take(1, watch_file),
        "inotify": take(most, call, "inotify_init1", 0),
        "message queues": take(1, call, "mq_open", b"/queue", os.O_RDWR | os.O_CREAT, 0o600, None),
        "asynchronous input": take(1, call, "syscall", setup, 1, ctypes.byref(context)),
        "leases": take(1, lease, file),
        "timers": take(most, call, "timer_create", 0, None, ctypes.byref(timer)),
    }


async def main(folder, taking):
    from sandboxes import answered, confined

    async with confined(folder) as environment:
        file = str(folder / "obedient_environment.py")
        taking += f"\nself.kept = kept\nanswer = take_all(200_000, {file!r})"
        inside = await answered(environment, taking)
        print(json.dumps([inside, take_all(100, file)]))


if __name__ == "__main__":
    import asyncio
    import json
    from pathlib import Path

    asyncio.run(main(Path(sys.argv[1]), Path(__file__).read_text()))
