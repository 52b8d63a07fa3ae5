"""What an operator sees: whether a hub lives and is ready, its metrics, log and doctor."""

from __future__ import annotations

import asyncio
import json
import logging
from contextvars import Context

import httpx
import pytest
from asgi_client import asgi_client
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from sandboxes import needs_sandbox
from wander_hub import app as hub_app
from wander_hub.accounts.repository import user_named
from wander_hub.app import create_app
from wander_hub.cli.main import app as command
from wander_hub.http.health import free_bytes
from wander_hub.operation import doctor
from wander_hub.rights.tokens import add_token
from wander_hub.server.log import JsonFormatter
from wander_hub.settings import Settings


def of(hub, **changes):
    """Return a client of the same hub with other settings, and its application."""
    app = create_app(hub.settings.model_copy(update=changes), database=hub.database)
    return asgi_client(app), app


async def samples(hub) -> dict[tuple[str, ...], float]:
    """Return all metrics by name and labels, as Prometheus reads them with a token that can only read."""
    with hub.database.write() as session:
        secret = add_token(session, user_named(session, "admin"), "prometheus", scopes=["read"])
    answer = await hub.get("/metrics", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


async def test_a_full_disk_is_not_ready_for_uploads_and_an_ending_hub_for_nothing(hub):
    seen = {"status": "ok", "scheme": "http", "address": "127.0.0.1", "forwarded_for": None}
    assert (await hub.get("/live")).json() == seen
    assert (await hub.get("/ready?uploads=true")).json()["room"] is True
    client, app = of(hub, min_free_bytes=2**62)
    for path, status in (("/live", 200), ("/health", 200), ("/ready", 200), ("/ready?uploads=true", 503)):
        assert (await client.get(path)).status_code == status, path
    assert "connection" not in (await client.get("/ready")).headers
    app.state.draining = True
    for path in ("/ready", "/alice/simple/"):
        assert (await client.get(path)).headers["connection"] == "close"
    assert (await client.get("/ready")).status_code == 503
    assert (await client.get("/live")).status_code == 200


async def test_metrics_are_for_administrators_and_name_nobody(hub, run_of):
    await hub.publish()
    manifest, rollouts = run_of(None)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    for path in ("/alice/simple/reverse-text/", "/api/v1/environments/alice/none", "/nobody/at/all"):
        await hub.get(path)
    assert (await hub.client.request("BREW", "/")).status_code >= 400
    assert (await hub.get("/metrics")).status_code == 401
    assert (await hub.get("/metrics", headers=hub.auth())).status_code == 403
    found = await samples(hub)
    counted = "wander_hub_request_seconds_count"
    assert found[counted, "POST", "/api/v1/runs", "201"] == 1
    assert found[counted, "GET", "/api/v1/environments/{owner}/{name}", "404"] == 1
    assert found[counted, "GET", "index", "200"] == 1
    assert found["wander_hub_problems_total", "environment_not_found"] >= 1
    assert found["wander_hub_jobs", "examine", "queued"] == 1
    assert found["wander_hub_job_age_seconds", "examine", "queued"] >= 0
    assert found["wander_hub_free_bytes",] > 0
    assert not [one for one in found if {"BREW", "alice", "nobody"} & set("/".join(one).split("/"))]


def test_a_line_of_the_json_log_is_one_object_without_secrets():
    secret = "wnd_" + "a" * 46
    try:
        raise ValueError(f"bad {secret}")
    except ValueError as error:
        record = logging.LogRecord(
            "wander_hub", logging.ERROR, "", 0, "no %s", (secret,), (ValueError, error, None)
        )
    line = Context().run(JsonFormatter().format, record)  # of no request
    told = json.loads(line)
    assert (told["level"], told["message"], told["request"]) == ("ERROR", "no wnd_aaaaaa...", "-")
    assert "ValueError: bad wnd_aaaaaa..." in told["traceback"]
    assert "\n" not in line


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_doctor_reports_working_and_failing_parts(hub, style, monkeypatch):
    given = ["doctor", "--data", str(hub.settings.data)] + ["--json"] * (style == "json")
    if hub.database.engine.dialect.name == "postgresql":
        monkeypatch.setenv("WANDER_HUB_DATABASE_URL", hub.database.url)

    def ask() -> tuple[int, dict[str, str]]:
        answer = CliRunner().invoke(command, given)
        if style == "json":
            return answer.exit_code, {one["check"]: one["state"] for one in json.loads(answer.output)}
        words = [line.split() for line in answer.output.splitlines()]
        return answer.exit_code, {one[1]: one[0] for one in words}

    status, states = ask()
    assert status == 0
    for name in ("settings", "database", "clock", "storage", "disk", "proxy"):
        assert states[name] == "ok", name
    monkeypatch.setenv("WANDER_HUB_MAX_MEMBER", "3")
    status, states = ask()
    assert (status, states["settings"]) == (0, "warning")
    monkeypatch.setenv("WANDER_HUB_MIN_FREE_BYTES", str(2**62))
    monkeypatch.setenv("WANDER_HUB_PUBLIC_URL", "http://127.0.0.1:9")
    status, states = ask()
    assert status == 1
    assert (states["disk"], states["proxy"], states["database"]) == ("failed", "failed", "ok")


@pytest.mark.parametrize(
    ("stated", "state"), [("203.0.113.7", "warning"), ("10.0.0.2", "ok"), (None, "ok")], ids=str
)
def test_the_doctor_compares_the_forwarded_address_with_the_peer(hub, stated, state, monkeypatch):
    seen = {"scheme": "https", "address": "10.0.0.2", "forwarded_for": stated}
    answer = httpx.Response(200, json=seen, request=httpx.Request("GET", "https://hub.test/live"))
    monkeypatch.setattr(httpx, "get", lambda *given, **options: answer)
    settings = hub.settings.model_copy(update={"public_url": "https://hub.test"})
    (found,) = [one for one in doctor.examine(settings) if one.check == "proxy"]
    assert found.state == state
    assert ("FORWARDED_ALLOW_IPS=10.0.0.2" in found.told) is (state == "warning")


@pytest.mark.parametrize(
    ("boxes", "state", "said"),
    [
        ("off", "ok", "starts no boxes"),
        pytest.param("bwrap", "ok", "a box started", marks=needs_sandbox),
        ("docker", "warning", "cannot replay runs of environments with a shell"),
    ],
)
def test_the_doctor_starts_a_box_if_the_hub_may(hub, boxes, state, said):
    settings = hub.settings.model_copy(update={"boxes": boxes})
    (found,) = [one for one in doctor.examine(settings) if one.check == "boxes"]
    assert (found.state, said in found.told) == (state, True), found


async def test_administrators_get_the_doctor_report_over_the_api(hub):
    state = hub.client._transport.app.state
    state.settings = state.settings.model_copy(
        update={"database_url": hub.database.url, "verification": "off"}
    )
    answer = await hub.get("/api/v1/doctor", headers=hub.auth("admin"))
    report = answer.json()
    assert report["well"], [one for one in report["data"] if one["state"] != "ok"]
    assert {one["check"]: one["state"] for one in report["data"]}["storage"] == "ok"
    state.settings = state.settings.model_copy(update={"min_free_bytes": 2**62})
    assert not (await hub.get("/api/v1/doctor", headers=hub.auth("admin"))).json()["well"]


async def test_free_space_of_a_missing_data_folder_is_that_of_its_parent(tmp_path):
    assert free_bytes(Settings(data=tmp_path / "not" / "yet" / "made")) > 0


async def test_uploads_are_swept_also_while_the_search_cannot_be_filled(hub, monkeypatch):
    swept = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(*given) -> int:
        raise RuntimeError("an environment cannot be read")

    monkeypatch.setattr(hub_app.environment_listing, "fill_search", fail)
    monkeypatch.setattr(hub_app, "sweep", lambda *given: loop.call_soon_threadsafe(swept.set))
    async with hub_app.keep_sweeping(hub.database, None):
        async with asyncio.timeout(60):
            await swept.wait()
