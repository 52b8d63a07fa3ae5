"""Whether an environment runs in the sandbox, and with which limits: flags, then the settings file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import forbid_builds
from wander_client.errors import UsageError
from wander_client.names import is_scripted
from wander_client.terminal.command import Option

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.settings import Settings

SANDBOX = ("--sandbox/--no-sandbox", "confine the environment (Linux)")
SANDBOX_LIMIT = ("--sandbox-limit", "KEY=VALUE: memory=2G, rollout=60, read=/data...")
SandboxFlag = Annotated[bool | None, Option(SANDBOX[0], help=SANDBOX[1])]
SandboxLimits = Annotated[list[str] | None, Option(SANDBOX_LIMIT[0], help=SANDBOX_LIMIT[1])]


def choose_policy(
    sandbox: bool | None, limits: list[str] | None, *, default: bool = False
) -> SandboxPolicy | None:
    """Return the limits of the sandbox, or None for none; raises `ConfigError` if a limit is not valid.

    A limit asks for the sandbox; `default` holds where neither is said: `sandbox` of the settings file.
    """
    from wander.sandbox import parse_limits

    if limits and sandbox is False:
        raise UsageError(
            "`--no-sandbox` and `--sandbox-limit` contradict each other", hint="pass one of them"
        )
    if sandbox is False or (sandbox is None and not limits and not default):
        return None
    forbid_builds()
    return parse_limits(limits or [])


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
        raise UsageError("`--sandbox` and `--in-process` contradict each other", hint="leave one of them out")
    if is_scripted(model):
        said = f"`{model}` is code of the environment's package and runs outside of the sandbox"
        if location.installed is not None:
            raise UsageError(said, hint="play another model, or pass `--no-sandbox`")
        context.output.warn(said)
