"""Runs the two processes of a check, and assembles the report."""

from __future__ import annotations

import contextlib
import sys
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
from wander.errors import ArgumentsUnfit, RunError
from wander.sandbox import SandboxPolicy
from wander.system.child_environ import child_environ
from wander.system.memory_files import open_memory_file
from wander.worker.process.program import Confinement, run_program

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime
    from wander.types import Rollout
    from wander.worker.host.boxes import FindOnHost

LONGEST_PROBE = 300.0
"""Default maximum time of one process of a check in seconds."""
LONGEST_DEMONSTRATION = 1800.0
"""Default maximum time in which an expert plays, in seconds."""
_PROBE = "wander.checks.probe"

SURROUNDINGS: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C.UTF-8", CLOCK: "0"},
    {"PYTHONHASHSEED": "2", "TZ": "KIRITIMATI-14", "LANG": "POSIX", CLOCK: str(400 * 24 * 3600)},
)
"""Differences between the two processes, in addition to the host name. They are fixed, so that reports are
stable."""


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
    """Check an environment without a model, and return the result of every check.

    - `target`: name of an installed environment, a project folder, or a `.py` file.
    - `python`: interpreter of the virtual environment in which it is installed, with `wander-sdk`.
    - `rows`: maximum number of rows of each split to read. `examples`: number of examples that every player
      plays.
    - `timeout`: maximum time of each of the two processes in seconds.
    - `variables`: environment variables that the environment needs, such as an API key.
    - `sandbox`: limits of the sandbox for the processes. Raises `SandboxError` if the sandbox cannot be made.
    - `runtime`: description of a `python` other than this interpreter. The sandbox needs it.

    Errors of the environment are not raised, but make a check fail.
    """
    started = time.monotonic()
    folder = _folder_of(target)
    is_path = folder is not None
    if sandbox is not None:
        from wander.sandbox.visible import require_known

        require_known(Path(python), runtime)
    report = CheckReport(
        schema="wander.check/1", target=str(target), arguments=dict(arguments or {}), checks=[]
    )
    results = {result.id: result for result in check_package(folder, str(target), Path(python))}
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
    report.has_judge = first.has_judge
    report.earned = earned_by_player(first)
    results.update({result.id: result for result in findings_of_first(first)})
    if "load.works" in results:
        results["load.works"].seconds = took
    if first.info is not None and first.trouble is None:
        second = run(request.model_copy(update={"watch": False, "recorded": first.plays}), 1)
        results.update({result.id: result for result in findings_of_second(first, second)})
        if "dataset.stable" in results:
            results["dataset.stable"].seconds = time.monotonic() - began - took
    report.checks = [results.get(check) or check_result(check, "skip", NOT_LOOKED_AT) for check in CHECKS]
    report.seconds = time.monotonic() - started
    return report


def play_experts(
    target: str | Path,
    arguments: Mapping[str, Any],
    *,
    count: int,
    python: str | Path = sys.executable,
    sandbox: SandboxPolicy | None = None,
    runtime: Runtime | None = None,
    timeout: float = LONGEST_DEMONSTRATION,
) -> list[Rollout]:
    """Return the rollouts of the first `count` training examples, as played by the environment's `gold`.

    The list is empty if the environment has no `gold` for one of them. The other parameters are as in
    `check_environment`. Raises `RunError` if the process fails or takes more than `timeout` seconds.
    """
    folder = _folder_of(target)
    request = ProbeRequest(
        target=str(folder or target),
        is_path=folder is not None,
        arguments=dict(arguments),
        rows=0,
        examples=0,
        watch=False,
        demonstrations=count,
    )
    result = _run_probe(
        request, 0, python=Path(python), timeout=timeout, variables={}, sandbox=sandbox, runtime=runtime
    )
    if result.trouble is not None:
        raise RunError(f"the expert cannot play: {result.trouble.message}", hint=result.trouble.hint)
    return [play.rollout for play in result.plays]


def _folder_of(target: str | Path) -> Path | None:
    """Return the folder or file of an environment, or None for the name of an installed environment."""
    if isinstance(target, Path) or (
        target.startswith((".", "/", "~")) or target.endswith(".py") or Path(target).is_dir()
    ):
        return Path(target).expanduser().resolve()
    return None


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
    """Run one process of a check and return its result, even if the process dies or hangs.

    Request and result are exchanged through inherited memory, because a sandboxed process cannot write files
    of the host. Raises `SandboxError` if the sandbox cannot be made.
    """
    from wander.checks.boxes import serve_boxes

    confinement = None
    find_on_host: FindOnHost = str  # without a sandbox, the process sees the host's paths
    variables = {**variables, **SURROUNDINGS[number]}
    if sandbox is not None:
        from wander.sandbox.visible import choose_binds

        source = Path(request.target) if request.is_path else None
        sees = choose_binds(runtime, source, sandbox.read, sandbox.hide)
        confinement = Confinement(sandbox, sees, variables, ("sandbox", "elsewhere")[number])
        find_on_host = sees.find_on_host
    with contextlib.ExitStack() as stack:
        request_file, result_file, note_file = (
            stack.enter_context(open_memory_file(name)) for name in ("asked", "told", "note")
        )
        request_file.write(request.model_dump_json().encode())
        boxes = stack.enter_context(serve_boxes(find_on_host))
        end = run_program(
            python,
            ["-m", _PROBE],
            [*(file.fileno() for file in (request_file, result_file, note_file)), boxes],
            seconds=timeout,
            environ=child_environ("SYSTEMROOT", "VIRTUAL_ENV", "SSL_CERT_FILE", **variables),
            confinement=confinement,
        )
        with contextlib.suppress(ValidationError):  # the result is missing or incomplete
            if end.status is not None:
                return ProbeResult.model_validate_json(_read(result_file))
        activity = _read(note_file).decode("utf-8", "replace") or "starting"
        if end.out_of_memory:
            ending = "its process ran out of the memory allowed by the sandbox"
        elif end.status is None:
            ending = f"it did not finish within {timeout:g} s"
        else:
            ending = f"its process exited with status {end.status}"
        ending += f": {end.output.splitlines()[-1]:.300}" if end.output else ""
        lost = Trouble(type="ProcessLost", message=f"{ending}, while {activity}")
        return ProbeResult(trouble=lost, lost_while=activity)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
