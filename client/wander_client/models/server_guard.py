"""Guard of a model's server, which stops the server however the command ends.

    python -m wander_client.models.server_guard LIFELINE MARK COMMAND...

LIFELINE is the read end of a pipe. Only the command holds the other end, so the pipe closes when the command
closes it or is killed. Then the server's process group is asked to stop, and after a while it is killed, with
all its processes. The guard is a child of the process that the command starts, and outlives this process: Ray
kills an actor together with its children, while the server may be slow to stop, or may not stop at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

from wander.system.marked_processes import MARK, end_marked_processes

_PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 15.0
"""Seconds that a server gets to stop before it is killed."""


def main(arguments: list[str]) -> int:
    """Run the command until it exits or the lifeline closes. Returns its exit status."""
    lifeline, mark, *command = arguments
    # The command handles Ctrl-C in the terminal. The server is in its own session and does not receive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if guard := os.fork():
        signal.signal(signal.SIGTERM, lambda *_: os.kill(guard, signal.SIGTERM))
        status = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
        return status if status >= 0 else 128 - status
    return _guard(int(lifeline), mark, command)


def _guard(lifeline: int, mark: str, command: list[str]) -> int:
    try:
        server = subprocess.Popen(  # noqa: S603 - the server that the user chose
            command,
            stdin=subprocess.DEVNULL,
            # Only the server has this mark. All processes with the mark are killed at the end.
            env={**os.environ, MARK: mark},
            start_new_session=True,
            preexec_fn=_end_with_guard,
        )
    except OSError as error:
        sys.stderr.write(f"cannot start `{command[0]}`: {error.strerror}\n")
        return 127

    def end_with_lifeline() -> None:
        os.read(lifeline, 1)
        _signal_group(server, signal.SIGTERM)
        try:
            server.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(server, signal.SIGKILL)

    threading.Thread(target=end_with_lifeline, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(server, signal.SIGTERM))
    status = server.wait()
    _signal_group(server, signal.SIGKILL)
    end_marked_processes(mark)
    return status if status >= 0 else 128 - status


def _end_with_guard() -> None:
    """Let the kernel stop the server if the guard itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
