"""Runs a command as an ordinary user who can read this checkout: `ordinary_user.py UID COMMAND...`, as root.

If only root can enter a folder above the checkout or the interpreter, this process mounts an empty folder
over it, in a private mount namespace, and adds only the needed paths.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NEEDED = (Path(__file__).resolve().parents[2], Path(sys.base_prefix).resolve(), Path(sys.prefix))
_PRIVATE, _BIND = 1 << 18, 0x1000 | 0x4000


def main(user: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    hidden = {
        path: folder for path in NEEDED for folder in reversed(path.parents) if not folder.stat().st_mode & 1
    }
    if hidden:
        checked(libc.unshare(0x20000))
        checked(libc.mount(b"none", b"/", None, 0x4000 | _PRIVATE, None))
        opened = {path: os.open(path, os.O_PATH) for path in hidden}
        for folder in set(hidden.values()):
            checked(libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"mode=755"))
        for path, descriptor in opened.items():
            path.mkdir(parents=True, exist_ok=True)
            checked(libc.mount(f"/proc/self/fd/{descriptor}".encode(), str(path).encode(), None, _BIND, None))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
