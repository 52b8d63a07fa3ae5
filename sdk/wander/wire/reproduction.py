"""The exactness of a training run's repetition, the machine and libraries that it needs, and its settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from wander.types import Record, portable_json
from wander.wire.fields import Count, Sha256, Text

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")

TrainingMode = Literal["exact", "fast"]


class Hardware(Record):
    """The machine that a run was trained on."""

    cpu: Text | None = None
    cores: Count
    """Number of logical cores that the process may use."""
    instructions: Text | None = None
    """Instruction set of PyTorch's kernels (AVX512, AVX2, DEFAULT); it changes the order of additions."""
    memory_bytes: Count | None = None
    gpus: list[Text] = Field(default_factory=list)
    driver: Text | None = None
    """Version of the GPU driver."""
    cuda: Text | None = None
    """CUDA version that PyTorch was built for; None without a GPU."""


class SourceChanges(Record):
    """Uncommitted changes to the tracked files of the working folder's repository."""

    sha256: Sha256
    """SHA-256 of the complete output of `git diff HEAD`."""
    size: Count
    """Size of the diff in bytes."""
    file: Text | None = None
    """Name of the diff in the run's folder; None if the diff was too large to store."""


class AllowedChange(Record):
    """A setting or library that differed when the run was resumed, and that the user allowed to differ."""

    field: Text
    before: Any = None
    after: Any = None
    step: Count
    """Last step before the change."""
    at: datetime


class Reproduction(Record):
    """The exactness of a training run's repetition, and the machine and libraries that it needs."""

    mode: TrainingMode
    """`exact`: the same bits every time on an equal machine. `fast`: similar results, not bit for bit."""
    reason: Text
    """Reason for the mode, in words."""
    threads: Count
    """Number of PyTorch threads in each process. It decides the order of additions, so a resumed run uses the
    same number."""
    processes: Count = 1
    device: Text
    hardware: Hardware
    libraries: dict[Text, Text] = Field(default_factory=dict)
    """Versions of everything that computes: Python, torch, transformers, trl, peft, accelerate..."""
    trainer_sha256: Sha256
    """Digest of the SDK's own modules. It distinguishes two states of the code with the same version
    number."""
    changes: SourceChanges | None = None
    """Uncommitted changes. None without changes, or if the working folder is not in a repository."""
    allowed: list[AllowedChange] = Field(default_factory=list)

    def told(self) -> str:
        """Describe how exactly the run can be repeated, and why."""
        steps = self.exact_steps
        if steps is None:
            return f"{self.mode}: {self.reason}"
        return f"{self.mode} until step {steps}, then with changes that were allowed: {self.reason}"

    @property
    def exact_steps(self) -> int | None:
        """Number of steps before the first change that the user allowed; None if there were no changes."""
        return min((change.step for change in self.allowed), default=None)


def toml_lines(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as lines of TOML, with a table for each section; settings that are None are left out."""
    sections = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    for name, value in settings.items():
        if name not in sections and value is not None:
            yield f"{_key(name)} = {_toml(value)}"
    for name, section in sections.items():
        known = {key: value for key, value in section.items() if value is not None}
        if known:
            yield f"\n[{_key(name)}]"
            yield from (f"{_key(key)} = {_toml(value)}" for key, value in known.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value if item is not None)}]"
    return portable_json(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else portable_json(name)
