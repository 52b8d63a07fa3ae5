"""Decide whether foreign code runs in the sandbox and whether packages are built, from flags and settings.

Every command that runs such code uses this module: `eval` with suites, `play`, `check`, `train`, `sft`,
`runs replay`, `runs rerun`, `publish`, `env import`, `worker`, and the Python API.
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

SANDBOX = ("--sandbox/--no-sandbox", "run the environment in a sandbox (Linux)")
SANDBOX_LIMIT = ("--sandbox-limit", "sandbox limit, such as memory=2G, rollout=60 or read=/data; repeatable")
SandboxFlag = Annotated[bool | None, Option(SANDBOX[0], help=SANDBOX[1])]
BuildFlag = Annotated[
    bool,
    Option("--build", help="build packages that have no wheel; this runs their code with your permissions"),
]
SandboxLimits = Annotated[list[str] | None, Option(SANDBOX_LIMIT[0], help=SANDBOX_LIMIT[1])]
SandboxChoice = tuple[bool | None, list[str] | None]
"""Values of `--sandbox`/`--no-sandbox` and `--sandbox-limit`."""


def choose_policy(
    sandbox: bool | None, limits: list[str] | None, *, default: bool = False
) -> SandboxPolicy | None:
    """Return the limits of the sandbox, or None without a sandbox. Raises `ConfigError` for an invalid limit.

    A limit implies the sandbox. `default` applies if neither is given (see `confines`).
    """
    from wander.sandbox import parse_limits

    if limits and sandbox is False:
        raise UsageError(
            "`--no-sandbox` and `--sandbox-limit` cannot be used together", hint="pass only one of them"
        )
    if sandbox is False or (sandbox is None and not limits and not default):
        return None
    return parse_limits(limits or [])


def sandbox_options(sandbox: bool | Mapping[str, object] | None) -> SandboxChoice:
    """Convert Python's `sandbox=` to the options of a command: the flag and the limits."""
    if not isinstance(sandbox, bool | Mapping | None):  # anything else would silently disable the sandbox
        raise UsageError(f"invalid `sandbox={sandbox!r}`", hint='pass True, False, or `{"memory": "2G"}`')
    if isinstance(sandbox, Mapping):
        return True, [f"{key}={value}" for key, value in sandbox.items()]
    return sandbox, []


def confines(
    settings: Settings, spec: str, model: str = "", *, in_process: bool = False, elsewhere: bool = False
) -> bool:
    """Return whether an environment runs in the sandbox if the command line does not choose.

    The settings decide. If they do not, environments from a hub run in the sandbox if this machine supports
    it. Folders belong to the user and do not. The sandbox is also off if the model is code in the package or
    the workers run `elsewhere`, because it would have no effect.
    """
    if settings.sandbox is not None:
        return settings.sandbox
    if in_process or elsewhere or is_scripted(model) or looks_like_path(spec):
        return False
    return _has_sandbox(settings)


def _has_sandbox(settings: Settings) -> bool:
    """Return whether this machine supports the sandbox. A positive result is cached."""
    from wander.errors import SandboxError
    from wander.sandbox.support import find_fault, require_support

    try:
        support = require_support()
    except SandboxError:
        return False
    properties = [os.uname().release, *support.command, *map(str, support.version), str(os.geteuid())]
    digest = hashlib.sha256("\n".join(properties).encode()).hexdigest()[:32]
    mark = settings.cache_dir / "sandbox" / digest
    if mark.exists():
        return True
    if find_fault() is not None:
        return False
    with contextlib.suppress(OSError):  # not cached, so the next command tests again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True


def require_here(policy: SandboxPolicy | None, addresses: Collection[object]) -> None:
    """Raise `UsageError` if the sandbox was requested, but the environment runs on other machines."""
    if policy is not None and addresses:
        raise UsageError(
            "`--sandbox` applies to workers on this machine, but `--worker` names another machine",
            hint="run `wander worker --help` for the options there",
        )


def warn_unconfined(context: Invocation, location: Location) -> None:
    """Warn, once per environment, that an environment from a hub runs outside the sandbox."""
    if location.installed is None:
        return
    record = location.installed.record
    key = hashlib.sha256(f"{record.hub}\n{location.label}".encode()).hexdigest()[:32]
    mark = context.settings.state_dir / "unconfined" / key
    if mark.exists():
        return
    context.output.warn(
        f"`{location.label}` is code from {record.hub} and runs with your permissions; run it in a sandbox "
        "with "
        + name_option("sandbox", True)
        + " (`wander sandbox check` tests whether this machine supports it)"
    )
    with contextlib.suppress(OSError):  # not recorded, so the warning is shown again
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch()


def allow_builds(context: Invocation, build: bool, policy: SandboxPolicy | None) -> None:
    """Let uv build packages without a wheel if the user allows it. The build runs outside the sandbox."""
    if build and policy is not None:
        raise UsageError(
            "`--build` runs packages' code outside the sandbox that you requested",
            hint="remove `--build`, or pass `--no-sandbox`",
        )
    context.builds = build


def builder_of(context: Invocation, policy: SandboxPolicy | None) -> Builder:
    """Return the builder for a project: in the sandbox if it is on, otherwise with the user's permissions."""
    from wander_client.packages.building.build import Builder

    hidden = None if policy is None else hide_own(policy, context.settings)
    return Builder(context.settings.data_dir, hidden)


def policy_for_import(
    context: Invocation, sandbox: bool | None, limits: list[str] | None
) -> SandboxPolicy | None:
    """Return the sandbox limits for another author's project while it is built, loaded and checked.

    The sandbox is on unless `--no-sandbox` is passed. Raises `SandboxError` if it is not available here.
    """
    policy = choose_policy(sandbox, limits, default=True)
    if policy is not None:
        from wander.errors import SandboxError
        from wander.sandbox.support import require_support

        try:
            require_support()
        except SandboxError as error:
            hint = error.hint or "install the sandbox"
            error.hint = hint + ", or pass " + name_option("sandbox", False) + " if you trust the author"
            raise
    return policy


def hide_own(policy: SandboxPolicy, settings: Settings) -> SandboxPolicy:
    """Return the policy, and also hide this user's credentials and installed environments."""
    own = (settings.config_dir, settings.data_dir / "environments", settings.data_dir / "virtualenvs")
    return policy.model_copy(update={"hide": (*policy.hide, *(str(folder.absolute()) for folder in own))})


def require_confined(
    context: Invocation, policy: SandboxPolicy | None, location: Location, model: str, *, in_process: bool
) -> None:
    """Raise `UsageError` if code of the environment would run outside the requested sandbox."""
    if policy is None:
        return
    if in_process:
        raise UsageError("`--sandbox` and `in_process` cannot be used together", hint="pass only one of them")
    if is_scripted(model):
        message = f"`{model}` is code in the environment's package and runs outside the sandbox"
        if location.installed is not None:
            raise UsageError(message, hint="use another model, or pass " + name_option("sandbox", False))
        context.output.warn(message)
