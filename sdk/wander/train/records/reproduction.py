"""Conditions for repeating a training run with the same bits: mode, threads, machine, libraries, code.

In exact mode (on a CPU, in a single process, with a fixed number of threads), the same seed gives the same
bits. All conditions that break this put a run into fast mode. It can then be repeated only approximately, and
its record contains the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

import wander
from wander.evals.store.manifest import (
    ask_program,
    find_differences,
    find_installed_versions,
    pin_differences,
    read_uncommitted_diff,
)
from wander.train.config import GRPOSettings
from wander.types import EnvironmentInfo
from wander.wire import RunManifest
from wander.wire.reproduction import Hardware, Reproduction, SourceChanges, TrainingMode
from wander.wire.source_tree import TreeEntry, tree_digest

LIBRARIES = (
    *("torch", "transformers", "trl", "peft", "accelerate", "tokenizers", "safetensors", "datasets"),
    *("numpy", "vllm"),
)
"""Distributions that can affect the weights."""
CHANGES = "changes.diff"
MOST_CHANGES = 1 << 20
"""Maximum size in bytes of a stored diff; of a longer diff only the digest is stored."""
_DRIVER_SECONDS = 10.0
_SHOWN = 60
"""Maximum number of characters of a value in an error."""


def reproduction_of(
    environments: Sequence[EnvironmentInfo],
    device: torch.device,
    *,
    processes: int = 1,
    engine: str = "transformers",
) -> tuple[Reproduction, bytes]:
    """Return the reproduction record of a run that starts now, and the diff of uncommitted changes."""
    mode, reason = decide_mode(environments, device, processes, engine)
    diff = read_uncommitted_diff(Path.cwd()) or b""
    kept = CHANGES if len(diff) <= MOST_CHANGES else None
    reproduction = Reproduction(
        mode=mode,
        reason=reason,
        threads=torch.get_num_threads(),
        processes=processes,
        device=device.type,
        hardware=this_hardware(device),
        libraries={"python": platform.python_version(), **find_installed_versions(LIBRARIES)},
        trainer_sha256=trainer_digest(),
        changes=SourceChanges(sha256=hashlib.sha256(diff).hexdigest(), size=len(diff), file=kept)
        if diff
        else None,
    )
    return reproduction, diff


def decide_mode(
    environments: Sequence[EnvironmentInfo],
    device: torch.device,
    processes: int = 1,
    engine: str = "transformers",
) -> tuple[TrainingMode, str]:
    """Return whether the same seed gives the same bits (`exact`), and the reason."""
    reasons = []
    if engine != "transformers":
        reasons.append(f"`{engine}` samples in batches that depend on the arrival of requests")
    if device.type != "cpu":
        reasons.append(f"the policy computes on `{device.type}`, where the order of additions is not fixed")
    if processes > 1:
        reasons.append(f"{processes} processes add up the gradient")
    reasons += [
        f"`{info.name}` declares that it is not deterministic"
        for info in environments
        if not info.deterministic
    ]
    if reasons:
        return "fast", "; ".join(reasons)
    return "exact", "one process on a CPU with a fixed number of threads: the same seed gives the same bits"


@dataclass(frozen=True)
class Difference:
    """A value that changed since a run started."""

    field: str
    """Dotted name of the value in the manifest."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {_format(self.before)} before, {_format(self.after)} now"


def training_differences(recorded: RunManifest, now: RunManifest) -> list[Difference]:
    """Return the differences that keep a run from being resumed as the same run.

    The comparison covers the manifest and the computation: libraries, the SDK's own code, the device, and the
    processor in exact mode. The number of threads is not compared, because a resumed run sets it. Changes
    that were allowed earlier are not differences.
    """
    fields = pin_differences(_with_deciding_settings(recorded), _with_deciding_settings(now))
    if recorded.reproduction:
        fields += find_differences(_pick_computation(recorded), _pick_computation(now))
    # The digest of the task set covers the examples with a shorter value.
    differences = {name: Difference(name, a, b) for name, a, b in fields if name != "example_ids"}
    first: dict[str, Any] = {}
    latest: dict[str, Any] = {}
    for change in recorded.reproduction.allowed if recorded.reproduction else ():
        first.setdefault(change.field, change.before)
        latest[change.field] = change.after
    for name, value in latest.items():
        current = differences.pop(name).after if name in differences else first[name]
        if current != value:
            differences[name] = Difference(name, value, current)
    return [differences[name] for name in sorted(differences)]


def _with_deciding_settings(manifest: RunManifest) -> RunManifest:
    """Return a manifest with only the settings that determine the weights; new settings have their
    defaults."""
    others: Any = {
        "environment": {"workers"},
        "environments": {"__all__": {"workers"}},
        "output": {"checkpoint_every", "checkpoints_kept"},
    }
    with contextlib.suppress(ValidationError):
        settings = GRPOSettings.model_validate(manifest.training)
        update = {"training": settings.model_dump(mode="json", exclude=others)}
        return manifest.model_copy(update=update)
    return manifest


def _pick_computation(manifest: RunManifest) -> dict[str, Any]:
    """Return other values that determine the weights, which `pin_differences` does not compare."""
    reproduction = manifest.reproduction
    if reproduction is None:
        return {}
    hardware: dict[str, Any] = {"gpus": reproduction.hardware.gpus}
    mixture = {
        part.label: {"weight": part.weight, "task_set_sha256": part.task_set_sha256}
        | part.environment.model_dump(mode="json", include=_MIXED)
        for part in manifest.mixture
    }
    if reproduction.mode == "exact":
        hardware |= {"cpu": reproduction.hardware.cpu, "instructions": reproduction.hardware.instructions}
    computing = reproduction.model_dump(
        include={"mode", "processes", "device", "libraries", "trainer_sha256"}
    )
    return {
        "reproduction": {**computing, "hardware": hardware},
        "environment": {"source_sha256": manifest.environment.source_sha256},
        "mixture": mixture,
    }


_MIXED = {"owner", "name", "version", "wheel_sha256", "lock_sha256", "source_sha256", "arguments"}
"""Fields that identify an environment in a mixture."""


def _format(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@contextlib.contextmanager
def arithmetic(mode: TrainingMode, threads: int) -> Iterator[None]:
    """Compute with `threads` threads inside the block and, in exact mode, only with deterministic
    algorithms."""
    before = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    if mode == "exact":
        torch.use_deterministic_algorithms(True)
        # Filling new tensors would take a pass over each of them, and only helps code that reads
        # uninitialized memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def this_hardware(device: torch.device) -> Hardware:
    """Return a description of this machine; GPUs are included only if one is used."""
    gpus: list[str] = []
    if device.type == "cuda":
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Hardware(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        instructions=torch.backends.cpu.get_cpu_capability(),
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        driver=_driver() if gpus else None,
        cuda=torch.version.cuda if gpus else None,
    )


@cache
def trainer_digest() -> str:
    """Return the digest of the SDK's own Python files."""
    root = Path(wander.__file__).parent
    return tree_digest(
        TreeEntry(path.relative_to(root).as_posix(), False, hashlib.sha256(path.read_bytes()).digest())
        for path in root.rglob("*.py")
    )


def _cpu_name() -> str | None:
    with contextlib.suppress(OSError):  # this file exists only on Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    output = ask_program(asked, _DRIVER_SECONDS)
    return None if output is None else output.decode().partition("\n")[0].strip() or None
