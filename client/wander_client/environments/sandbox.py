"""Whether code of others runs in the sandbox, and whether packages are built: flags, then the settings.

Every command that runs such code decides here: `eval` with its suites and resumptions, `play`, `check`,
`train`, `sft`, `runs replay`, `runs rerun`, `publish`, `env lock`, `env import`, `worker`, and the calls
from Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated

from wander_client.errors import UsageError, name_option
from wander_client.names import is_scripted, looks_like_path
from wander_client.terminal.command import Option

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.packages.building.build import Builder
    from wander_client.settings import Settings

SANDBOX = ("--sandbox/--no-sandbox", "confine the environment (Linux)")
SANDBOX_LIMIT = ("--sandbox-limit", "KEY=VALUE: memory=2G, rollout=60, read=/data...")
SandboxFlag = Annotated[bool | None, Option(SANDBOX[0], help=SANDBOX[1])]
BuildFlag = Annotated[
    bool, Option("--build", help="build packages that have no wheel, which runs their code with your rights")
]
SandboxLimits = Annotated[list[str] | None, Option(SANDBOX_LIMIT[0], help=SANDBOX_LIMIT[1])]
SandboxChoice = tuple[bool | None, list[str] | None]
"""What was asked for: `--sandbox` or `--no-sandbox`, and the limits."""


def choose_policy(
    sandbox: bool | None, limits: list[str] | None, *, default: bool = False
) -> SandboxPolicy | None:
    """Return the limits of the sandbox, or None for none; raises `ConfigError` if a limit is not valid.

    A limit asks for the sandbox; `default` holds if neither is given (`confines`).
    """
    from wander.sandbox import parse_limits

    if limits and sandbox is False:
        raise UsageError(
            "`--no-sandbox` and `--sandbox-limit` contradict each other", hint="pass one of them"
        )
    if sandbox is False or (sandbox is None and not limits and not default):
        return None
    return parse_limits(limits or [])


def sandbox_options(sandbox: bool | Mapping[str, object] | None) -> SandboxChoice:
    """Return what Python's `sandbox=` asks for as the options of a command: the flag and the limits."""
    if not isinstance(sandbox, bool | Mapping | None):  # anything else would run it without one
        raise UsageError(
            f"`sandbox={sandbox!r}` is not a choice", hint='pass True, False, or `{"memory": "2G"}`'
        )
    if isinstance(sandbox, Mapping):
        return True, [f"{key}={value}" for key, value in sandbox.items()]
    return sandbox, []


def confines(
    settings: Settings, spec: str, model: str = "", *, in_process: bool = False, elsewhere: bool = False
) -> bool:
    """Return whether an environment runs in the sandbox if the command line does not say.

    The settings decide. If they do not either, environments of a hub are confined, on a machine that can. A
    folder is the user's own. With a model that is code of the package, or workers that are `elsewhere`, the
    sandbox would hold nothing.
    """
    if settings.sandbox is not None:
        return settings.sandbox
    if in_process or elsewhere or is_scripted(model) or looks_like_path(spec):
        return False
    return _has_sandbox(settings)


def _has_sandbox(settings: Settings) -> bool:
    """Return whether this machine can confine an environment; a machine that could is not tried again."""
    from wander.errors import SandboxError
    from wander.sandbox.support import find_fault, require_support

    try:
        support = require_support()
    except SandboxError:
        return False
    made_of = [os.uname().release, *support.command, *map(str, support.version), str(os.geteuid())]
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:32]
    mark = settings.cache_dir / "sandbox" / digest
    if mark.exists():
        return True
    if find_fault() is not None:
        return False
    with contextlib.suppress(OSError):  # it is tried again next time
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True


def require_here(policy: SandboxPolicy | None, addresses: Collection[object]) -> None:
    """Refuse a sandbox that was asked for, if the environment plays on other machines."""
    if policy is not None and addresses:
        raise UsageError(
            "`--sandbox` is for workers of this machine; `--worker` names another one",
            hint="`wander worker --help` tells what can be said there",
        )


def say_unconfined(context: Invocation, location: Location) -> None:
    """Say, the first time on this machine, that an environment of a hub runs outside of the sandbox."""
    if location.installed is None:
        return
    record = location.installed.record
    whose = hashlib.sha256(f"{record.hub}\n{location.label}".encode()).hexdigest()[:32]
    mark = context.settings.state_dir / "unconfined" / whose
    if mark.exists():
        return
    context.output.warn(
        f"`{location.label}` is a program from {record.hub} and runs with your rights; "
        + name_option("sandbox", True)
        + " confines it (`wander sandbox check` shows whether this machine can)"
    )
    with contextlib.suppress(OSError):  # it is said again next time
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch()


def allow_builds(context: Invocation, build: bool, policy: SandboxPolicy | None) -> None:
    """Let uv build packages that have no wheel, if the user said so; their code then runs in no sandbox."""
    if build and policy is not None:
        raise UsageError(
            "`--build` runs code of packages outside of the sandbox that was asked for",
            hint="leave `--build` out, or pass `--no-sandbox`",
        )
    context.builds = build


def builder_of(context: Invocation, policy: SandboxPolicy | None) -> Builder:
    """Return what builds a project: in the sandbox if it is on, otherwise with the user's rights."""
    from wander_client.packages.building.build import Builder

    hidden = None if policy is None else hide_own(policy, context.settings)
    return Builder(context.settings.data_dir, hidden)


def policy_for_import(
    context: Invocation, sandbox: bool | None, limits: list[str] | None
) -> SandboxPolicy | None:
    """Return the limits of the sandbox in which a project of somebody else is built, loaded and checked.

    Only `--no-sandbox` does so without one. Raises `SandboxError` if there is no sandbox here.
    """
    policy = choose_policy(sandbox, limits, default=True)
    if policy is not None:
        from wander.errors import SandboxError
        from wander.sandbox.support import require_support

        try:
            require_support()
        except SandboxError as error:
            hint = error.hint or "install the sandbox"
            error.hint = hint + "; or pass " + name_option("sandbox", False) + " if you trust its author"
            raise
    return policy


def hide_own(policy: SandboxPolicy, settings: Settings) -> SandboxPolicy:
    """Return the policy with this user's credentials and the environments installed here among what is
    hidden."""
    own = (settings.config_dir, settings.data_dir / "environments", settings.data_dir / "virtualenvs")
    return policy.model_copy(update={"hide": (*policy.hide, *(str(folder.absolute()) for folder in own))})


def require_confined(
    context: Invocation, policy: SandboxPolicy | None, location: Location, model: str, *, in_process: bool
) -> None:
    """Refuse what would run the environment's code outside of the sandbox that was asked for."""
    if policy is None:
        return
    if in_process:
        raise UsageError("`--sandbox` and `in_process` contradict each other", hint="leave one of them out")
    if is_scripted(model):
        said = f"`{model}` is code of the environment's package and runs outside of the sandbox"
        if location.installed is not None:
            raise UsageError(said, hint="play another model, or pass " + name_option("sandbox", False))
        context.output.warn(said)
