"""`wander auth workflow-token`: a token for a workflow that the hub trusts."""

from __future__ import annotations

import pytest
from command_line import HubRoom


@pytest.fixture
def room(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    return hub


def test_outside_of_a_workflow_there_is_no_token(room: HubRoom) -> None:
    done = room.wander("auth", "workflow-token")
    assert done.status == 2
    assert "not running in a CI workflow" in done.err
