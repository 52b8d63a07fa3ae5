"""Runs the `wander` command as a separate program, as any user would.

The command downloads runs, environments and packages from this hub over HTTP, with a token that can only read
what the job is about and that is only valid during the job. Environment code runs in the command's sandbox
and never in the hub's process.

If a command ends without a result, the cause is either the run or the package (`JobRefused`) or a fault of
the hub, such as no sandbox, no disk space or no index. In that case the job waits (`JobPostponed`). A command
that was killed is tried again a few times (`JobUnfinished`), but not forever, because a package can cause
that as well.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import joinedload

from wander_hub import security
from wander_hub.accounts.models import User
from wander_hub.database import Database
from wander_hub.environments.models import Version
from wander_hub.identity import JOB_TOKEN
from wander_hub.jobs import JobContext, JobPostponed, JobRefused, JobUnfinished, storable
from wander_hub.rights.models import Token
from wander_hub.rights.tokens import add_token

logger = logging.getLogger("wander_hub")

_START = """
import os, resource, runpy, signal, threading

def end_with_hub(lifeline):
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_hub, args=(os.dup(0),), daemon=True).start()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
if most := int(os.environ.pop("WANDER_JOB_MEMORY", "0")):
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
runpy.run_module("wander_client", run_name="__main__", alter_sys=True)
"""
"""Starts `wander` so that it is killed when the hub exits for any reason: its standard input is a pipe from
the hub."""
_PASSED = ("PATH", "LANG", "TMPDIR", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")
_PASSED_STARTS = ("UV_", "PIP_")
"""Prefixes of variables that configure the package index for the dependencies of
environments."""
_FOLDERS = {
    "DATA": ".local/share/wander",
    "CACHE": ".cache/wander",
    "CONFIG": ".config/wander",
    "STATE": ".local/state/wander",
    "RUNS": "runs",
}
"""Usual folders below a home folder, so that paths do not reveal to environment code that it runs on a
hub."""
MODELS = f"{_FOLDERS['CACHE']}/models/hub"
"""Folder of models that `wander` runs (`wander.models.pulled`), below the folder of a command in memory."""
_LONGEST_LINE = 16 << 20
_MOST_OUTPUT = 64 << 20
"""Maximum bytes of a command's output that are read: its answer, and one progress line per second."""
_MOST_LOGGED = 1 << 20
"""Maximum bytes of a command's standard error that are kept."""
_GRACE_SECONDS = 60.0
"""Additional time for a command, beyond its own limit, to stop its processes and answer."""
_STRANGER = "bad_token"
"""Error code if a hub does not know the job's new token, most likely because it is another hub."""
_ASKED = ("uv_failed", "index_unreachable")
"""Codes of errors whose detail quotes a package index. The detail is only logged and not published, because
the index may be internal."""
OF_THE_PACKAGE = frozenset(
    {
        *("load_error", "needs_outside", "needs_key", "needs_download", "missing_extra"),
        *("environment_fault", "dataset_error", "config_error", "arguments_refused", "arguments_unfit"),
        *("run_error", "bad_rollouts", "other_environment", "other_lock", "bad_lock", "lock_platform"),
        *("lock_unserved", "unlockable", "python_version", "incompatible_sdk", "no_sdk", "no_wheel"),
        *("no_environment", "no_digest", "bad_arguments", "yanked", "uv_failed", "bad_pyproject"),
        *("lock_address", "unsafe_package", "bad_wheel", "build_needed", "unpublished_release"),
        *("arguments_of_another", "set_not_found", "set_sealed"),
        *("version_not_found", "version_deleted", "version_yanked", "run_withdrawn", "run_not_found"),
    }
)
"""Codes of errors that are the fault of a run or of its package. All other codes, including future ones,
count as faults of the hub."""


class Scratch(NamedTuple):
    """A folder in memory for everything that a command writes."""

    folder: Path
    most_bytes: int

    def check(self) -> None:
        """Raise `JobRefused` if the files in it are too large."""
        size = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):  # it was deleted in the meantime
                    size += Path(folder, name).lstat().st_size
        if size > self.most_bytes:
            raise JobRefused(f"it writes more than {self.most_bytes:,} bytes")


