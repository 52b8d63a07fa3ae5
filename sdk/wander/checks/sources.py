"""Detects where an environment reads randomness, the clock and the network.

This uses interpreter hooks instead of replaced functions: a profiling hook sees every call of a C function,
no matter how it was imported (`from time import time`), and an audit hook sees sockets. A read is attributed
by its call stack to the environment's own code, to a library called by this code, or to nobody, if the SDK or
the standard library reads the clock for its own purposes. This is a check, not a guard: C extensions can
bypass it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Literal

from wander.adapters import folders
from wander.types import Record

Kind = Literal["random", "numpy", "clock", "entropy", "network", "process", "sets", "eval", "shared"]
Phase = Literal["load", "rollout", "code"]
"""When the use was detected. `code` means in the source, whether it was run or not."""

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")
_CALENDAR = ("localtime", "gmtime", "ctime", "asctime", "strftime")
_MOMENTS = frozenset({"now", "utcnow", "today"})
_NETWORK = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
_PROCESS = {
    "os.getpid": os.getpid, "os.uname": os.uname, "os.getlogin": os.getlogin,
    "socket.gethostname": socket.gethostname,
}  # fmt: skip
_NUMPY_STATE = ("seed", "set_state")
_DEPTH = 60
"""Maximum number of inspected frames of a call stack."""

_STANDARD = str(Path(random.Random.seed.__code__.co_filename).parent)
_TRANSPARENT = frozenset(
    f"{_STANDARD}/{name}.py" for name in ("random", "uuid", "secrets", "statistics", "datetime")
)
"""Modules of the standard library that read on behalf of their caller."""


class SourceUse(Record):
    """A place that reads from outside, and how often."""

    kind: Kind
    name: str
    """Name of the called function: `random.choice`, `time.time`, ..."""
    where: str
    """Location in the environment's code: `file.py:12 function`."""
    library: str | None = None
    """Library in between, if the environment's code did not read directly."""
    phase: Phase
    count: int = 1


Stack = tuple[tuple[str, int, str], ...]
"""Frames as (file, line, function), from the reading call outwards."""


