"""The files of an environment's folder: whether they are those that a run was started with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from wander_client.errors import ClientError

_NO_SOURCE = frozenset({"__pycache__", "build", "dist", "runs", "venv", "node_modules"})
_LARGE_BYTES = 16 * 1024 * 1024


def source_digests(folder: Path) -> dict[str, str]:
    """Return what the files of an environment's folder hold, by their place in it.

    Hidden files, caches, builds, virtual environments and runs do not count; of a file of more than 16 MiB
    the size and the time of its last change stand for the content.
    """
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _may_hold_source(here / name))
        for name in files:
            if not name.startswith("."):
                found[str((here / name).relative_to(folder))] = _digest(here / name)
    return found


def find_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files that were added, removed or changed, in order."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def environment_changed(files: list[str], *, examples_changed: bool, folder: str, model: str) -> ClientError:
    """Return the refusal to go on with a run whose environment's files are others now."""
    which = "\n".join(files[:10]) + (f"\nand {len(files) - 10} more" if len(files) > 10 else "")
    anew = f"start a new run: `wander eval {folder} -m {model}`"
    if examples_changed:
        return ClientError(
            "the environment's files changed since this run began, and so did its examples",
            detail=which,
            hint=anew,
            code="environment_changed",
        )
    return ClientError(
        "the environment's files changed since this run began; its examples are the same",
        detail=which,
        hint=f"{anew}; or go on with `--allow-changed-code`, if old and new rollouts may stand side by side",
        code="environment_changed",
    )


def _may_hold_source(folder: Path) -> bool:
    name = folder.name
    if name.startswith(".") or name in _NO_SOURCE or name.endswith(".egg-info"):
        return False
    return not any((folder / mark).exists() for mark in ("pyvenv.cfg", "run.json"))


def _digest(file: Path) -> str:
    try:
        facts = file.stat()
        if facts.st_size > _LARGE_BYTES:
            return f"{facts.st_size} bytes at {facts.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:  # a dangling link, a socket: it is the same as long as it fails the same way
        return f"unreadable: {error.strerror}"
