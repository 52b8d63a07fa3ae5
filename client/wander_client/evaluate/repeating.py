"""Choose what a replay or rerun may take from a run's record.

From a stranger's record, it takes only data.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.environments.replay import locate_pinned
from wander_client.environments.sandbox import SandboxChoice, choose_policy, confines, require_confined
from wander_client.errors import ClientError, UsageError
from wander_client.evaluate.evaluation import read_settings_of
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.runs.found import FoundRun, LocalRun

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.wire import EnvironmentPin, RunManifest

    from wander_client.context import Invocation
    from wander_client.environments.location import Location


def own_settings(source: FoundRun) -> EvaluationSettings | None:
    """Return the settings of a run that this user started on this machine, or None.

    Returns None if the manifest names another environment or other arguments than the signed record.
    """
    if not isinstance(source, LocalRun) or source.manifest.kind == "training":
        return None
    try:
        record = read_settings_of(Path(source.location))
    except ClientError:
        return None
    settings, pin = record.command, source.manifest.environment
    name = pin.path if pin.owner is None else f"{pin.full_name}@{pin.version}"
    is_same = settings.environment == name and settings.arguments == pin.arguments
    return settings if record.is_own and is_same else None


@dataclass(frozen=True)
class ReadyReplay:
    """A run that is ready to be replayed, after its record was checked for dangerous content."""

    location: Location
    manifest: RunManifest
    sandbox: SandboxPolicy | None


def prepare_replay(
    context: Invocation,
    source: FoundRun,
    arguments: Mapping[str, Any] | None,
    folder: Path | None,
    sandbox: SandboxChoice,
    *,
    no_lock: bool = False,
    in_process: bool = False,
) -> ReadyReplay:
    """Prepare a replay of a run in the environment that it pins, or in `folder`, and in a sandbox if it is
    on. `arguments` replace those of the run. Raises `UsageError` or `ClientError` for settings that come only
    from a stranger's record.
    """
    by_default = confines(context.settings, pinned_spec(source, folder), in_process=in_process)
    policy = choose_policy(*sandbox, default=by_default)
    own = own_settings(source) is not None
    pin = choose_arguments(source, arguments, confined=policy is not None, is_own=own)
    location = locate_pinned(context, pin, folder=folder, no_lock=no_lock, is_own=own)
    require_confined(context, policy, location, "replay", in_process=in_process)
    return ReadyReplay(location, source.manifest.model_copy(update={"environment": pin}), policy)


def pinned_spec(source: FoundRun, folder: Path | None) -> str:
    """Return the name of the environment to play a run with: `folder`, or the pinned environment."""
    pin = source.manifest.environment
    return pin.full_name if folder is None and pin.owner is not None else f"./{folder or pin.path}"


def choose_arguments(
    source: FoundRun, arguments: Mapping[str, Any] | None, *, confined: bool, is_own: bool
) -> EnvironmentPin:
    """Return the pinned environment with the given arguments, or else with those of the run.

    Raises `UsageError` if a stranger's run has arguments that contain addresses or paths, unless the
    environment runs in a sandbox: these arguments decide what its code accesses.
    """
    pin = source.manifest.environment
    if arguments is not None:
        return pin.model_copy(update={"arguments": {**arguments}})
    unsafe = sorted(_unsafe_arguments(pin.arguments)) if not (confined or is_own) else []
    if unsafe:
        whole = shlex.quote(json.dumps(pin.arguments))
        raise UsageError(
            f"the run's arguments contain addresses or paths: {', '.join(unsafe)}",
            hint=f"add `--sandbox`, or pass the arguments yourself: `--args {whole}`",
            code="arguments_of_another",
        )
    return pin


def _unsafe_arguments(value: Any, name: str = "") -> Iterator[str]:
    """Yield the dotted names of arguments whose text looks like an address or a path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _unsafe_arguments(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _unsafe_arguments(inner, name)
    elif isinstance(value, str) and ("/" in value or "\\" in value or value.startswith(("~", "."))):
        yield f"`{name}`"
