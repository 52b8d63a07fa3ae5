"""What keeps a worker's own matters apart from those of the environment's code in the same process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterable

from wander.rollout.faults import without_keyboard


def take_no_interrupts() -> None:
    """Take a `KeyboardInterrupt` for the author's: the terminal's Ctrl-C is the host's to handle."""
    with contextlib.suppress(ValueError):  # not the main thread
        # A handler, since an ignored signal would stay ignored in the programs that the environment starts.
        signal.signal(signal.SIGINT, lambda *_: None)
    without_keyboard()


def keep_from_children(descriptors: Iterable[int]) -> None:
    """Cut forked children off from the host: they must neither speak to it nor keep its connections open."""
    kept = tuple(descriptors)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)

    def cut() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in kept:
            # The number stays taken, so that nothing else comes to stand under it.
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=cut)


def log_line(text: str) -> None:
    """Write a line to the log, unless the environment has closed the stream."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"wander worker: {text}\n")
        sys.stderr.flush()


def log_trace() -> None:
    """Write the exception that is being handled to the log, in the same way."""
    with contextlib.suppress(Exception):
        traceback.print_exc()
