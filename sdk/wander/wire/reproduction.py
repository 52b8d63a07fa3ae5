"""What it takes to repeat a training run next to environment and model, and its settings as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from wander.types import Record
from wander.wire.fields import Count, Sha256, Text

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")

TrainingMode = Literal["exact", "fast"]


class Hardware(Record):
    """The machine that a run was trained on."""

    cpu: Text | None = None
    cores: Count
    """Logical ones that the process may use."""
    instructions: Text | None = None
    """The set that PyTorch's kernels use (AVX512, AVX2, DEFAULT): another one adds in another order."""
    memory_bytes: Count | None = None
    gpus: list[Text] = Field(default_factory=list)
    driver: Text | None = None
    """Of the GPUs."""
    cuda: Text | None = None
    """Version that PyTorch was built for; None without a GPU."""


class SourceChanges(Record):
    """Uncommitted changes to the tracked files of the working folder's repository."""

    sha256: Sha256
    """Of the whole of `git diff HEAD`."""
    size: Count
    """Bytes."""
    file: Text | None = None
    """Where the diff stands in the run's folder; None where it was too large to keep."""


class AllowedChange(Record):
    """Something that was another thing when the run went on, and was allowed to be."""

    field: Text
    before: Any = None
    after: Any = None
    step: Count
    """The last step that was made before."""
    at: datetime


class Reproduction(Record):
    """How exactly a training run can be repeated, and with what."""

    mode: TrainingMode
    """`exact`: the same bits each time on such a machine. `fast`: alike, never bit for bit."""
    reason: Text
    """Why it is that mode, in words."""
    threads: Count
    """Of PyTorch in one process. They decide in which order sums are added, so a resumed run sets them."""
    processes: Count = 1
    device: Text
    hardware: Hardware
    libraries: dict[Text, Text] = Field(default_factory=dict)
    """Versions of all that computes: Python, torch, transformers, trl, peft, accelerate..."""
    trainer_sha256: Sha256
    """Digest of the SDK's own modules, which tells two states of one version apart."""
    changes: SourceChanges | None = None
    """None where the working folder is no repository, or as it was committed."""
    allowed: list[AllowedChange] = Field(default_factory=list)

    def told(self) -> str:
        """Return in words how exactly the run can be repeated, and why."""
        steps = self.exact_steps
        if steps is None:
            return f"{self.mode}: {self.reason}"
        return f"{self.mode} until step {steps}, then with changes that were allowed: {self.reason}"

    @property
    def exact_steps(self) -> int | None:
        """Steps until something was changed; None when nothing was."""
        return min((change.step for change in self.allowed), default=None)


def toml_lines(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as TOML, a table for each section; what is not set is left out."""
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
        return f"[{', '.join(_toml(one) for one in value if one is not None)}]"
    # Strings, numbers and truth values are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
