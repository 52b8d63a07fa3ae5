"""Ten who post, publish and verify at once: nobody gets an error, and what is derived is right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hub_jobs import work_off
from wander_hub.fsck import check as fsck
from wander_hub.jobs import TableQueue

pytestmark = pytest.mark.full

ENVIRONMENT = "/api/v1/environments/alice/reverse-text"
LONG = " ".join(f"word{number}" for number in range(100))


def copied(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have all runs say the same, so that reading one changes others."""
    for number, one in enumerate(rollouts):
        reply = {"role": "assistant", "content": f"{number} {LONG} {number}"}
        one["completion"], one["turns"][0]["message"] = [reply], reply
        for usage in (one["turns"][0]["usage"], one["usage"]):
            usage["completion_tokens"] = 900
    return rollouts


@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
async def test_many_users_work_on_one_environment(hub, run_of, make_wheel):
    wheel = await hub.publish()
    queue = TableQueue(hub.database, retry_seconds=0)
    client, alice, bob = hub.client, hub.auth(), hub.auth("bob")

    async def post(number: int) -> Any:
        run_id = f"01RUN{number:021d}"
        manifest, rollouts = run_of(wheel, run_id=run_id, model=f"model {number}", reward=number / 40)
        return await hub.post_run(manifest, copied(rollouts), user="bob" if number % 2 else "alice")

    async def change(method: str, path: str, user: dict[str, str], **body: Any) -> Any:
        return await client.request(method, path, headers=user, **({"json": body} if body else {}))

    async def publish(number: int) -> Any:
        spec = make_wheel(version=f"0.2.{number}")
        return await hub.upload(spec.build(), spec.wheel_name)

    first = [(await post(number)).json()["run_id"] for number in range(12)]
    gone = [first[1], first[3]]
    work_off(hub, queue, 6)
    board = (await client.get(f"{ENVIRONMENT}/leaderboard")).json()["board"]
    answers = await asyncio.gather(
        *(post(number) for number in range(12, 22)),
        *(publish(number) for number in range(10)),
        change("PUT", f"/api/v1/runs/{first[0]}/hiding", alice, reason="played by hand"),
        *(change("DELETE", f"/api/v1/runs/{one}?reason=wrong", bob) for one in gone),
        *(
            change("POST", f"/api/v1/runs/{one}/verifications", bob, level="highest")
            for one in first
            if one not in gone
        ),
        change("PUT", f"{ENVIRONMENT}/versions/0.1.0/boards/{board}", alice, title="Reversing"),
        change("PUT", f"{ENVIRONMENT}/versions/0.1.0/yank", alice, reason="old"),
        change("PUT", f"{ENVIRONMENT}/status", alice, status="deprecated", reason="old"),
        *(asyncio.to_thread(work_off, hub, queue, 6) for _ in range(2)),
    )
    told = [(one.request.url.path, one.status_code) for one in answers if one is not None]
    assert {status for _, status in told} == {200, 201}, told
    work_off(hub, queue, 6)
    assert list(fsck.find_mismatches(hub.database, client._transport.app.state.storage)) == []
    assert (await client.get(ENVIRONMENT)).json()["runs"] == 20
