"""The `wander` command as a program of its own, which does on the hub what any stranger would do.

It fetches runs, environments and packages from this hub over HTTP, with a token that may only read and
lives as long as the job. An environment's code runs in its sandbox; nothing of it enters the hub's process.
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

from wander_hub import security
from wander_hub.accounts.models import User
from wander_hub.database import Database
from wander_hub.identity import JOB_TOKEN
from wander_hub.jobs import JobContext, JobPostponed, JobRefused, storable
from wander_hub.rights.models import Token
from wander_hub.rights.tokens import add_token

logger = logging.getLogger("wander_hub")

_PASSED = ("PATH", "LANG", "TMPDIR", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")
_PASSED_STARTS = ("UV_", "PIP_")
"""How operators name the package index that environments' dependencies come from."""
_STRICT = {"WANDER_INDEXES_ONLY": "1"}
"""Has packages fetched from those indexes alone, whatever address a lock or a requirement names."""
_FOLDERS = ("data", "cache", "config", "runs")
_LONGEST_ANSWER = 16 << 20
_STRANGER = "bad_token"
"""Code of a hub that does not know the token of the job, which is a new one: another hub, most likely."""
_AWAY = ("hub_unreachable", "unavailable", _STRANGER)
"""Codes of a hub that does not answer or breaks off, since it is being started again, or is another one."""
_ASKED = ("uv_failed", "index_unreachable")
"""Codes of errors whose detail quotes a package index. That may be one that only the hub reaches, so it is
not published: the operator's log has it."""
_RETRYABLE = ("timeout", "index_unreachable", "network")
"""Codes of what another try may mend."""


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
    ) -> None:
        self._database = database
        self._hub_url = hub_url
        self._folder = folder
        self._sandbox = sandbox
        self._seconds = seconds

    def run(self, context: JobContext, words: list[str]) -> dict[str, Any]:
        """Run a command that takes `--sandbox`; return the data of its answer.

        Raises `JobRefused` for an error that no repetition helps.
        """
        confinement = "--sandbox" if self._sandbox else "--no-sandbox"
        with self._lend_token(f"job {context.lease.job_id}") as secret:
            return self._answer(context, [*words, "--json", confinement], secret)

    def _answer(self, context: JobContext, words: list[str], secret: str) -> dict[str, Any]:
        """Run the command; return the data of its answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED or name.startswith(_PASSED_STARTS)
        }
        folders = {f"WANDER_{one.upper()}_DIR": str(self._folder / one) for one in _FOLDERS}
        own_log = self._folder / f"{words[0]}-{context.lease.job_id}.log"  # others may run beside it
        with own_log.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, our own words
                [sys.executable, "-P", "-m", "wander_client", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**passed, **folders, **_STRICT, "WANDER_HUB": self._hub_url, "WANDER_TOKEN": secret},
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            answer = self._follow(context, process)
        finally:
            with suppress(ProcessLookupError):  # it has ended, with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            own_log.replace(self._folder / f"{words[0]}.log")
        error = answer.get("error")
        if error is not None:
            hint = f" ({error['hint']})" if error.get("hint") else ""
            detail = f": {error['detail']}" if error.get("detail") else ""
            if error.get("code") in _ASKED:
                logger.warning("job %s: %s%s", context.lease.job_id, error["message"], detail)
                hint, detail = " (`wander install` shows what the package index says)", ""
            if error.get("code") == _STRANGER:
                hint = f" (is the hub at {self._hub_url} another one? `wander-hub work --hub URL` names it)"
            message = f"{error['message']}{detail}{hint}"
            if error.get("code") in _AWAY:
                raise JobPostponed(message)
            if error.get("retryable") or error.get("code") in _RETRYABLE:
                raise RuntimeError(message)
            raise JobRefused(message)
        data: dict[str, Any] = answer["data"]
        return data

    def _follow(self, context: JobContext, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Take the lines of the command until its answer, unless the job is called off or takes too long."""
        assert process.stdout is not None
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        until = time.monotonic() + self._seconds
        last: dict[str, Any] = {}
        while True:
            context.check()
            if time.monotonic() > until:
                raise JobRefused(f"it took longer than {self._seconds:g} s")
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                break
            last = _parse(line)
            if last.pop("type", None) == "progress":
                context.progress.update(last)
        if "data" not in last and "error" not in last:
            raise RuntimeError(f"`wander` ended with status {process.wait()} and no answer")
        return last

    @contextmanager
    def _lend_token(self, name: str) -> Iterator[str]:
        """Give a token that may read every environment of this hub, for as long as the job runs.

        What a hub that was killed in the same job has left goes first.
        """
        with self._database.write() as session:
            administrators = select(User).where(User.admin, User.disabled_at.is_(None))
            user = session.scalar(administrators.order_by(User.id).limit(1))
            if user is None:
                raise JobRefused("this hub has no administrator, in whose name it could read the run")
            session.execute(delete(Token).where(Token.user_id == user.id, Token.name == JOB_TOKEN + name))
            secret = add_token(session, user, JOB_TOKEN + name, scopes=("read",), lifetime=timedelta(days=1))
        try:
            yield secret
        finally:
            with self._database.write() as session:
                session.execute(delete(Token).where(Token.sha256 == security.token_hash(secret)))


def _read(stdout: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    """Put every line into the queue, None at the end; a line without end is cut."""
    with stdout:
        while line := stdout.readline(_LONGEST_ANSWER):
            lines.put(line)
    lines.put(None)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    if b"\\u" in line:  # what an environment says may hold what no database keeps
        found = json.loads(storable(json.dumps(found, ensure_ascii=False)).replace("\\u0000", "\\ufffd"))
    return found if isinstance(found, dict) else {}
