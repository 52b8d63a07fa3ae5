"""Runs a program in its own session, which ends together with everything that the program started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def run_in_session(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program without input. When the block ends, kill the program and its session.

    `options` are those of `subprocess.Popen`. Raises `OSError` if the program cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - the caller's own command
        command, stdin=subprocess.DEVNULL, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
