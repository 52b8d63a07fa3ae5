"""Records the first function that is called in each of our files, in every process of `scripts/walks.py`.

SIGUSR2, and the first call of each function of `WALKS_CUTS`, start a new part of the trace.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from types import CodeType, FrameType

ROOT = os.environ["WALKS_ROOT"]
ROOMS = ("sdk/", "client/", "hub/", "compat/", "environments/")
NEW_PART = "--"
trace = os.open(f"{os.environ['WALKS_FOLDER']}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
cuts: dict[str, str] = {}
"""Paths, by the name of the function."""
entered: set[str] = set()


def note(line: str) -> None:
    """Append a line to the trace."""
    os.write(trace, f"{line}\n".encode())


def cut(*_: object) -> None:
    """Start a new part of the trace."""
    entered.clear()
    note(NEW_PART)


def hook(frame: FrameType, event: str, _: object) -> None:
    """Record a call if it is the first in its file."""
    code = frame.f_code
    if event != "call" or (code.co_filename in entered and code.co_name not in cuts):
        return
    path = os.path.relpath(code.co_filename, ROOT)
    if not path.startswith(ROOMS):
        entered.add(code.co_filename)
    elif is_function(code) and not is_import(frame.f_back):
        if cuts.get(code.co_name) == path:
            del cuts[code.co_name]
            cut()
        if code.co_filename not in entered:
            entered.add(code.co_filename)
            note(f"{path} {code.co_qualname}")


def is_function(code: CodeType) -> bool:
    """Return whether it is the code of a function, rather than of a class, a module or an expression."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def is_import(frame: FrameType | None) -> bool:
    """Return whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


for text in os.environ["WALKS_CUTS"].split():
    file, _, function = text.partition(":")
    cuts[function] = file
note(" ".join(sys.orig_argv))
signal.signal(signal.SIGUSR2, cut)
threading.setprofile(hook)
sys.setprofile(hook)
