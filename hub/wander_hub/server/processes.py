"""Several forked processes that serve one listening socket, and the supervisor that starts and stops
them.

Forked processes inherit open files, such as the socket and the lock of the data folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_LOOK_SECONDS = 0.1
_STARTS_A_MINUTE = 10
"""Number of restarts within a minute after which the supervisor gives up."""


class Processes:
    """Runs `work(number)` in `count` processes and restarts any process that exits unexpectedly."""

    def __init__(self, count: int, work: Callable[[int], None], *, seconds_to_end: float = 20) -> None:
        self._count = count
        self._work = work
        self._seconds_to_end = seconds_to_end
        self._numbers: dict[int, int] = {}
        self._asked: int | None = None
        self._restarts: list[float] = []

    def run(self, *, exit_with_parent: bool = False) -> int:
        """Run until a signal arrives and all processes have exited; return the signal. Exits with status 1
        after too many restarts."""
        parent = os.getppid()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, self._ask)
        for number in range(self._count):
            self._start(number)
        while self._asked is None:
            self._look_after()
            if exit_with_parent and os.getppid() != parent:
                self._asked = signal.SIGTERM
            time.sleep(_LOOK_SECONDS)
        self._end()
        return self._asked

    def _ask(self, number: int, _frame: object) -> None:
        self._asked = self._asked or number

    def _start(self, number: int) -> None:
        process = os.fork()
        if process == 0:
            self._become(number)
        self._numbers[process] = number

    def _become(self, number: int) -> NoReturn:
        """Run the work in the forked process and exit, so that it never continues in the supervisor's
        code."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            default = signal.SIG_DFL if signal_number == signal.SIGTERM else signal.default_int_handler
            signal.signal(signal_number, default)
        status = 1
        try:
            self._work(number)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - callers further up must not handle it in this process
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _look_after(self) -> None:
        for process, status in self._reap():
            number = self._numbers.pop(process)
            if self._asked is not None:
                return
            killed = os.WIFSIGNALED(status)
            how = f"signal {os.WTERMSIG(status)}" if killed else f"exit status {os.WEXITSTATUS(status)}"
            exited = f"a process of the hub exited ({how})"
            now = time.monotonic()
            self._restarts = [restart for restart in self._restarts if restart > now - 60]
            if len(self._restarts) >= _STARTS_A_MINUTE:
                sys.stderr.write(f"error: {exited} too many times\n\nhint: see its last lines above\n")
                self._end()
                raise SystemExit(1)
            sys.stderr.write(f"warning: {exited} and will be restarted\n")
            self._restarts.append(now)
            self._start(number)

    def _reap(self) -> list[tuple[int, int]]:
        exited = []
        for process in list(self._numbers):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                exited.append((process, status))
        return exited

    def _end(self) -> None:
        self._send_signal(signal.SIGTERM)
        give_up = time.monotonic() + self._seconds_to_end
        while self._numbers and time.monotonic() < give_up:
            for process, _ in self._reap():
                del self._numbers[process]
            time.sleep(_LOOK_SECONDS)
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        for process in self._numbers:
            os.kill(process, number)
