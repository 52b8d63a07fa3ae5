"""The worker's process, started with a minimal environment and ended with all of its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from wander.errors import WanderError
from wander.system.child_environ import child_environ

FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals without evidence against the running code: a user or a lack of memory ended the process."""
_LOG_LINES = 15
_LOG_BYTES = 8192


class WorkerProcess:
    """A child process in its own session. Its output goes to the log file."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int | None, log_path: Path) -> None:
        self._process = process
        self._lifeline = lifeline
        self.log_path = log_path

    @classmethod
    async def start(
        cls,
        python: Path | None,
        socket: Path,
        *,
        environ: Iterable[str],
        log_path: Path,
        variables: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start `python -m wander.worker`, with this interpreter if `python` is None. Raises `OSError`.

        `environ` names variables of this process to pass on, and `variables` adds others.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # Output reaches the log without delay, and a crash in native code leaves a trace there. The fixed
        # hash seed gives sets of strings the same order on every machine and in every run.
        settings = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUTF8": "1",
            "PYTHONHASHSEED": "0",
        }
        child_end, host_end = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    str(python or sys.executable),
                    "-P",  # the working folder must not shadow modules
                    "-m",
                    "wander.worker",
                    "--socket",
                    str(socket),
                    "--lifeline",
                    str(child_end),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**settings, **child_environ(asked=environ), **(variables or {})},
                    pass_fds=(child_end,),
                    start_new_session=True,
                )
        except OSError:
            os.close(host_end)
            raise
        finally:
            os.close(child_end)
        return cls(process, host_end, log_path)

    @property
    def returncode(self) -> int | None:
        """Exit status of the child, negative for a signal, or None while it is running."""
        return self._process.returncode

    def ended_itself(self) -> bool:
        """Return whether code in the child ended it."""
        code = self._process.returncode
        return code is not None and -code not in FROM_OUTSIDE

    def note(self) -> bytes | None:
        """Return the child's note (`wander.worker.note`) if it is not in the folder of its socket."""
        return None

    def find_on_host(self, path: str) -> str | None:
        """Translate a path of the child to a path on the host. Returns None if the child must not see it."""
        return path

    async def wait(self) -> None:
        """Wait until the child has exited."""
        await self._process.wait()

    async def end(self, grace: float) -> None:
        """Give the child `grace` seconds to exit, then kill it.

        In any case, kill all processes that it started.
        """
        try:
            async with asyncio.timeout(grace):
                await self.wait()
        except TimeoutError:
            pass  # the time is up, so the process is killed
        finally:
            self.kill()
        await self.wait()

    def kill(self) -> None:
        """Kill the child's whole process group immediately."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def find_failed_start(self) -> WanderError | None:
        """Return why the process could not start its work, if known."""
        return None

    def ending(self) -> str:
        """Describe how the child ended."""
        code = self._process.returncode
        if code is None:
            return "closed its connection"
        if code < 0:
            with contextlib.suppress(ValueError):  # a signal without a name
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def with_log(self, reason: str) -> str:
        """Add the path and the end of the log to a reason, for the user who runs the worker."""
        tail = self.log_tail()
        end = f"\nits log ends:\n{tail}" if tail else "; its log is empty"
        return f"{reason}; log: `{self.log_path}`{end}"

    def whole_trace(self) -> str:
        """Return where more details about an error are."""
        return f"the complete traceback is in `{self.log_path}`"

    def log_tail(self) -> str:
        """Return the last lines of the log for messages."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])


def own_variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of the named environment variables that are set in this process."""
    return {name: os.environ[name] for name in names if name in os.environ}
