"""Limits of a sandboxed environment, and the folders that it may read."""

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
    """Limits of a worker. Sizes are in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True)

    memory: int = Field(default=4096 * _MIB, ge=64 * _MIB)
    """Memory of all processes together if control groups are available, else address space of each
    process."""
    processes: int = Field(default=256, ge=8)
    """Number of processes and threads."""
    cpu: int = Field(default=14_400, ge=1)
    """Processor time of a process. The worker is restarted when it is used up."""
    file: int = Field(default=256 * _MIB, ge=1)
    """Size of each file that is written."""
    files: int = Field(default=1024, ge=64)
    """Number of open files of a process."""
    tmp: int = Field(default=256 * _MIB, ge=_MIB)
    """Space in `/tmp`, the only writable folder, which is in memory."""
    shm: int = Field(default=64 * _MIB, ge=4096)
    """Space in `/dev/shm`."""
    rollout: float = Field(default=900.0, gt=0)
    """Time that the environment itself may use for a rollout; waiting for the model does not count."""
    log: int = Field(default=64 * _MIB, ge=4096)
    """Size of the output that the environment may print; further output is dropped."""
    read: tuple[str, ...] = ()
    """Absolute paths of additional folders and files that the environment may read."""
    hide: tuple[str, ...] = Field(default=(), exclude_if=lambda folders: not folders)
    """Absolute paths of folders that are hidden, even if `read` or the environment's own folder contains
    them."""

    def limits(self) -> dict[str, int | float]:
        """Return the limits without `read` and `hide`."""
        return {name: value for name, value in self if name not in _FOLDERS}


def parse_limits(pairs: Iterable[str], base: SandboxPolicy | None = None) -> SandboxPolicy:
    """Return a policy from `KEY=VALUE` words such as `memory=2G`, `rollout=60` or `read=/data`.

    Raises `ConfigError` for an unknown key or an invalid value.
    """
    given: dict[str, Any] = dict(base or SandboxPolicy())
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in SandboxPolicy.model_fields or not equals:
            raise ConfigError(
                f"`{pair}` is not a limit of the sandbox",
                hint=f"write KEY=VALUE with one of {', '.join(SandboxPolicy.model_fields)}",
            )
        if key not in _FOLDERS:
            match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", value.strip().lower())
            if match is None:
                raise ConfigError(
                    f"`{pair}` needs a number", hint="write a limit like `memory=2G` or `rollout=60`"
                )
            number = float(match[1]) * _UNITS[match[2]]
            given[key] = int(number) if number.is_integer() else number
            continue
        path = Path(value).expanduser().absolute()
        if not path.exists():
            raise ConfigError(f"`{value}` does not exist", hint="pass an existing folder or file")
        given[key] = (*given[key], str(path))
    try:
        return SandboxPolicy(**given)
    except ValidationError as error:
        limit, fault = first_fault(error)
        raise ConfigError(f"the limit `{limit}` of the sandbox is not valid: {fault}") from error
