"""The choice of a backend for a box: the one that the policy names, or the first one that can start it.

Packages add backends, such as Apptainer (wander-integrations) or rented sandboxes, by the entry point group
`wander.boxes`, whose entries are classes derived from `BoxBackend`.
"""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.metadata import entry_points

from wander.boxes.base import Box, BoxBackend, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.containers import ContainerBackend
from wander.boxes.policy import AUTO, BACKEND, BoxPolicy
from wander.errors import SandboxError, did_you_mean, install_command

GROUP = "wander.boxes"
PLUGINS = {"apptainer": "wander-integrations"}
"""Distributions of known backends, for the hint if one of them is not installed."""


@cache
def backends() -> dict[str, BoxBackend]:
    """Return the backends by name, in the order in which they are tried."""
    containers = (ContainerBackend("podman"), ContainerBackend("docker"))
    found: dict[str, BoxBackend] = {backend.name: backend for backend in (BubblewrapBackend(), *containers)}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found[entry.name] = entry.load()()
    return found


def choose_backend(spec: BoxSpec, name: str = AUTO) -> BoxBackend:
    """Return the backend that starts a box from the spec. Raises `SandboxError` if no backend can.

    It may start programs to find out what works on this machine.
    """
    known = backends()
    if name not in known and name in PLUGINS:
        raise SandboxError(
            f"the backend `{name}` comes with {PLUGINS[name]}, which is not installed",
            hint=f"run `{install_command(PLUGINS[name])}`",
        )
    if name != AUTO and name not in known:
        raise SandboxError(
            f"`{BACKEND}={name}` is not a backend for boxes",
            hint=did_you_mean(name, known) or f"use `{AUTO}` or one of {', '.join(known)}",
        )
    tried = [backend for backend in known.values() if backend.is_automatic] if name == AUTO else [known[name]]
    reasons = {}
    for backend in tried:
        reason = backend.unavailable_reason(spec)
        if reason is None:
            return backend
        reasons[backend.name] = reason
    raise SandboxError(
        "no backend can start this box: " + "; ".join(f"{key}: {why}" for key, why in reasons.items()),
        hint="run `apt install bubblewrap`, or `apt install podman` for images, or set "
        f"`{BACKEND}` to another backend",
    )


async def start_box(spec: BoxSpec) -> Box:
    """Start a box on this machine. Raises `SandboxError`."""
    policy = BoxPolicy.from_environ()
    allowed = policy.apply(spec)
    backend = await asyncio.to_thread(choose_backend, allowed, policy.backend)
    return await backend.start(allowed)
