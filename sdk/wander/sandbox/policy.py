"""What a sandboxed environment may use: its limits, and the folders it may read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from wander.errors import ConfigError
from wander.types import Record, first_fault

_MIB = 1 << 20
_FOLDERS = ("read", "hide")
_UNITS = {"": 1, "k": 1 << 10, "m": _MIB, "g": 1 << 30, "t": 1 << 40}


class SandboxPolicy(Record):
    """The limits of one worker. Sizes are bytes, times seconds."""

    model_config = ConfigDict(frozen=True)

    memory: int = Field(default=4096 * _MIB, ge=64 * _MIB)
    """Of all its processes together where control groups can be had, else address space of each."""
    processes: int = Field(default=256, ge=8)
    """Processes and threads."""
    cpu: int = Field(default=14_400, ge=1)
    """Processor time of one process; the worker is started again after it."""
    file: int = Field(default=256 * _MIB, ge=1)
    """Size of one file."""
    files: int = Field(default=1024, ge=64)
    """Open files of one process."""
    tmp: int = Field(default=256 * _MIB, ge=_MIB)
    """Space in `/tmp`, the one place to write, which is memory."""
    shm: int = Field(default=64 * _MIB, ge=4096)
    """Space in `/dev/shm`."""
    rollout: float = Field(default=900.0, gt=0)
    """Time that the environment itself may take for one rollout; waiting for the model does not count."""
    log: int = Field(default=64 * _MIB, ge=4096)
    """What it may print; the rest is dropped."""
    read: tuple[str, ...] = ()
    """Absolute paths of other folders and files that it may read."""
    hide: tuple[str, ...] = Field(default=(), exclude_if=lambda folders: not folders)
    """Absolute paths of folders of which it may see nothing, even if `read` or its own folder holds one."""

    def limits(self) -> dict[str, int | float]:
        """Return the limits without the folders."""
        return {name: value for name, value in self if name not in _FOLDERS}


def parse_limits(pairs: Iterable[str], base: SandboxPolicy | None = None) -> SandboxPolicy:
    """Return a policy from `KEY=VALUE` words such as `memory=2G`, `rollout=60`, `read=/data`.

    Raises `ConfigError` for a key that is unknown or a value that is none.
    """
    given: dict[str, Any] = dict(base or SandboxPolicy())
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in SandboxPolicy.model_fields or not equals:
            raise ConfigError(
                f"`{pair}` is no limit of the sandbox",
                hint=f"write KEY=VALUE with one of {', '.join(SandboxPolicy.model_fields)}",
            )
        if key not in _FOLDERS:
            found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", value.strip().lower())
            if found is None:
                raise ConfigError(
                    f"`{pair}` has no number", hint="write one like `memory=2G` or `rollout=60`"
                )
            number = float(found[1]) * _UNITS[found[2]]
            given[key] = int(number) if number.is_integer() else number
            continue
        path = Path(value).expanduser().absolute()
        if not path.exists():
            raise ConfigError(f"`{value}` does not exist", hint="give a folder or a file that is there")
        given[key] = (*given[key], str(path))
    try:
        return SandboxPolicy(**given)
    except ValidationError as error:
        limit, said = first_fault(error)
        raise ConfigError(f"the sandbox cannot have these limits: `{limit}`: {said}") from error
