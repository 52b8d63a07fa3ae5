"""Find an environment: in a folder, or installed from the hub. Installs it if necessary."""

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
    """The location of an environment that is not loaded yet."""

    spec: str
    """Name or path as the user typed it."""
    target: str
    """Name or path for the loader."""
    python: Path
    """Interpreter that runs the environment."""
    installed: Installed | None = None
    folder: Path | None = None

    @property
    def runtime(self) -> Runtime | None:
        """Origin of its virtual environment, or None for the Python of this process."""
        from wander_client.packages.virtualenvs import runtime_of

        return None if self.python == Path(sys.executable) else runtime_of(self.python)

    @property
    def exact_name(self) -> str:
        """`owner/name@version` of an installed environment, or the path of the folder."""
        return str(self.installed.name) if self.installed else str(self.folder)

    @property
    def label(self) -> str:
        """Short name for files and plan lines: `owner/name` or the folder's name."""
        if self.installed is not None:
            return f"{self.installed.record.owner}/{self.installed.record.name}"
        return self.folder.name if self.folder is not None else self.target


def project_version(location: Location) -> str | None:
    """Return the version of the package; None if its build decides it."""
    from wander_client.packages.built_package import require_project

    if location.installed is not None:
        return location.installed.record.version
    if location.folder is None or not (location.folder / "pyproject.toml").is_file():
        return None
    version = require_project(location.folder).get("version")
    return version if isinstance(version, str) else None


def locate(context: Invocation, spec: str, *, no_lock: bool | None = None) -> Location:
    """Find an environment, and install `owner/name` if it is not installed.

    `no_lock` chooses whether to ignore the version's lock. None means the installation that was chosen last.
    """
    source = parse_environment(spec)
    if isinstance(source, Path):
        module = source.name.replace("-", "_")
        files = ("pyproject.toml", f"{module}.py", f"{module}/__init__.py", f"src/{module}/__init__.py")
        if not any((source / file).exists() for file in files):
            raise NotFound(
                f"no environment in `{spec}`: it has no `pyproject.toml` and no module `{module}`",
                hint="create an environment with `wander new NAME`, or find one with `wander search`",
                code="no_environment",
            )
        from wander_client.packages.folder import python_of

        python = python_of(source, context.settings.data_dir, context.output.note)
        return Location(spec, str(source), python, folder=source)
    try:
        return location_of(spec, ensure_installed(context, source, no_lock=no_lock))
    except ClientError as error:
        if os.path.isdir(spec):  # also False for strings that cannot be a path
            error.hint = f"if you mean the folder of that name, pass `./{spec}`"
        raise


def location_of(spec: str, installed: Installed) -> Location:
    """Return the location of an installed environment."""
    return Location(spec, installed.record.name, installed.python, installed=installed)


def find_installed(context: Invocation, name: EnvironmentName) -> list[Installed]:
    """Return the installations of an environment from this hub. The last chosen installation is last."""
    from wander_client.packages.store import EnvironmentStore

    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    # A virtual environment breaks when the Python that it was created from is removed.
    return [item for item in store.find(name, context.settings.hub) if item.is_complete]


def ensure_installed(context: Invocation, name: EnvironmentName, *, no_lock: bool | None = None) -> Installed:
    """Return the installed environment. Contacts the hub only if necessary."""
    from wander_client.packages.install import install
    from wander_client.packages.store import NEVER, EnvironmentStore

    store = EnvironmentStore(context.settings.data_dir, context.output.warn)
    chosen_at = {item.path: item.chosen_at for item in find_installed(context, name)}
    # Ignore installations without a lock that were made for a single run.
    present = [
        item
        for item in find_installed(context, name)
        if item.record.fits(no_lock) and (no_lock is not None or item.is_chosen)
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
        note = "" if name.version else ", which may not be the newest"
        context.output.warn(f"{error}; using the installed {present[-1].name}{note}")
        return present[-1]
    if no_lock and installed.record.unlocked == "chosen":
        # Ignoring the lock is for this run only, so the chosen installation stays the same.
        store.set_chosen_at(installed, chosen_at.get(installed.path, NEVER))
    if fresh:
        record = installed.record
        context.output.note(
            f"installed {installed.name} (sha256:{record.wheel_sha256[:12]}) from {record.hub}"
        )
    return installed


def log_folder(context: Invocation) -> Path:
    """Return the folder for logs outside of runs: in the cache, or temporary if the cache is read-only."""
    folder = context.settings.cache_dir / "logs"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="wander-logs-"))


def default_log(context: Invocation, location: Location) -> Path:
    """Return the default log file for the output of an environment."""
    return log_folder(context) / f"{location.label.replace('/', '--')}.log"


_PYTHON_VALUES = {"True": True, "False": False, "None": None}
"""Python's spelling of the JSON values true, false and null."""


def parse_arguments(pairs: list[str], whole: str | None) -> dict[str, Any]:
    """Parse environment arguments from `KEY=VALUE` words (JSON or Python literals) and a JSON object."""
    import json

    arguments: dict[str, Any] = {}
    example = "for example: `--args '{\"size\": 3}'`"
    if whole:
        try:
            parsed = json.loads(whole)
        except ValueError as error:
            raise UsageError(f"`--args` is not valid JSON: {error}", hint=example) from error
        if not isinstance(parsed, dict):
            raise UsageError("`--args` is not a JSON object", hint=example)
        arguments.update(parsed)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"`-a {pair}` is not KEY=VALUE", hint="for example: `-a size=3 -a name=text`")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = _PYTHON_VALUES.get(value, value)
    return arguments


def require_published(opened_pin: EnvironmentPin, hint: str, run: str = "") -> EnvironmentName:
    """Return the hub name of a pin. Raises `ClientError` if the run, named `run`, used a folder."""
    if opened_pin.owner is None or opened_pin.version is None:
        named = f"the run `{run}`" if run else "this run"
        raise ClientError(
            f"{named} used the folder `{opened_pin.path}`, not a published version",
            hint=hint,
            code="local_environment",
        )
    return EnvironmentName(opened_pin.owner, opened_pin.name, opened_pin.version)
