"""What a run's manifest says about the sandbox."""

from __future__ import annotations

from wander.sandbox.bubblewrap import profile_digest
from wander.sandbox.groups import new_group
from wander.sandbox.policy import SandboxPolicy
from wander.sandbox.support import require_support
from wander.wire import SandboxPin


def sandbox_pin(policy: SandboxPolicy) -> SandboxPin:
    """Return what a sandbox with this policy is on this machine; raises `SandboxError` without one."""
    support = require_support()
    group = new_group(policy)
    group.close()
    return SandboxPin(
        version=".".join(map(str, support.version)),
        profile_sha256=profile_digest(policy, support.machine),
        limits=policy.limits(),
        memory_bound=group.memory_bound,
    )
