"""Runs the two processes of a check and puts the report together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wander.checks.findings import findings_of_first, findings_of_second
from wander.checks.package import check_package
from wander.checks.probe import NOTE_SUFFIX
from wander.checks.records import ProbeRequest, ProbeResult, Trouble
from wander.checks.report import CHECKS, CheckReport, CheckResult, result
from wander.errors import ArgumentsUnfit
from wander.sandbox import SandboxPolicy

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""Variables of this process that the environment may see."""

SURROUNDINGS: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC"},
    {"PYTHONHASHSEED": "2", "TZ": "Pacific/Kiritimati"},
)
"""How the two processes differ; the second time zone is 14 hours ahead, so most often on another day."""


def check_environment(
    target: str | Path,
    arguments: Mapping[str, Any] | None = None,
    *,
    python: str | Path = sys.executable,
    rows: int = 100,
    examples: int = 3,
    timeout: float = 300.0,
    variables: Mapping[str, str] | None = None,
    sandbox: SandboxPolicy | None = None,
) -> CheckReport:
    """Check an environment without a model and return every check's result.

    - `target`: an installed environment's name, a project folder, or a `.py` file.
    - `python`: the interpreter of the virtual environment in which it is installed, with `wander-sdk`.
    - `rows`: most rows of each split that are read; `examples`: how many are played, by every player.
    - `timeout`: seconds that each of the two processes may take.
    - `variables`: environment variables that the environment needs, such as the name of a key.
    - `sandbox`: confines the processes to these limits, or raises `SandboxError` where that cannot be done.

    Nothing that the environment does raises: it fails a check.
    """
    started = time.monotonic()
    is_path = _is_path(target)
    folder = Path(target).expanduser().resolve() if is_path else None
    report = CheckReport(
        schema="wander.check/1", target=str(target), arguments=dict(arguments or {}), checks=[]
    )
    found: dict[str, CheckResult] = {
        each.id: each for each in check_package(folder, str(target), Path(python))
    }
    request = ProbeRequest(
        target=str(folder or target),
        is_path=is_path,
        arguments=report.arguments,
        rows=rows,
        examples=examples,
        watch=True,
    )
    with tempfile.TemporaryDirectory(prefix="wander-check-") as scratch:
        processes = _Processes(Path(scratch), Path(python), timeout, dict(variables or {}), sandbox)
        _two_processes(processes, request, found, report)
    report.checks = [found.get(check) or result(check, "skip", _SKIPPED) for check in CHECKS]
    report.seconds = time.monotonic() - started
    return report


_SKIPPED = "not looked at, since an earlier check failed"


def _two_processes(
    processes: _Processes, request: ProbeRequest, found: dict[str, CheckResult], report: CheckReport
) -> None:
    """Run the processes one after the other and judge what they tell."""
    began = time.monotonic()
    first = processes.run(request, 0)
    took = time.monotonic() - began
    if first.info is not None:
        report.environment, report.deterministic = first.info.name, first.info.deterministic
    if first.trouble is not None and first.trouble.type == ArgumentsUnfit.__name__:
        report.unfit_arguments = first.trouble
    found.update({each.id: each for each in findings_of_first(first)})
    _set_seconds(found, "load.works", took)
    if first.info is None or first.trouble is not None:
        return
    second = processes.run(request.model_copy(update={"watch": False, "recorded": first.plays}), 1)
    found.update({each.id: each for each in findings_of_second(first, second)})
    _set_seconds(found, "dataset.stable", time.monotonic() - began - took)


def _set_seconds(found: dict[str, CheckResult], check: str, seconds: float) -> None:
    if check in found:
        found[check] = found[check].model_copy(update={"seconds": seconds})


@dataclass(frozen=True)
class _Processes:
    """Starts the processes of a check, with a bound on their time."""

    scratch: Path
    python: Path
    timeout: float
    variables: dict[str, str]
    sandbox: SandboxPolicy | None

    def run(self, request: ProbeRequest, number: int) -> ProbeResult:
        """Run one process and return what it tells, also when it dies or hangs."""
        if self.sandbox is not None:
            return self._run_confined(self.sandbox, request, number)
        folder = self.scratch / str(number)
        folder.mkdir()
        asked, told = folder / "request.json", folder / "result.json"
        asked.write_text(request.model_dump_json(), encoding="utf-8")
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environ = {**kept, **self.variables, **SURROUNDINGS[number], "PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(self.python), "-P", "-m", "wander.checks.probe", str(asked), str(told)]
        with (folder / "output").open("w+b") as output:
            process = subprocess.Popen(  # noqa: S603 - our own module, in the caller's interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=folder,
                start_new_session=True,
            )
            try:
                status = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                return _report_lost(told, f"it was not done after {self.timeout:g} s")
            finally:
                _end(process)
        if not told.exists():
            said = (folder / "output").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = f"its process ended with status {status}" + (f": {said[-1]:.300}" if said else "")
            return _report_lost(told, reason)
        return ProbeResult.model_validate_json(told.read_text(encoding="utf-8"))

    def _run_confined(self, policy: SandboxPolicy, request: ProbeRequest, number: int) -> ProbeResult:
        from wander.checks.confined import run_confined

        left = run_confined(
            policy,
            self.python,
            Path(request.target) if request.is_path else None,
            request.model_dump_json(),
            timeout=self.timeout,
            variables={**self.variables, **SURROUNDINGS[number]},
        )
        if not left.told:
            return _report_lost_while(left.doing or "starting", left.ending)
        return ProbeResult.model_validate_json(left.told)


def _report_lost(told: Path, reason: str) -> ProbeResult:
    """Return the result of a process that left none."""
    note = told.with_suffix(NOTE_SUFFIX)
    return _report_lost_while(note.read_text(encoding="utf-8") if note.exists() else "starting", reason)


def _report_lost_while(doing: str, reason: str) -> ProbeResult:
    return ProbeResult(
        trouble=Trouble(type="ProcessLost", message=f"{reason}, while {doing}"), lost_while=doing
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_path(target: str | Path) -> bool:
    if isinstance(target, Path):
        return True
    return target.startswith((".", "/", "~")) or target.endswith(".py") or Path(target).is_dir()
