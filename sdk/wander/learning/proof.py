"""Starts the recipe in a process of its own, and returns the report.

The number of threads and the processor's instructions decide the order of additions, so both are fixed by
variables that the libraries read when they are loaded. The environment of the calling process has no effect.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from wander.errors import MissingExtra, RunError
from wander.learning.records import LearningRequest, Recipe
from wander.system.child_environ import child_environ
from wander.types import first_fault
from wander.wire.verification import LearningReport

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.sandbox.visible import Runtime

Progress = Callable[[str, int, int], None]
"""Called with the current stage, the number of finished parts, and their total number."""

ONE_THREAD: dict[str, str] = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "OMP_DYNAMIC": "FALSE",
    "MKL_DYNAMIC": "FALSE",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
}
AVX2: dict[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""Instructions that every x86-64 processor since 2015 has. Newer instructions would give other bits."""
LONGEST = 3600.0
"""Maximum seconds of the recipe. The processor time of a recipe is limited to 10 minutes."""


def prove_learning(
    target: str | Path,
    arguments: Mapping[str, Any] | None = None,
    *,
    python: str | Path = sys.executable,
    sandbox: SandboxPolicy | None = None,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
    recipe: Recipe | None = None,
) -> LearningReport:
    """Train a tiny policy on an environment by the fixed recipe, and report what it earned before and after.

    - `target`: name of an installed environment, or a project folder (a `Path`).
    - `python`, `sandbox`, `runtime`: as in `wander.checks.check_environment`.
    - `recipe`: smaller sizes, for tests. Results of other sizes are not a proof.

    An environment that a tiny policy cannot learn is reported as not shown, with the reason. Raises
    `MissingExtra` without the packages for training, and `RunError` if the recipe's process dies.
    """
    if not all(map(importlib.util.find_spec, ("torch", "trl", "datasets"))):
        raise MissingExtra("train", needed_for="the proof of learning")
    is_path = isinstance(target, Path)
    with tempfile.TemporaryDirectory(prefix="wander-learning-") as folder:
        request = LearningRequest(
            target=str(Path(target).resolve() if is_path else target),
            is_path=is_path,
            arguments=dict(arguments or {}),
            python=str(python),
            sandbox=sandbox,
            runtime=runtime,
            recipe=recipe or Recipe(),
            folder=folder,
        )
        with _run(request) as running:
            return _follow(running, request, progress or (lambda stage, done, total: None))


@dataclass(frozen=True)
class _Running:
    """The recipe's process, its lines, and its log."""

    process: subprocess.Popen[bytes]
    lines: queue.Queue[bytes]
    log: IO[bytes]


@contextlib.contextmanager
def _run(request: LearningRequest) -> Iterator[_Running]:
    """Start the recipe's process. When the block ends, kill it and its session."""
    fixed = {**ONE_THREAD, **(AVX2 if platform.machine() in ("x86_64", "AMD64") else {})}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wander.learning.recipe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=child_environ("VIRTUAL_ENV", "WANDER_HUB_JOB", **fixed),
            cwd=request.folder,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines: queue.Queue[bytes] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            process.stdin.write(request.model_dump_json().encode() + b"\n")
            process.stdin.flush()  # it stays open: the process ends with it
            yield _Running(process, lines, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join()
            process.stdin.close()


def _follow(running: _Running, request: LearningRequest, progress: Progress) -> LearningReport:
    """Read the process's lines until the report."""
    process, log = running.process, running.log
    until = time.monotonic() + LONGEST
    stage = "starting"
    while line := _next_line(running.lines, until):
        answer = json.loads(line)
        if "report" in answer:
            try:
                return LearningReport.model_validate(answer["report"])
            except ValidationError as error:
                field, fault = first_fault(error)
                raise RunError(f"the report of the recipe is not valid: {field}: {fault}") from error
        stage = answer["stage"]
        progress(stage, answer["done"], answer["total"])
    if line is None or process.wait() == -signal.SIGXCPU:
        limit = f"{request.recipe.cpu_seconds / 60:g} minutes of processor time"
        if line is None:
            limit = f"{LONGEST / 60:.0f} minutes"
        reason = f"the recipe needs more than {limit}; it stopped while {stage}"
        return LearningReport(
            schema="wander.learning/1", environment=request.target, arguments=request.arguments, reason=reason
        )
    log.seek(0)
    last = log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    raise RunError(
        f"the recipe's process exited with status {process.returncode} while {stage}"
        + "".join(f": {text:.300}" for text in last)
    )


def _read_lines(stdout: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(b"")


def _next_line(lines: queue.Queue[bytes], until: float) -> bytes | None:
    """Return the next line, an empty one at the end, or None if it takes too long."""
    try:
        return lines.get(timeout=max(0.0, until - time.monotonic()))
    except queue.Empty:
        return None
