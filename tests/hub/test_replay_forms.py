"""A run's page shows the hub's replays of it, and lets who may ask for another one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browsers import PASSWORD, browser, form, give_password

HTML = {"Accept": "text/html"}
RUN = "01JRUN0000000000000000000A"


@pytest.fixture
async def run(hub: Any, run_of: Any) -> str:
    """A run by alice that waits to be played again."""
    manifest, rollouts = run_of(await hub.publish(), reward=0.5)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    return RUN


async def test_a_replay_is_requested_and_canceled_on_the_page(hub, run):
    give_password(hub, "bob")
    anybody = (await hub.get(f"/runs/{run}", headers=HTML)).text
    assert "Reload this page" in anybody
    assert ">Replay</button>" not in anybody
    async with browser(hub) as bob:
        await form(bob, "/login", name="bob", password=PASSWORD)
        page = (await bob.get(f"/runs/{run}", headers=HTML)).text
        assert ">Replay</button>" in page
        assert ">Cancel</button>" not in page, "it was the hub that asked"
        back = f"/runs/{run}#verification"
        asked = await form(bob, "/account/forms/verify", at_run=run, level="rescored", back=back)
        assert asked.headers["location"] == f"/runs/{run}?done=verify#verification"
        page = (await bob.get(f"/runs/{run}", headers=HTML)).text
        assert "requested by bob" in page
        number = re.search(r'name="at_verification" value="(\d+)"', page)[1]
        answer = await form(bob, "/account/forms/cancel-verification", at_verification=number, back=back)
        assert answer.status_code == 303
        assert ">Cancel</button>" not in (await bob.get(f"/runs/{run}", headers=HTML)).text
