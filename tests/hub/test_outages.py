"""What the log of a hub says while a part of it is away: a line for each request that met it."""

from __future__ import annotations

import httpx
import pytest
from live_hub import live_hub
from postgres_server import postgres_server


@pytest.mark.full
def test_a_lost_database_logs_one_line_per_request(tmp_path):
    with postgres_server() as server:
        server.create("hub_lost")
        with live_hub(tmp_path / "hub", WANDER_HUB_DATABASE_URL=server.url("hub_lost")) as hub:
            assert httpx.get(f"{hub.url}/runs", headers={"Accept": "text/html"}).status_code == 200
            server.stop()
            before = len(hub.log.read_text().splitlines())
            asked = ["/runs", "/", "/models", "/api/v1/environments", "/api/v1/runs", "/admin/simple/none/"]
            for path in asked:
                assert httpx.get(f"{hub.url}{path}", timeout=60).status_code == 503, path
            log = hub.log.read_text()
        told = [one for one in log.splitlines()[before:] if "the hub's database does not respond" in one]
        assert len([one for one in told if "cannot take a job" not in one]) == len(asked), log
        assert "Traceback" not in log
