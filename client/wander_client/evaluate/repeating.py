"""What may be taken from the record of a run that is played again: of a stranger's, data and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.types import Record

from wander_client.environments.replay import locate_pinned
from wander_client.environments.sandbox import SandboxChoice, choose_policy, confines, require_confined
from wander_client.errors import ClientError, UsageError
from wander_client.evaluate.evaluation import COMMAND_FILE, read_settings_of
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.runs.found import FoundRun, LocalRun
from wander_client.runs.own_records import read_command

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.wire import EnvironmentPin, RunManifest

    from wander_client.context import Invocation
    from wander_client.environments.location import Location


class Game(Record):
    """What the record of a game that a person played says of its environment."""

    environment: str
    """`owner/name@version`, exact, or the absolute path of a folder."""
    arguments: dict[str, Any]


def is_own(found: FoundRun) -> bool:
    """Return whether this user began a run on this machine, with the environment that its manifest names."""
    if not isinstance(found, LocalRun) or found.manifest.kind != "play":
        return own_settings(found) is not None
    try:
        kept = read_command(Path(found.place) / COMMAND_FILE, Game)
    except (ClientError, OSError):
        return False
    return kept.is_own and _names(kept.command, found.manifest.environment)


def own_settings(found: FoundRun) -> EvaluationSettings | None:
    """Return the settings with which this user began a run on this machine; None for any other run.

    A run whose manifest names another environment or other arguments than the signed record was changed.
    """
    if not isinstance(found, LocalRun) or found.manifest.kind == "training":
        return None
    try:
        kept = read_settings_of(Path(found.place))
    except ClientError:
        return None
    return kept.command if kept.is_own and _names(kept.command, found.manifest.environment) else None


def _names(begun: EvaluationSettings | Game, pin: EnvironmentPin) -> bool:
    named = pin.path if pin.owner is None else f"{pin.full_name}@{pin.version}"
    return begun.environment == named and begun.arguments == pin.arguments


@dataclass(frozen=True)
class ReadyReplay:
    """A run that is about to be replayed, after everything in its record that could do harm was refused."""

    location: Location
    manifest: RunManifest
    sandbox: SandboxPolicy | None


def prepare_replay(
    context: Invocation,
    found: FoundRun,
    arguments: Mapping[str, Any] | None,
    folder: Path | None,
    sandbox: SandboxChoice,
    *,
    no_lock: bool = False,
    in_process: bool = False,
) -> ReadyReplay:
    """Return a run with the environment that it pins, or `folder`, and the sandbox that it is replayed in.

    `arguments` replace those of the run. Raises `UsageError` and `ClientError` for what only a stranger's
    record chose.
    """
    by_default = confines(context.settings, pinned_spec(found, folder), in_process=in_process)
    policy = choose_policy(*sandbox, default=by_default)
    own = is_own(found)
    pin = choose_arguments(found, arguments, confined=policy is not None, is_own=own)
    location = locate_pinned(context, pin, folder=folder, no_lock=no_lock, is_own=own)
    require_confined(context, policy, location, "replay", in_process=in_process)
    return ReadyReplay(location, found.manifest.model_copy(update={"environment": pin}), policy)


def pinned_spec(found: FoundRun, folder: Path | None) -> str:
    """Return what names the environment that a run is played with: `folder`, or the one that it pins."""
    pin = found.manifest.environment
    return pin.full_name if folder is None and pin.owner is not None else f"./{folder or pin.path}"


def choose_arguments(
    found: FoundRun, given: Mapping[str, Any] | None, *, confined: bool, is_own: bool
) -> EnvironmentPin:
    """Return the environment of a run with the arguments to open it with: the given ones, else the run's.

    Raises `UsageError` for arguments of a stranger's run that name addresses or files, unless the environment
    is confined: they decide what its code asks and reads.
    """
    pin = found.manifest.environment
    if given is not None:
        return pin.model_copy(update={"arguments": {**given}})
    reaching = sorted(_reaching(pin.arguments)) if not (confined or is_own) else []
    if reaching:
        whole = shlex.quote(json.dumps(pin.arguments))
        raise UsageError(
            f"the run passes its environment arguments that name addresses or files: {', '.join(reaching)}",
            hint=f"add `--sandbox`, or give the arguments yourself: `--args {whole}`",
            code="arguments_of_another",
        )
    return pin


def _reaching(value: Any, name: str = "") -> Iterator[str]:
    """Yield the arguments, by their dotted names, whose text looks like an address or a path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _reaching(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _reaching(inner, name)
    elif isinstance(value, str) and ("/" in value or "\\" in value or value.startswith(("~", "."))):
        yield f"`{name}`"