class SourceWatch:
    """Record which calls read global state between `start` and `stop`.

    `uses` attributes the calls to the environment once its path is known.
    """

    def __init__(self) -> None:
        self.phase: Phase = "load"
        self.own = ""
        """Name of the environment's module or top-level package, or empty while it is unknown."""
        self._seen: Counter[tuple[Kind, str, Phase, Stack]] = Counter()
        self._active = False
        self._functions = _find_watched_functions()
        self._restore: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start watching this thread and the threads that it starts."""
        self._active = True
        sys.addaudithook(self._on_audit_event)  # cannot be removed, but does nothing after `stop`
        for name in _CALENDAR:
            self._wrap(
                time,
                name,
                "clock",
                f"time.{name}",
                functools.partial(_reads_clock, 2 if name == "strftime" else 1),
            )
        self._wrap_numpy()
        self._skip_library_imports()
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)

    def stop(self) -> None:
        """Stop watching."""
        self._active = False
        sys.setprofile(None)
        threading.setprofile(None)
        while self._restore:
            self._restore.pop()()

    def uses(self, own: str) -> list[SourceUse]:
        """Return the reads by code under the path `own` (a folder or a file), including those through
        libraries.
        """
        uses: dict[tuple[Kind, str, str, str | None, str], SourceUse] = {}
        for (kind, name, phase, stack), count in self._seen.items():
            attribution = _attribute(stack, own, everything=kind == "network")
            if attribution is None:
                continue
            where, library = attribution
            key = (kind, name, where, library, phase)
            earlier = uses.get(key)
            total = count + (earlier.count if earlier else 0)
            uses[key] = SourceUse(
                kind=kind, name=name, where=where, library=library, phase=phase, count=total
            )
        return sorted(uses.values(), key=lambda use: (use.kind, use.phase, use.where, use.name))

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Handle a call. This runs for every call, so the common case returns immediately."""
        if event == "c_call":
            watched = self._functions.get(id(argument)) or _bound(argument)
            if watched is not None and (watched[0] != "eval" or self._evaluates(frame)):
                self._read(*watched, frame)
        elif event == "call" and frame.f_code is _SEED:
            generator = frame.f_locals.get("self")
            if generator is _GLOBAL:
                self._read("random", "random.seed", frame)
            elif frame.f_locals.get("a") is None and not isinstance(generator, random.SystemRandom):
                self._read("entropy", "random.Random() without a seed", frame)

    def _evaluates(self, frame: FrameType) -> bool:
        """Return whether `eval` or `exec` runs text during a rollout, as opposed to importing a module."""
        return self.phase == "rollout" and not frame.f_code.co_filename.startswith("<frozen")

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active or event not in _NETWORK:
            return
        peer = arguments[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else arguments[1]
        if event != "socket.getaddrinfo" and not isinstance(peer, tuple | str):
            return
        if isinstance(peer, str | bytes) and event in ("socket.connect", "socket.sendto"):
            return  # a Unix socket does not leave this machine
        if event == "socket.connect" and is_own_port(peer):
            return  # a server in this process
        address = ":".join(str(part) for part in peer[:2]) if isinstance(peer, tuple) else str(peer)
        self._read("network", f"{event} to {address}", sys._getframe(1))

    def _read(self, kind: Kind, name: str, frame: FrameType | None) -> None:
        if not self._active:
            return
        stack = _stack(frame)
        if kind == "network" or (stack and not _is_ignored(stack[0][0])):
            self._seen[kind, _outer_name(frame, name), self.phase, stack] += 1

    def _skip_library_imports(self) -> None:
        """Stop profiling while a library's module is imported, which would otherwise take ten times as long.

        Its use of the network and of numpy's generator is still detected.
        """
        loader: Any = importlib.machinery.SourceFileLoader
        execute = loader.exec_module

        def watched(this: Any, module: ModuleType) -> None:
            profiler = sys.getprofile()
            top = module.__name__.partition(".")[0]
            sys.setprofile(None if top != self.own and _is_library(this.path) else self._on_call)
            try:
                execute(this, module)
            finally:
                sys.setprofile(profiler)

        loader.exec_module = watched
        self._restore.append(lambda: delattr(loader, "exec_module"))

    def _wrap_numpy(self) -> None:
        """Replace the functions of numpy's global generator, because no interpreter hook can see them.

        This does not import numpy, which would slow down every check.
        """
        if "numpy.random" in sys.modules:
            self._wrap_generator(sys.modules["numpy.random"])
            return
        hook = _OnImport("numpy.random", self._wrap_generator)
        sys.meta_path.insert(0, hook)
        self._restore.append(lambda: sys.meta_path.remove(hook) if hook in sys.meta_path else None)

    def _wrap_generator(self, module: ModuleType) -> None:
        hidden = module.mtrand._rand
        for name in dir(module):
            if name in _NUMPY_STATE or getattr(getattr(module, name), "__self__", None) is hidden:
                self._wrap(module, name, "numpy", f"numpy.random.{name}", lambda _: True)

    def _wrap(
        self, module: Any, name: str, kind: Kind, shown: str, counts: Callable[[tuple[Any, ...]], bool]
    ) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            if counts((*arguments, *named.values())):
                self._read(kind, shown, sys._getframe(1))
            return original(*arguments, **named)

        setattr(module, name, watched)
        self._restore.append(lambda: setattr(module, name, original))


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as it has been imported."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.call = call

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.call(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _reads_clock(parameter_count: int, arguments: tuple[Any, ...]) -> bool:
    """Return whether a calendar function reads the clock, which it does if it gets no time to convert."""
    return len(arguments) < parameter_count or arguments[-1] is None


_GLOBAL: random.Random = random._inst
_SEED: CodeType = random.Random.seed.__code__


def _find_watched_functions() -> dict[int, tuple[Kind, str]]:
    """Return the C functions that always read from outside, by identity."""
    functions: dict[int, tuple[Kind, str]] = {
        id(getattr(time, name)): ("clock", f"time.{name}") for name in _CLOCKS
    }
    functions |= {id(function): ("eval", f"{function.__name__}()") for function in (eval, exec)}
    functions |= {id(function): ("process", name) for name, function in _PROCESS.items()}
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            functions[id(getattr(os, name))] = ("entropy", f"os.{name}")
    return functions


def _bound(function: Any) -> tuple[Kind, str] | None:
    """Return what a bound C method reads if its object is watched."""
    owner = getattr(function, "__self__", None)
    if owner is _GLOBAL:
        name = function.__name__
        return None if name in ("getstate", "__reduce__") else ("random", f"random.{name}")
    if isinstance(owner, type) and issubclass(owner, datetime.date) and function.__name__ in _MOMENTS:
        return "clock", f"{owner.__name__}.{function.__name__}"
    return None


def _stack(frame: FrameType | None) -> Stack:
    """Return the call stack without the modules that only pass on a read."""
    frames: list[tuple[str, int, str]] = []
    while frame is not None and len(frames) < _DEPTH:
        code = frame.f_code
        transparent = code.co_filename in _TRANSPARENT or code.co_filename.startswith("<")
        if frames or not transparent:
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(frames)


def _outer_name(frame: FrameType | None, name: str) -> str:
    """Return the function named by the caller: `random.choice`, not `getrandbits` inside it."""
    outer = None
    while frame is not None and frame.f_code.co_filename in _TRANSPARENT:
        outer, frame = frame, frame.f_back
    if outer is None or outer.f_code is _SEED or outer.f_code.co_name == "__init__":
        return name
    return f"{Path(outer.f_code.co_filename).stem}.{outer.f_code.co_name}"


def _is_ignored(file: str) -> bool:
    """Return whether a read in this file is internal to the standard library or the SDK."""
    return _in_sdk(file) or (_inside(file, _STANDARD) and "site-packages" not in file)


def _is_library(file: str) -> bool:
    return "site-packages" in file or _inside(file, _STANDARD)


def _in_sdk(file: str) -> bool:
    return any(_inside(file, folder) for folder in _sdk_folders())


@functools.cache
def _sdk_folders() -> tuple[str, ...]:
    """Return the folders of the SDK and of its adapters for other libraries' environments."""
    return (str(Path(__file__).parents[1]), *folders())


def _inside(file: str, folder: str) -> bool:
    return file == folder or file.startswith(folder.rstrip("/") + "/")


def _attribute(stack: Stack, own: str, *, everything: bool) -> tuple[str, str | None] | None:
    """Return (location in the environment's code, library in between), or None if it did not cause the read.

    With `everything`, a read outside of its code also counts, because nothing else could have caused it.
    """
    for position, (file, line, function) in enumerate(stack):
        if _inside(file, own) and "site-packages" not in file[len(own) :]:
            libraries = [between for between, _, _ in stack[:position] if not _is_ignored(between)]
            where = f"{Path(file).name}:{line} {function}"
            return where, _library(libraries[0]) if libraries else None
        if not everything and _in_sdk(file):
            return None
    return ("outside the environment's own code", None) if everything else None


def _library(file: str) -> str:
    """Return the name of the library that a file belongs to."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return Path(parts[parts.index("site-packages") + 1]).stem
    return Path(file).stem


_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENING = "0A"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_own_port(peer: Any) -> bool:
    """Return whether this process listens on a port, from the kernel's tables. False if they do not exist."""
    if not isinstance(peer, tuple) or len(peer) < 2 or peer[0] not in _LOOPBACK:
        return False
    listening: set[str] = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):  # not Linux, or without IPv6
            for row in table.read_text(encoding="ascii").splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == peer[1]:
                    listening.add(f"socket:[{fields[9]}]")
    if listening:
        for handle in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                if os.readlink(f"/proc/self/fd/{handle}") in listening:
                    return True
    return False
