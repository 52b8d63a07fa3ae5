"""Where an environment lies: installed from the hub, first when it is absent, or in a folder."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.names import EnvironmentName, parse_environment

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime
    from wander.wire import EnvironmentPin

    from wander_client.context import Invocation
    from wander_client.packages.store import Installed


@dataclass(frozen=True)
class Location:
    """Where an environment lies, before anything of it runs."""

    spec: str
    """As the user wrote it."""
    target: str
    """What the loader takes: the environment's name, or the folder's path."""
    python: Path
    """The interpreter to run it with."""
    installed: Installed | None = None
    folder: Path | None = None

    @property
    def runtime(self) -> Runtime | None:
        """What its virtual environment was made from; None for this process's own Python."""
        from wander_client.packages.virtualenvs import runtime_of

        return None if self.python == Path(sys.executable) else runtime_of(self.python)

    @property
    def exact_name(self) -> str:
        """`owner/name@version` of what is installed, else the path of the folder."""
        return str(self.installed.name) if self.installed else str(self.folder)

    @property
    def label(self) -> str:
        """Short name for files and plan lines: `owner/name` or the folder's name."""
        if self.installed is not None:
            return f"{self.installed.record.owner}/{self.installed.record.name}"
        return self.folder.name if self.folder is not None else self.target


def locate(context: Invocation, spec: str, *, no_lock: bool | None = None) -> Location:
    """Find what a word means, installing `owner/name` when it is absent.

    `no_lock` leaves the version's lock aside, or takes it; None takes what was chosen last.
    """
    found = parse_environment(spec)
    if isinstance(found, Path):
        module = found.name.replace("-", "_")
        marks = ("pyproject.toml", f"{module}.py", f"{module}/__init__.py", f"src/{module}/__init__.py")
        if not any((found / mark).exists() for mark in marks):
            raise NotFound(
                f"there is no environment in `{spec}`: it has no `pyproject.toml` and no module `{module}`",
                hint="`wander new NAME` makes one; `wander search` finds one that is published",
                code="no_environment",
            )
        from wander_client.packages.folder import python_of

        python = python_of(found, context.settings.data_dir, context.output.note)
        return Location(spec, str(found), python, folder=found)
    try:
        return location_of(spec, ensure_installed(context, found, no_lock=no_lock))
    except ClientError as error:
        if os.path.isdir(spec):  # False too for what no path can be
            error.hint = f"to mean the folder of that name, write `./{spec}`"
        raise


def location_of(spec: str, installed: Installed) -> Location:
    """Return where an installed environment lies."""
    return Location(spec, installed.record.name, installed.python, installed=installed)


def find_installed(context: Invocation, name: EnvironmentName) -> list[Installed]:
    """Return what is installed of an environment from this hub, what was chosen last at the end."""
    from wander_client.packages.store import EnvironmentStore

    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    # A virtual environment dies with the Python it was made from; such a one is made again.
    return [one for one in store.find(name, context.settings.hub) if one.is_complete]


def ensure_installed(context: Invocation, name: EnvironmentName, *, no_lock: bool | None = None) -> Installed:
    """Return the installed environment; asks the hub only when that is needed."""
    from wander_client.packages.install import install
    from wander_client.packages.store import NEVER, EnvironmentStore

    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    chosen_at = {one.path: one.chosen_at for one in find_installed(context, name)}
    # What was installed for one run without its lock is not what the others mean.
    present = [
        one
        for one in find_installed(context, name)
        if one.record.fits(no_lock) and (no_lock is not None or one.is_chosen)
    ]
    if name.version is not None and present:
        store.virtualenvs.mark_used(present[-1].record.virtualenv)
        return present[-1]
    try:
        with context.hub() as hub:
            installed, fresh = install(
                hub, store, context.settings.cache_dir, name, no_lock=no_lock, warn=context.output.warn
            )
    except Unavailable as error:
        if not present:
            raise
        doubts = "" if name.version else ", which may not be the newest"
        context.output.warn(f"{error}; using the installed {present[-1].name}{doubts}")
        return present[-1]
    if no_lock and installed.record.unlocked == "chosen":
        # Left aside for this run alone: what the version means here stays.
        store.set_chosen_at(installed, chosen_at.get(installed.path, NEVER))
    if fresh:
        record = installed.record
        context.output.note(
            f"installed {installed.name} (sha256:{record.wheel_sha256[:12]}) from {record.hub}"
        )
    return installed


def log_folder(context: Invocation) -> Path:
    """Return the folder of logs of no run: in the cache, or a temporary one if that is only read."""
    folder = context.settings.cache_dir / "logs"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="wander-logs-"))


def default_log(context: Invocation, location: Location) -> Path:
    """Return where the environment's prints go when no run has a folder for them."""
    return log_folder(context) / f"{location.label.replace('/', '--')}.log"


_PYTHON_VALUES = {"True": True, "False": False, "None": None}
"""How Python writes the values that JSON calls true, false and null."""


def parse_arguments(pairs: list[str], whole: str | None) -> dict[str, Any]:
    """Return environment arguments from `KEY=VALUE` words (JSON, or Python's words) and one object."""
    import json

    arguments: dict[str, Any] = {}
    example = "write `--args '{\"size\": 3}'`"
    if whole:
        try:
            parsed = json.loads(whole)
        except ValueError as error:
            raise UsageError(f"`--args` is no JSON: {error}", hint=example) from error
        if not isinstance(parsed, dict):
            raise UsageError("`--args` is no JSON object", hint=example)
        arguments.update(parsed)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"`-a {pair}` is not KEY=VALUE", hint="write `-a size=3 -a name=text`")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = _PYTHON_VALUES.get(value, value)
    return arguments


def require_published(opened_pin: EnvironmentPin, hint: str) -> EnvironmentName:
    """Return the hub name of a pin; a run on a folder's environment has none."""
    if opened_pin.owner is None or opened_pin.version is None:
        raise ClientError(
            f"this run used the folder `{opened_pin.path}`, not a published version",
            hint=hint,
            code="local_environment",
        )
    return EnvironmentName(opened_pin.owner, opened_pin.name, opened_pin.version)
