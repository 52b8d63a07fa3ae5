"""A hub that replays posted runs, in a sandbox if this machine supports it, and requests to it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from live_hub import LiveHub, live_hub, request
from wander.errors import SandboxError

Record = dict[str, Any]
PATIENCE = 400.0
"""Seconds that a job may take on a machine which does much else."""


def confined() -> str:
    """Return the kind of isolation that this machine supports for replays."""
    from wander.sandbox.support import require_support

    try:
        require_support()
    except SandboxError:
        return "unconfined"
    return "sandbox"


@contextmanager
def judging_hub(data: Path, mirror: str, uv_cache: Path, **settings: str) -> Iterator[LiveHub]:
    """Start a hub that verifies."""
    with live_hub(
        data,
        WANDER_HUB_VERIFICATION=confined(),
        UV_DEFAULT_INDEX=mirror,
        UV_CACHE_DIR=str(uv_cache),
        **settings,
    ) as hub:
        yield hub


def post(hub: LiveHub, manifest: Record, rollouts: list[Record] | bytes, token: str | None = None) -> Any:
    """Post a run in one request, as the owner of the token."""
    body = rollouts
    if not isinstance(body, bytes):
        body = b"".join(json.dumps(one).encode() + b"\n" for one in rollouts)
    files = {"manifest": ("run.json", json.dumps(manifest)), "rollouts": ("rollouts.jsonl", body)}
    headers = {"Authorization": f"Bearer {token or hub.token}"}
    return request("POST", f"{hub.url}/api/v1/runs", files=files, headers=headers, timeout=120)


def settled(hub: LiveHub, run_id: str) -> Record:
    """Wait for the hub's replay and return the run."""

    def ended() -> Record | None:
        found = hub.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
        if not found or any(one["state"] in ("queued", "running") for one in found):
            return None
        assert found[0]["state"] == "done", found
        run: Record = hub.get(f"/api/v1/runs/{run_id}").json()
        return run

    return awaited(hub, ended)


def awaited(hub: LiveHub, look: Any) -> Record:
    """Wait until `look` returns a record; fail with the hub's log after the time limit."""
    give_up = time.monotonic() + PATIENCE
    while True:
        found: Record | None = look()
        if found is not None:
            return found
        assert time.monotonic() < give_up, hub.log.read_text()[-3000:]
        time.sleep(1)  # each look costs the hub 20 ms of the time in which it replays
