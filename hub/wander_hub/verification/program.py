"""The `wander` command as a program of its own, which does on the hub what any stranger would do.

It fetches runs, environments and packages from this hub over HTTP, with a token that may only read what the
job is about and lives as long as the job. An environment's code runs in its sandbox; nothing of it enters
the hub's process.

A command that ends without a result either says something about the run or package that it worked on
(`JobRefused`), or it met a fault of the hub: no sandbox, no disk, no index. Then the job waits
(`JobPostponed`). A command that was killed is tried again a few times (`JobUnfinished`): a package can have
itself killed for good.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

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
import os, runpy, signal, threading

def end_with_hub(lifeline):
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_hub, args=(os.dup(0),), daemon=True).start()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
runpy.run_module("wander_client", run_name="__main__", alter_sys=True)
"""
"""Runs `wander` until the hub ends, however that ends: standard input is a pipe whose other end it holds."""
_PASSED = ("PATH", "LANG", "TMPDIR", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")
_PASSED_STARTS = ("UV_", "PIP_")
"""How operators name the package index that environments' dependencies come from."""
_FOLDERS = {
    "DATA": ".local/share/wander",
    "CACHE": ".cache/wander",
    "CONFIG": ".config/wander",
    "STATE": ".local/state/wander",
    "RUNS": "runs",
}
"""As in anybody's home: where the files of an environment lie does not tell its code that this is a hub."""
_LONGEST_LINE = 16 << 20
_MOST_OUTPUT = 64 << 20
"""Bytes of output that are read of a command: its answer, and a line of progress a second."""
_MOST_LOGGED = 1 << 20
"""Bytes that are kept of what a command writes to stderr."""
_GRACE_SECONDS = 60.0
"""Time that a command has beyond its own limit, to end what it started and to answer."""
_STRANGER = "bad_token"
"""Code of a hub that does not know the token of the job, which is a new one: another hub, most likely."""
_ASKED = ("uv_failed", "index_unreachable")
"""Codes of errors whose detail quotes a package index. That may be one that only the hub reaches, so it is
not published: the operator's log has it."""
_OF_THE_PACKAGE = frozenset(
    {
        *("load_error", "needs_outside", "needs_key", "needs_download", "missing_extra"),
        *("environment_fault", "dataset_error", "config_error", "arguments_refused", "arguments_unfit"),
        *("run_error", "bad_rollouts", "other_environment", "other_lock", "bad_lock", "lock_platform"),
        *("lock_unserved", "unlockable", "python_version", "incompatible_sdk", "no_sdk", "no_wheel"),
        *("no_environment", "no_digest", "bad_arguments", "yanked", "uv_failed", "bad_pyproject"),
        *("lock_address", "unsafe_package", "bad_wheel", "build_needed", "unpublished_release"),
        "arguments_of_another",
        *("version_not_found", "version_deleted", "version_yanked", "run_withdrawn", "run_not_found"),
    }
)
"""Codes of errors that say something about a run, or about the package that it names. All others, and those
that are still to come, are faults of the hub."""


class ClientProgram:
    """Runs `wander` for jobs, in folders of its own."""

    def __init__(
        self,
        database: Database,
        hub_url: str,
        folder: Path,
        *,
        sandbox: bool,
        seconds: float,
        min_free_bytes: int = 0,
    ) -> None:
        """`seconds`: the longest time for one command, installation included. Where fewer than
        `min_free_bytes` are free, whatever fails is a fault of the disk.
        """
        self._database = database
        self._hub_url = hub_url
        self._folder = folder
        self._sandbox = sandbox
        self._seconds = seconds
        self._min_free_bytes = min_free_bytes

    def run(
        self, context: JobContext, words: list[str], version_id: int, seconds: float | None = None
    ) -> dict[str, Any]:
        """Run a command about a version, one that takes `--sandbox`; return the data of its answer.

        `seconds`: how long it may take once it has installed all that it needs.
        Raises `JobRefused` for an error that says something about the run or package, and `JobPostponed` for
        a fault of the hub.
        """
        confinement = "--sandbox" if self._sandbox else "--no-sandbox"
        with self._lend_token(context.lease.job_id, version_id) as secret:
            return self._answer(context, [*words, "--json", confinement], secret, seconds)

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
            hint, detail = " (`wander install` shows what the package index says)", ""
        if error.get("code") == _STRANGER:
            hint = f" (is the hub at {self._hub_url} another one? `wander-hub work --hub URL` names it)"
        message = f"{error['message']}{detail}{hint}"
        if error.get("code") in _OF_THE_PACKAGE and not self._lacks_room():
            raise JobRefused(message)
        raise JobPostponed(message)

    def _lacks_room(self) -> bool:
        """Tell whether the disk is full, which may show as any other error."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize < self._min_free_bytes

    def _execute(
        self, context: JobContext, words: list[str], secret: str, seconds: float | None
    ) -> dict[str, Any]:
        """Run the command; return its answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED or name.startswith(_PASSED_STARTS)
        }
        folders = {f"WANDER_{name}_DIR": str(self._folder / path) for name, path in _FOLDERS.items()}
        logs = self._folder / _FOLDERS["CACHE"] / "logs"
        for each in logs.glob("*.log"):  # a full log slows whoever writes to it
            if each.stat().st_size > _MOST_LOGGED:
                each.unlink(missing_ok=True)
        try:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, our own words
                [sys.executable, "-P", "-c", _START, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={
                    **passed,
                    **folders,
                    "WANDER_HUB_JOB": "1",
                    "WANDER_KEPT_FREE_BYTES": str(self._min_free_bytes),
                    "WANDER_HUB": self._hub_url,
                    "WANDER_TOKEN": secret,
                },
                cwd=self._folder,
                start_new_session=True,
                umask=0o022,  # the sandbox reads what it installs, for a hub of root as another user
            )
        except OSError as error:
            raise JobPostponed(f"`wander` cannot be started: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stderr is not None
        own_log = self._folder / f"{words[0]}-{context.lease.job_id}.log"  # others may run at the same time
        log = threading.Thread(target=_keep_log, args=(process.stderr, own_log), daemon=True)
        log.start()
        try:
            return self._follow(context, process, seconds)
        finally:
            with suppress(ProcessLookupError):  # it has ended, with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
            log.join(_GRACE_SECONDS)
            with suppress(FileNotFoundError):
                own_log.replace(self._folder / f"{words[0]}.log")

    def _follow(
        self, context: JobContext, process: subprocess.Popen[bytes], seconds: float | None
    ) -> dict[str, Any]:
        """Read the lines of the command until its answer, unless the job is called off or takes too long."""
        assert process.stdout is not None
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        limit = self._seconds
        until = time.monotonic() + limit
        last: dict[str, Any] = {}
        while True:
            context.check()
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
            raise JobUnfinished(f"`wander` ended with status {process.wait()} and no answer")
        return last

    @contextmanager
    def _lend_token(self, job_id: int, version_id: int) -> Iterator[str]:
        """Give a token that reads a version and what it requires, for as long as the job runs.

        What a hub that was killed in the same job has left goes first.
        """
        name = f"{JOB_TOKEN}job {job_id}"
        with self._database.write() as session:
            administrators = select(User).where(User.admin, User.disabled_at.is_(None))
            user = session.scalar(administrators.order_by(User.id).limit(1))
            if user is None:
                raise JobPostponed("this hub has no administrator, in whose name it could read the run")
            session.execute(delete(Token).where(Token.user_id == user.id, Token.name == name))
            lifetime = timedelta(seconds=2 * (self._seconds + _GRACE_SECONDS))  # to install, then to run
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
    """Put every line into the queue, and None at the end, or once there is more than anybody reads."""
    room = _MOST_OUTPUT
    with stdout:
        while room > 0 and (line := stdout.readline(_LONGEST_LINE)):
            room -= len(line)
            lines.put(line)
    lines.put(None)


def _keep_log(stderr: IO[bytes], path: Path) -> None:
    """Write the beginning of the command's log to a file, and read the rest, so that nothing waits for it."""
    room = _MOST_LOGGED
    with stderr, path.open("wb") as log:
        while found := stderr.read1(1 << 16):  # type: ignore[attr-defined]
            log.write(found[:room])
            room = max(0, room - len(found))


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    if b"\\u" in line:  # what an environment says may hold what no database keeps
        found = json.loads(storable(json.dumps(found, ensure_ascii=False)).replace("\\u0000", "\\ufffd"))
    return found if isinstance(found, dict) else {}