class ClientProgram:
    """Runs `wander` for jobs, in separate folders."""

    def __init__(
        self,
        database: Database,
        hub_url: str,
        folder: Path,
        *,
        sandbox: bool,
        seconds: float,
        min_free_bytes: int = 0,
        boxes: Mapping[str, str] | None = None,
    ) -> None:
        """`seconds` is the maximum time of one command, including the installation. If less than
        `min_free_bytes` of disk space is free, any failure counts as a fault of the disk.
        """
        self._database = database
        self._hub_url = hub_url
        self._folder = folder
        self._sandbox = sandbox
        self._seconds = seconds
        self._min_free_bytes = min_free_bytes
        self._boxes = boxes or {}
        """Variables with the rules for boxes (`wander.boxes.policy`)."""

    def run(
        self, context: JobContext, words: list[str], version_id: int, seconds: float | None = None
    ) -> dict[str, Any]:
        """Run a command about a version, which must accept `--sandbox`; return the data of its answer.

        `seconds` limits its time after everything is installed. Raises `JobRefused` for an error that is the
        fault of the run or package, and `JobPostponed` for a fault of the hub.
        """
        confinement = "--sandbox" if self._sandbox else "--no-sandbox"
        with self._lend_token(context.lease.job_id, version_id) as secret:
            return self._answer(context, [*words, "--json", confinement], secret, seconds)

    def answer_in_memory(
        self,
        context: JobContext,
        words: list[str],
        version_id: int,
        *,
        folder: Path,
        memory_bytes: int,
        variables: Mapping[str, str],
    ) -> dict[str, Any]:
        """Run a command that writes everything except installed environments below `folder`; return its whole
        answer, which may be an error.

        None of its processes gets more than `memory_bytes`, and the folder, which is in memory, half of it.
        """
        confinement = "--sandbox" if self._sandbox else "--no-sandbox"
        own = {f"WANDER_{name}_DIR": str(folder / path) for name, path in _FOLDERS.items() if name != "DATA"}
        with self._lend_token(context.lease.job_id, version_id) as secret:
            own |= {"TMPDIR": str(folder), "WANDER_JOB_MEMORY": str(memory_bytes), **variables}
            words = [*words, "--json", confinement]
            return self._execute(context, words, secret, None, Scratch(folder, memory_bytes // 2), own)

    def _answer(
        self, context: JobContext, words: list[str], secret: str, seconds: float | None
    ) -> dict[str, Any]:
        """Run the command; return the data of its answer."""
        answer = self._execute(context, words, secret, seconds)
        error = answer.get("error")
        if error is None:
            data: dict[str, Any] = answer["data"]
            return data
        hint = f" ({error['hint']})" if error.get("hint") else ""
        detail = f": {error['detail']}" if error.get("detail") else ""
        if error.get("code") in _ASKED:
            logger.warning("job %s: %s%s", context.lease.job_id, error["message"], detail)
            hint, detail = " (`wander install` shows the package index's message)", ""
        if error.get("code") == _STRANGER:
            hint = (
                f" (is {self._hub_url} another hub? pass this hub's address with `wander-hub work --hub URL`)"
            )
        message = f"{error['message']}{detail}{hint}"
        if error.get("code") in OF_THE_PACKAGE and not self.lacks_room():
            raise JobRefused(message)
        raise JobPostponed(message)

    def lacks_room(self) -> bool:
        """Return whether the disk is nearly full, which can cause any other error."""
        stats = os.statvfs(self._folder)
        return stats.f_bavail * stats.f_frsize < self._min_free_bytes

    def _execute(
        self,
        context: JobContext,
        words: list[str],
        secret: str,
        seconds: float | None,
        scratch: Scratch | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run the command; return its answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log_folder = scratch.folder if scratch is not None else self._folder
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED or name.startswith(_PASSED_STARTS)
        }
        folders = {f"WANDER_{name}_DIR": str(self._folder / path) for name, path in _FOLDERS.items()}
        logs = self._folder / _FOLDERS["CACHE"] / "logs"
        for log_file in logs.glob("*.log"):  # a large log slows down every process that appends to it
            if log_file.stat().st_size > _MOST_LOGGED:
                log_file.unlink(missing_ok=True)
        try:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, our own words
                [sys.executable, "-P", "-c", _START, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={
                    **passed,
                    **folders,
                    **self._boxes,
                    "WANDER_HUB_JOB": "1",
                    "WANDER_KEPT_FREE_BYTES": str(self._min_free_bytes),
                    "WANDER_HUB": self._hub_url,
                    "WANDER_TOKEN": secret,
                    **(variables or {}),
                },
                cwd=self._folder,
                start_new_session=True,
                umask=0o022,  # the sandbox reads installed files, if the hub is root, as another user
            )
        except OSError as error:
            raise JobPostponed(f"cannot start `wander`: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stderr is not None
        own_log = log_folder / f"{words[0]}-{context.lease.job_id}.log"  # other jobs may run at the same time
        log = threading.Thread(target=_keep_log, args=(process.stderr, own_log), daemon=True)
        log.start()
        try:
            return self._follow(context, process, seconds, scratch)
        finally:
            with suppress(ProcessLookupError):  # all of its processes have already exited
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
            log.join(_GRACE_SECONDS)
            with suppress(FileNotFoundError):
                own_log.replace(log_folder / f"{words[0]}.log")

    def _follow(
        self,
        context: JobContext,
        process: subprocess.Popen[bytes],
        seconds: float | None,
        scratch: Scratch | None,
    ) -> dict[str, Any]:
        """Read the command's lines until its answer; raise if the job is canceled or takes too long, or if
        its files are too large."""
        assert process.stdout is not None
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        limit = self._seconds
        until = time.monotonic() + limit
        last: dict[str, Any] = {}
        while True:
            context.check()
            if scratch is not None:
                scratch.check()
            if time.monotonic() > until:
                raise JobRefused(f"it takes longer than the limit of {limit:.0f} s")
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                break
            last = _parse(line)
            if last.pop("type", None) == "progress":
                if last.pop("loading", False) and seconds is not None:
                    limit = min(limit, seconds)
                    until = time.monotonic() + limit + _GRACE_SECONDS
                context.progress.update(last)
        if "data" not in last and "error" not in last:
            raise JobUnfinished(f"`wander` exited with status {process.wait()} and without an answer")
        return last

    @contextmanager
    def _lend_token(self, job_id: int, version_id: int) -> Iterator[str]:
        """Create a token that reads a version and what it requires while the job runs, and delete it
        afterwards.

        Tokens of earlier attempts at the same job, which a killed hub may have left, are deleted first.
        """
        name = f"{JOB_TOKEN}job {job_id}"
        with self._database.write() as session:
            administrators = select(User).where(User.admin, User.disabled_at.is_(None))
            user = session.scalar(administrators.order_by(User.id).limit(1))
            if user is None:
                raise JobPostponed(
                    "this hub does not have an administrator who could own the token for reading the run"
                )
            session.execute(delete(Token).where(Token.user_id == user.id, Token.name == name))
            lifetime = timedelta(seconds=2 * (self._seconds + _GRACE_SECONDS))  # for installing and running
            version = session.get_one(Version, version_id, options=[joinedload(Version.environment)])
            secret = add_token(
                session,
                user,
                name,
                scopes=("read",),
                lifetime=lifetime,
                environment=version.environment,
                version_id=version_id,
                job_id=job_id,
            )
        try:
            yield secret
        finally:
            with self._database.write() as session:
                session.execute(delete(Token).where(Token.sha256 == security.token_hash(secret)))


def _read(stdout: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    """Put lines into the queue until the end or the output limit, and then None."""
    room = _MOST_OUTPUT
    with stdout:
        while room > 0 and (line := stdout.readline(_LONGEST_LINE)):
            room -= len(line)
            lines.put(line)
    lines.put(None)


def _keep_log(stderr: IO[bytes], path: Path) -> None:
    """Write the start of the command's log to a file, and read the rest so that the command does not
    block."""
    room = _MOST_LOGGED
    with stderr, path.open("wb") as log:
        while piece := stderr.read1(1 << 16):  # type: ignore[attr-defined]
            log.write(piece[:room])
            room = max(0, room - len(piece))


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    if b"\\u" in line:  # output of an environment may have characters that databases reject
        answer = json.loads(storable(json.dumps(answer, ensure_ascii=False)).replace("\\u0000", "\\ufffd"))
    return answer if isinstance(answer, dict) else {}
