"""What a worker says in its log, which the environment's code writes to as well."""

from __future__ import annotations

import contextlib
import sys
import traceback


def log_line(text: str) -> None:
    """Write a line to the log, unless the environment has closed the stream."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"wander worker: {text}\n")
        sys.stderr.flush()


def log_trace() -> None:
    """Write the exception that is being handled to the log, in the same way."""
    with contextlib.suppress(Exception):
        traceback.print_exc()
