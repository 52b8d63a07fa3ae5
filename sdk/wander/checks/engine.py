"""Runs the two processes of a check and puts the report together."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from wander.checks.clock import CLOCK
from wander.checks.findings import earned_by_player, findings_of_first, findings_of_second
from wander.checks.package import check_package
from wander.checks.records import ProbeRequest, ProbeResult, Trouble
from wander.checks.report import CHECKS, NOT_LOOKED_AT, CheckReport, check_result
from wander.errors import ArgumentsUnfit
from wander.sandbox import SandboxPolicy
from wander.system.child_environ import child_environ
from wander.worker.process.program import Confinement, run_program

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime

LONGEST_PROBE = 300.0
"""Seconds that one process of a check may take unless its caller says otherwise."""
_PROBE = "wander.checks.probe"

SURROUNDINGS: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C.UTF-8", CLOCK: "0"},
    {"PYTHONHASHSEED": "2", "TZ": "KIRITIMATI-14", "LANG": "POSIX", CLOCK: str(400 * 24 * 3600)},
)
"""How the two processes differ, beside the host name; the same in every check, so that a report is stable."""


def check_environment(
    target: str | Path,
    arguments: Mapping[str, Any] | None = None,
    *,
    python: str | Path = sys.executable,
    rows: int = 100,
    examples: int = 3,
    timeout: float = LONGEST_PROBE,
    variables: Mapping[str, str] | None = None,
    sandbox: SandboxPolicy | None = None,
    runtime: Runtime | None = None,
) -> CheckReport:
    """Check an environment without a model and return every check's result.

    - `target`: an installed environment's name, a project folder, or a `.py` file.
    - `python`: the interpreter of the virtual environment in which it is installed, with `wander-sdk`.
    - `rows`: most rows of each split that are read; `examples`: how many are played, by every player.
    - `timeout`: seconds that each of the two processes may take.
    - `variables`: environment variables that the environment needs, such as the name of a key.
    - `sandbox`: confines the processes to these limits, or raises `SandboxError` if that cannot be done.
    - `runtime`: what is known of `python`, if that is not this interpreter. The sandbox needs it.

    Nothing that the environment does raises: it fails a check.
    """
    started = time.monotonic()
    is_path = isinstance(target, Path) or (
        target.startswith((".", "/", "~")) or target.endswith(".py") or Path(target).is_dir()
    )
    folder = Path(target).expanduser().resolve() if is_path else None
    if sandbox is not None:
        from wander.sandbox.visible import require_known

        require_known(Path(python), runtime)
    report = CheckReport(
        schema="wander.check/1", target=str(target), arguments=dict(arguments or {}), checks=[]
    )
    found = {each.id: each for each in check_package(folder, str(target), Path(python))}
    request = ProbeRequest(
        target=str(folder or target),
        is_path=is_path,
        arguments=report.arguments,
        rows=rows,
        examples=examples,
        watch=True,
    )
    run = partial(
        _run_probe,
        python=Path(python),
        timeout=timeout,
        variables=dict(variables or {}),
        sandbox=sandbox,
        runtime=runtime,
    )
    began = time.monotonic()
    first = run(request, 0)
    took = time.monotonic() - began
    if first.info is not None:
        report.info = first.info
        report.environment, report.deterministic = first.info.name, first.info.deterministic
    if first.trouble is not None and first.trouble.type == ArgumentsUnfit.__name__:
        report.unfit_arguments = first.trouble
    report.earned = earned_by_player(first)
    found.update({each.id: each for each in findings_of_first(first)})
    if "load.works" in found:
        found["load.works"].seconds = took
    if first.info is not None and first.trouble is None:
        second = run(request.model_copy(update={"watch": False, "recorded": first.plays}), 1)
        found.update({each.id: each for each in findings_of_second(first, second)})
        if "dataset.stable" in found:
            found["dataset.stable"].seconds = time.monotonic() - began - took
    report.checks = [found.get(check) or check_result(check, "skip", NOT_LOOKED_AT) for check in CHECKS]
    report.seconds = time.monotonic() - started
    return report


def _run_probe(
    request: ProbeRequest,
    number: int,
    *,
    python: Path,
    timeout: float,
    variables: Mapping[str, str],
    sandbox: SandboxPolicy | None,
    runtime: Runtime | None,
) -> ProbeResult:
    """Run one process of a check and return what it tells, also when it dies or hangs.

    What it is asked and what it tells pass through inherited memory, since in the sandbox it can write no
    file of the host's. Raises `SandboxError` where no sandbox can be made.
    """
    confinement = None
    variables = {**variables, **SURROUNDINGS[number]}
    if sandbox is not None:
        from wander.sandbox.visible import choose_binds

        source = Path(request.target) if request.is_path else None
        sees = choose_binds(runtime, source, sandbox.read, sandbox.hide)
        confinement = Confinement(sandbox, sees, variables, ("sandbox", "elsewhere")[number])
    with contextlib.ExitStack() as stack:
        asked, told, note = (stack.enter_context(_open_memory(name)) for name in ("asked", "told", "note"))
        asked.write(request.model_dump_json().encode())
        end = run_program(
            python,
            ["-m", _PROBE],
            [file.fileno() for file in (asked, told, note)],
            seconds=timeout,
            environ=child_environ("SYSTEMROOT", "VIRTUAL_ENV", "SSL_CERT_FILE", **variables),
            confinement=confinement,
        )
        with contextlib.suppress(ValidationError):  # there is no result, or not all of it
            if end.status is not None:
                return ProbeResult.model_validate_json(_read(told))
        doing = _read(note).decode("utf-8", "replace") or "starting"
        if end.out_of_memory:
            ending = "its process ran out of the memory that the sandbox allows"
        elif end.status is None:
            ending = f"it was not done after {timeout:g} s"
        else:
            ending = f"its process ended with status {end.status}"
        ending += f": {end.output.splitlines()[-1]:.300}" if end.output else ""
        lost = Trouble(type="ProcessLost", message=f"{ending}, while {doing}")
        return ProbeResult(trouble=lost, lost_while=doing)


def _open_memory(name: str) -> IO[bytes]:
    if sys.platform == "linux":  # where what a sandbox writes counts as its memory
        return os.fdopen(os.memfd_create(name), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
