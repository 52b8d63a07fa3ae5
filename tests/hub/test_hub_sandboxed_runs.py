"""A run's page tells by what the environment was confined."""

from __future__ import annotations

import pytest

PIN = {
    "tier": "bubblewrap",
    "version": "0.12.0 <b>hostile</b>",
    "profile_sha256": "ab" * 32,
    "limits": {"memory": 1024.0},
    "memory_bound": "cgroup",
}


@pytest.mark.parametrize("pin", [PIN, None])
async def test_the_page_of_a_run_shows_its_sandbox(pin, hub, make_wheel, run_of):
    manifest, rollouts = run_of(await hub.publish(make_wheel()), reward=[0.0, 0.5, 1.0, 1.0, 1.0, 0.5])
    manifest["environment"]["sandbox"] = pin
    answer = await hub.post_run(manifest, rollouts)
    assert answer.status_code == 201, answer.text
    page = (await hub.get(f"/runs/{manifest['run_id']}", headers={"accept": "text/html"})).text
    assert ("<dt>sandbox</dt>" in page) == (pin is not None)
    assert ("bubblewrap 0.12.0 &lt;b&gt;hostile" in page) == (pin is not None)
    detail = (await hub.get(f"/api/v1/runs/{manifest['run_id']}")).json()
    assert detail["manifest"]["environment"]["sandbox"] == pin
