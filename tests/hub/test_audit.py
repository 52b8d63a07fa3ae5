"""The audit log: who did what to what, from where; changed by nobody, and without secrets."""

from __future__ import annotations

import json
import sqlite3

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from staged_uploads import published
from wander_hub.cli.main import app as command
from wander_hub.identity import HUB
from wander_hub.runs.models import Run

VERSION = "/api/v1/environments/alice/reverse-text/versions/0.1.0"


async def keep_busy(hub, run_of) -> list[str]:
    """Have alice publish, post, yank and give rights away; return the secrets that she was shown."""
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    asked = {"json": {"reason": "see https://ada:hunter2@example.org"}, "headers": hub.auth()}
    assert (await hub.client.put(f"{VERSION}/yank", **asked)).status_code == 200
    wanted = {"name": "ci", "scopes": ["publish"], "target": "alice", "days": 3}
    made = await hub.client.post("/api/v1/tokens", json=wanted, headers=hub.auth())
    role = {"json": {"role": "reader"}, "headers": hub.auth()}
    assert (await hub.client.put("/api/v1/owners/alice/members/bob", **role)).status_code == 200
    with hub.database.write(HUB) as session:
        session.get_one(Run, manifest["run_id"]).level = "claimed"
    return [made.json()["token"], "hunter2", *hub.tokens.values()]


async def test_owners_and_administrators_see_the_audit_log(hub, run_of):
    await keep_busy(hub, run_of)
    found = (await hub.get("/api/v1/owners/alice/audit", headers=hub.auth())).json()["data"]
    told = [(one["action"], one["actor"], one["target"]) for one in reversed(found)]
    run = "01JRUN0000000000000000000A"
    assert told == [
        ("version.publish", "alice", "alice/reverse-text@0.1.0"),
        ("run.post", "alice", run),
        ("version.yank", "alice", "alice/reverse-text@0.1.0"),
        ("member.set", "alice", "alice"),
        ("run.level", "the hub", run),
    ]
    level, member, yank = found[0], found[1], found[2]
    assert (level["detail"]["before"], level["detail"]["level"]) == ("complete", "claimed")
    assert member["detail"] == {"user": "bob", "role": "reader", "invited": True}
    assert (yank["address"], yank["token"]) == ("127.0.0.1", hub.tokens["alice"][:10])
    assert yank["request_id"]
    everything = (await hub.get("/api/v1/audit", headers=hub.auth("admin"))).json()["data"]
    assert {one["action"] for one in everything} == {one["action"] for one in found} | {"token.create"}
    for path in ("/api/v1/audit", "/api/v1/audit.jsonl"):
        assert (await hub.get(path, headers=hub.auth())).status_code == 403
    for path in ("/api/v1/owners/alice/audit", "/api/v1/owners/alice/audit.jsonl"):
        assert (await hub.get(path, headers=hub.auth("bob"))).status_code == 403
        assert (await hub.get(path)).status_code == 401


async def test_a_first_staged_upload_is_in_the_audit_log(hub, make_wheel):
    spec = make_wheel()
    await published(hub.client, hub.auth(), {spec.wheel_name: spec.build()}, name=spec.name, version="0.1.0")
    (told,) = (await hub.get("/api/v1/owners/alice/audit", headers=hub.auth())).json()["data"]
    assert (told["action"], told["target"]) == ("version.publish", "alice/reverse-text@0.1.0")


async def test_the_audit_log_is_filtered_paged_and_exported(hub, run_of):
    secrets = await keep_busy(hub, run_of)

    async def actions(**asked: str | int) -> list[str]:
        answer = await hub.get("/api/v1/audit", params=asked, headers=hub.auth("admin"))
        return [one["action"] for one in answer.json()["data"]]

    assert await actions(actor="the hub") == ["run.level"]
    assert await actions(action="version") == ["version.yank", "version.publish"]
    assert await actions(action="version.yank") == ["version.yank"]
    assert await actions(target="alice/reverse-text") == ["version.yank", "version.publish"]
    assert await actions(target="alice/reverse") == []
    assert await actions(since="2100-01-01T00:00:00") == []
    assert len(await actions(until="2100-01-01T00:00:00Z")) == 6
    beyond = {"since": "0001-01-01T00:00:00+14:00"}
    assert (await hub.get("/api/v1/audit", params=beyond, headers=hub.auth("admin"))).status_code == 422
    pages, before = [], None
    while True:
        asked = {"limit": 4} | ({"before": before} if before else {})
        page = (await hub.get("/api/v1/audit", params=asked, headers=hub.auth("admin"))).json()
        pages += page["data"]
        if (before := page["next"]) is None:
            break
    lines = (await hub.get("/api/v1/audit.jsonl", headers=hub.auth("admin"))).text
    assert [json.loads(one) for one in lines.splitlines()] == pages
    assert not [one for one in secrets if one in lines]


async def test_owners_do_not_see_addresses_of_other_users(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts, user="bob")).status_code == 201
    path = "/api/v1/owners/alice/audit"
    lines = (await hub.get(path + ".jsonl", headers=hub.auth())).text.splitlines()
    post, publish = (await hub.get(path, headers=hub.auth())).json()["data"]
    assert [json.loads(one) for one in lines] == [post, publish]
    assert (post["actor"], post["address"], post["token"], post["request_id"]) == ("bob", None, None, None)
    assert publish["address"]
    everything = (await hub.get("/api/v1/audit", headers=hub.auth("admin"))).json()["data"]
    assert all(one["address"] for one in everything)


async def test_audit_entries_cannot_be_changed_or_deleted(hub):
    await hub.publish()
    for statement in ("UPDATE audit SET actor = 'eve'", "DELETE FROM audit"):
        with pytest.raises(DBAPIError, match="only added to"), hub.database.engine.begin() as connection:
            connection.execute(text(statement))


async def test_requests_that_change_nothing_are_not_audited(hub, make_wheel, run_of):
    spec = make_wheel()
    manifest, rollouts = run_of(await hub.publish(spec))
    for _ in range(2):
        assert (await hub.post_run(manifest, rollouts)).status_code in (200, 201)
        assert (await hub.upload(spec.build(), spec.wheel_name)).status_code == 200
    assert (await hub.upload(b"no wheel", spec.wheel_name)).status_code >= 400
    found = (await hub.get("/api/v1/audit", headers=hub.auth("admin"))).json()["data"]
    assert [one["action"] for one in found] == ["run.post", "version.publish"]


def test_commands_are_audited_and_print_the_audit_log(sqlite_alone, tmp_path):
    folder = ["--data", str(tmp_path)]
    runner = CliRunner()
    for words in (["migrate"], ["user", "add", "ada"]):
        assert runner.invoke(command, [*words, *folder]).exit_code == 0
    secret = runner.invoke(command, ["token", "create", "ada", *folder]).output.strip()
    assert runner.invoke(command, ["token", "revoke", secret[:10], *folder]).exit_code == 0
    lines = runner.invoke(command, ["audit", "--action", "token", *folder]).output
    told = [json.loads(one) for one in lines.splitlines()]
    assert [one["action"] for one in told] == ["token.revoke", "token.create"]
    assert all(one["actor"] == "wander-hub" and one["target"] == secret[:10] for one in told)
    with sqlite3.connect(tmp_path / "hub.db") as connection:
        assert secret not in "\n".join(connection.iterdump())
