"""A hub follows another one: the same bytes and pages, levels of its own, and belief in digests alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from hub_jobs import work_off
from second_hub import second_hub
from served_app import served
from sqlalchemy import select
from wander_hub.accounts.service import new_owner
from wander_hub.audit import Origin, list_entries
from wander_hub.database import Database
from wander_hub.environments.models import Environment
from wander_hub.fsck import check as fsck
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import TableQueue
from wander_hub.mirrors import service, upstream
from wander_hub.mirrors.models import Mirror
from wander_hub.runs.models import Run
from wander_hub.storage import Storage

API = "/api/v1/environments/alice/reverse-text"
RUN, OTHER, GONE = (f"01JRUN0000000000000000000{letter}" for letter in "ABC")
ORIGIN = Origin("mirror.add", "wander-hub")
JSON = {"Accept": "application/json, application/vnd.pypi.simple.v1+json"}
NETWORKS = ("127.0.0.0/8",)


@pytest.fixture
async def door(hub):
    """The hub that is followed, over HTTP."""
    async with served(hub.client._transport.app) as found:
        yield found


@pytest.fixture
async def here(tmp_path, request, database_kind):
    """The hub that follows."""
    async with second_hub(tmp_path / "second", database_kind, request) as found:
        found.settings = found.settings.model_copy(update={"mirror_networks": NETWORKS})
        found.queue = TableQueue(found.database)
        yield found


async def change(hub, method, path, body=None, user="alice"):
    answer = await hub.client.request(method, path, json=body, headers=hub.auth(user))
    assert answer.status_code < 300, answer.text


async def follow(here, url, owner="alice", name="", token_file=None):
    return await asyncio.to_thread(
        service.add, here.database, here.settings, ORIGIN, url, owner, name, token_file
    )


async def look(here, thorough=False, check=lambda: None):
    """Look once, as a job does."""
    with here.database.read(HUB) as session:
        numbers = session.scalars(select(Mirror.id)).all()
    outcomes = []
    for number in numbers:
        outcome = await asyncio.to_thread(
            service.look,
            here.settings,
            here.database,
            here.storage,
            here.queue,
            number,
            check,
            thorough=thorough,
        )
        with here.database.write(HUB) as session:
            service.keep(session, here.settings, number, outcome)
        outcomes.append(outcome)
    return outcomes[0]


async def state(here):
    """Return all that pages tell of the mirror, but for counts of downloads, which are written down later."""
    found = {}
    for path in ("/alice/simple/reverse-text/", API, API + "/leaderboard", "/alice/simple/"):
        answer = await here.client.get(path, headers=JSON)
        assert answer.status_code == 200, answer.text
        found[path] = {name: value for name, value in answer.json().items() if name != "downloads"}
    return found


async def fill(hub, run_of, make_wheel, runs=((RUN, "bob"), (OTHER, "alice"), (GONE, "bob"))):
    """Let the hub hold versions and runs; return the digest of the first wheel."""
    sha256 = await hub.publish()
    await hub.publish(make_wheel(version="0.2.0"))
    await change(hub, "PUT", API + "/versions/0.2.0/yank", {"reason": "too easy"})
    for run_id, user in runs:
        manifest, rollouts = run_of(
            sha256, run_id=run_id, model=run_id, reward=[0.1, 0.9, 0.3, 0.7, 0.5, 0.6]
        )
        files = {"metrics.jsonl": b'{"step": 1}\n'} if run_id == RUN else {}
        assert (await hub.post_run(manifest, rollouts, user=user, artifacts=files)).status_code == 201
    return sha256


async def test_what_is_followed_comes_whole_and_changes_come_after_it(hub, door, here, run_of, make_wheel):
    await fill(hub, run_of, make_wheel)
    work_off(hub, TableQueue(hub.database), 6)
    await follow(here, door.url + "/")
    outcome = await look(here)
    assert (outcome.problems, outcome.versions, outcome.runs) == ([], 2, 3)

    # The index's page, files, rollouts, manifests and artifacts are the same bytes.
    for path in (
        *("/alice/simple/reverse-text/", "/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"),
        *(f"/api/v1/runs/{RUN}/{rest}" for rest in ("run.json", "rollouts.jsonl", "artifacts/metrics.jsonl")),
    ):
        answers = [await one.client.get(path, headers=JSON) for one in (hub, here)]
        assert [one.status_code for one in answers] == [200, 200]
        assert answers[0].content == answers[1].content
    detail = (await here.client.get(API)).json()
    assert detail["mirror_of"] == f"{door.url}/alice/reverse-text"
    assert detail["all_versions"] == ["0.2.0", "0.1.0"]
    assert detail["yanked_versions"] == ["0.2.0"]
    assert (
        f'A mirror of <a href="{door.url}/alice/reverse-text"'
        in (await here.client.get("/alice/reverse-text")).text
    )
    shown = (await here.client.get(f"/api/v1/runs/{RUN}")).json()
    there = (await hub.client.get(f"/api/v1/runs/{RUN}")).json()
    assert shown["posted_by"] == f"bob@{door.url.removeprefix('http://')}"
    assert {k: shown[k] for k in ("sha256", "summary")} == {k: there[k] for k in ("sha256", "summary")}
    # The level is this hub's own matter.
    assert (there["level"], shown["level"]) == ("replayed", "complete")
    work_off(here, here.queue, 6)
    assert (await here.client.get(f"/api/v1/runs/{RUN}")).json()["level"] == "replayed"

    # Nothing happened: a look asks for the list and the newest run, and changes nothing.
    before, asked = await state(here), len(door.asked)
    assert (await look(here)).versions == 0
    assert await state(here) == before
    assert len(door.asked) == asked + 2
    assert (await look(here, thorough=True)).runs == 0
    assert await state(here) == before


async def test_changes_come_too_and_from_there_alone(hub, door, here, run_of, make_wheel):
    sha256 = await fill(hub, run_of, make_wheel)
    mirror = await follow(here, door.url)
    assert (await look(here)).problems == []
    await change(hub, "DELETE", API + "/versions/0.2.0/yank")
    await change(hub, "DELETE", f"/api/v1/runs/{GONE}?reason=twice", user="bob")
    await hub.publish(make_wheel(version="0.3.0"))
    await change(hub, "DELETE", API + "/versions/0.1.0?reason=wrong")
    await change(hub, "PUT", API + "/status", {"status": "archived", "reason": "done"})
    outcome = await look(here)
    assert (outcome.problems, outcome.versions) == ([], 1)
    detail = (await here.client.get(API)).json()
    assert detail["all_versions"] == ["0.3.0", "0.2.0", "0.1.0"]
    assert detail["yanked_versions"] == ["0.1.0"]
    assert (detail["status"], detail["status_reason"], detail["runs"]) == ("archived", "done", 2)
    gone = (await here.client.get(f"/api/v1/runs/{GONE}")).json()["withdrawn"]
    assert gone["reason"] == "twice"
    version = (await here.client.get(API + "/versions/0.1.0")).json()
    assert version["yanked_reason"] == "deleted there: wrong"
    assert version["files"]

    # Only the other hub changes it; runs may be posted here, and whoever wants other versions forks it.
    admin = here.auth()
    body = make_wheel(version="9.0").build()
    for answer in (
        await here.client.post(
            "/alice/legacy/",
            data={":action": "file_upload", "protocol_version": "1"},
            files={"content": ("reverse_text-9.0-py3-none-any.whl", body)},
            headers=admin,
        ),
        await here.client.put(API + "/versions/0.3.0/yank", json={}, headers=admin),
        await here.client.put(API + "/status", json={"status": "active"}, headers=admin),
        await here.client.post(API + "/transfer", json={"owner": "admin"}, headers=admin),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "environment_mirrored"), answer.text
        assert door.url in answer.json()["detail"]
    manifest, rollouts = run_of(sha256, run_id="01JRUN0000000000000000000Z", model="mine", reward=0.5)
    posted = await type(hub).post_run(
        replace(hub, client=here.client, tokens={"alice": here.tokens["admin"]}), manifest, rollouts
    )
    assert posted.status_code == 201, posted.text
    assert (await look(here, thorough=True)).problems == []
    assert (await here.client.get(API)).json()["runs"] == 3

    with here.database.read(HUB) as session:
        told = [one.action for one in list_entries(session, owner="alice")]
    assert {
        "mirror.add",
        "mirror.version",
        "mirror.yank",
        "mirror.unyank",
        "mirror.status",
        "mirror.run",
    } <= set(told)
    assert told.count("mirror.version") == 3
    assert told.count("mirror.run") == 3
    assert list(fsck.check(here.database, here.storage)) == []
    with here.database.write(HUB) as session:
        service.remove(session, mirror.id, release=True)
    answer = await here.client.put(API + "/status", json={"status": "active"}, headers=admin)
    assert answer.status_code == 200


async def test_a_worker_looks_when_it_is_time(hub, door, here):
    await hub.publish()
    await follow(here, door.url)
    worker = service.worker(here.settings, here.database, here.storage, here.queue)
    assert [await asyncio.to_thread(worker.run_waiting) for _ in range(2)] == [1, 0]
    with here.database.read(HUB) as session:
        (mirror,) = service.list_all(session)
    assert (mirror.due_at - mirror.looked_at).total_seconds() == pytest.approx(3600, abs=1)
    assert (await here.client.get(API)).json()["all_versions"] == ["0.1.0"]


async def test_an_administrator_follows_over_the_api(hub, door, here):
    await hub.publish()
    here.client._transport.app.state.settings = here.settings
    path, admin = "/api/v1/mirrors", here.auth("admin")
    body = {"url": door.url, "owner": "alice"}
    added = await here.client.post(path, json=body, headers=admin)
    assert (added.status_code, added.json()["target"]) == (201, "alice"), added.text
    assert (await here.client.post(path, json=body, headers=admin)).json()["code"] == "mirror_exists"
    inner = await here.client.post(path, json=body | {"url": "https://10.0.0.1"}, headers=admin)
    assert (inner.status_code, inner.json()["code"]) == (422, "bad_address")
    worker = service.worker(here.settings, here.database, here.storage, here.queue)
    assert await asyncio.to_thread(worker.run_waiting) == 1
    for _ in range(2):  # while one waits, another is the same one
        assert (await here.client.post(f"{path}/1/refresh", headers=admin)).status_code == 202
    with here.database.read(HUB) as session:
        (mirror,) = service.list_all(session)
    assert await asyncio.to_thread(worker.run_waiting) == 1
    (listed,) = (await here.client.get(path, headers=admin)).json()["data"]
    assert listed["looked_at"] > mirror.looked_at.isoformat()
    assert listed["problems"] == []
    removed = await here.client.delete(f"{path}/1", params={"release": True}, headers=admin)
    assert removed.json()["id"] == 1
    assert "mirror_of" not in (await here.client.get(API)).json()
    gone = await here.client.post(f"{path}/1/refresh", headers=admin)
    assert (gone.status_code, gone.json()["code"]) == (404, "mirror_not_found")
    with here.database.read(HUB) as session:
        told = [(one.action, one.actor, one.target) for one in list_entries(session, action="mirror")]
    assert [one for one in told if one[1] == "admin"] == [
        ("mirror.remove", "admin", "alice"),
        ("mirror.refresh", "admin", "alice"),
        ("mirror.refresh", "admin", "alice"),
        ("mirror.add", "admin", "alice"),
    ]


async def test_what_is_not_as_it_should_be_is_told_and_changes_nothing(hub, door, here, run_of, make_wheel):
    await fill(hub, run_of, make_wheel)
    await hub.publish(make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"}))
    await follow(here, door.url)
    wheel = "/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"
    spoiled = {
        wheel: (200, {}, make_wheel(summary="Other bytes.").build()),
        f"/api/v1/runs/{OTHER}/rollouts.jsonl": (200, {}, b'{"example_id": "0"}\n'),
        "/api/v1/environments/alice/other": (200, {}, b"no JSON"),
    }
    door.on_request = spoiled.get
    outcome = await look(here)
    assert len(outcome.problems) == 5
    assert not outcome.cut
    told = "\n".join(outcome.problems)
    assert f"`{wheel}` there has other bytes than its digest" in told
    assert "`alice/other`: the answer" in told
    assert told.count("has no version `0.1.0`") == 2
    assert (await here.client.get(API)).json()["all_versions"] == ["0.2.0"]
    assert (await here.client.get("/alice/other")).status_code == 404

    # What was wrong comes with the next look, though nothing changed there; a run with other content never.
    _, rollouts = run_of(None, run_id=OTHER, model="x", reward=0.5)
    lines = "".join(json.dumps(one) + "\n" for one in rollouts).encode()
    door.on_request = {f"/api/v1/runs/{OTHER}/rollouts.jsonl": (200, {}, lines)}.get
    outcome = await look(here)
    assert len(outcome.problems) == 1
    assert f"`{OTHER}`: the run has the digest" in outcome.problems[0]
    assert (outcome.versions, outcome.runs) == (2, 2)
    door.on_request = lambda _path: None
    assert (await look(here)).runs == 1

    # Files that changed there after they came.
    before = await state(here)
    detail = (await hub.client.get(API + "/versions/0.1.0")).json()
    detail["files"][0]["sha256"] = "0" * 64
    row = (await hub.client.get("/api/v1/runs?environment=alice/reverse-text")).json()
    row["data"][0]["sha256"] = "1" * 64
    instead = {
        API + "/versions/0.1.0": (200, {}, json.dumps(detail).encode()),
        "/api/v1/runs": (200, {}, json.dumps(row).encode()),
        "/api/v1/environments": (200, {}, b'{"data": []}'),
    }
    door.on_request = lambda path: instead.get(path) if path != "/api/v1/environments" else None
    outcome = await look(here, thorough=True)
    assert any("has other bytes there (`000" in one for one in outcome.problems), outcome.problems
    assert any("has other content there than when it came" in one for one in outcome.problems)
    door.on_request = instead.get
    assert (await look(here)).problems[0] == "`alice/other`: the other hub offers it no more; what came stays"
    assert await state(here) == before

    # Answers of a form that no hub gives end the look at one thing, and not at all that is followed.
    door.on_request = lambda _path: None
    environment, version = [(await hub.client.get(API + rest)).json() for rest in ("", "/versions/0.1.0")]
    for path, odd, said in (
        ("/versions/0.1.0", {**version, "uploaded_at": "2026-01-01T00:00:00"}, "timezone"),
        ("/versions/0.1.0", {**version, "version": "one"}, "another version under this number"),
        ("", {**environment, "name": "other"}, "it is of `alice/other`"),
    ):
        body = json.dumps(odd).encode()
        door.on_request = lambda found, path=path, body=body: (200, {}, body) if found == API + path else None
        (problem,) = (await look(here, thorough=True)).problems
        assert said in problem
        assert await state(here) == before
    odd = json.dumps({**environment, "status": "quarantined", "status_reason": "x" * 500}).encode()
    door.on_request = {API: (200, {}, odd)}.get
    assert (await look(here, thorough=True)).problems == []
    assert (await here.client.get(API)).json()["status"] == "quarantined"


def test_a_listing_without_an_end_is_given_up(settings, monkeypatch):
    hub, pages = upstream.UpstreamHub("https://hub.example.org", settings), itertools.count()
    monkeypatch.setattr(hub, "_json", lambda path: {"data": [], "next": str(next(pages))})
    monkeypatch.setattr(upstream, "_MOST_ROWS", 50)
    with pytest.raises(HubProblem, match="it lists more than 50"):
        list(hub.list_environments("games"))
    assert next(pages) == 50


async def test_one_that_is_cut_short_goes_on(hub, door, here, run_of, make_wheel):
    """Every request in turn is the last one, as when either hub is killed there: the end is the same."""
    await fill(hub, run_of, make_wheel, [(RUN, "bob")])
    await follow(here, door.url, name="reverse-text")
    looks, left = 0, 0

    def count(_path):
        nonlocal left
        left -= 1
        return (503, {"Retry-After": "7200"}, b"") if left < 0 else None

    door.on_request = count
    while True:
        looks, left = looks + 1, looks
        outcome = await look(here)
        if not outcome.cut:
            break
        assert outcome.problems == ["it was cut short: it answered 503"]
        assert outcome.wait == 7200
        with here.database.read(HUB) as session:
            mirror = session.scalars(select(Mirror)).one()
            assert (mirror.due_at - mirror.added_at).total_seconds() > 7000
    assert looks > 6
    assert outcome.problems == []
    assert (await here.client.get(API)).json()["runs"] == 1
    assert list(fsck.check(here.database, here.storage)) == []
    with here.database.read(HUB) as session:
        told = [one.action for one in list_entries(session, owner="alice")]
        assert told.count("mirror.version") == 2
        assert told.count("mirror.run") == 1
        assert len(session.scalars(select(Run)).all()) == 1


class Killed(BaseException):
    """As far as rows and objects go, `kill -9`."""


async def test_one_that_is_killed_in_any_transaction_goes_on(
    hub, door, here, run_of, make_wheel, monkeypatch
):
    await fill(hub, run_of, make_wheel, [(RUN, "bob")])
    await follow(here, door.url)
    real, number, left = here.database.commit, 0, 0

    def commit(work, reader=None):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return real(work, reader)

    monkeypatch.setattr(here.database, "commit", commit)
    while True:
        number, left = number + 1, number
        try:
            outcome = await look(here)
            break
        except Killed:
            continue
    assert number > 4
    assert outcome.problems == []
    monkeypatch.undo()
    assert (await look(here, thorough=True)).problems == []
    assert (await here.client.get(API)).json()["runs"] == 1
    assert list(fsck.check(here.database, here.storage)) == []
    with here.database.read(HUB) as session:
        told = [one.action for one in list_entries(session, owner="alice")]
        assert told.count("mirror.version") == 2
        assert told.count("mirror.run") == 1


async def test_what_cannot_be_followed_is_refused_before_anything_is_written(
    hub, door, here, make_wheel, tmp_path
):
    await hub.publish()
    await change(hub, "PUT", API + "/visibility", {"private": True})
    plain = here.settings.model_copy(update={"mirror_networks": ()})
    for settings, url, what, code in (
        (plain, door.url, ("alice",), "bad_address"),
        (plain, "https://127.0.0.1:9", ("alice",), "bad_address"),
        (here.settings, "http://10.0.0.1", ("alice",), "bad_address"),
        (here.settings, "http://localhost:1", ("alice",), "upstream_silent"),
        (here.settings, door.url, ("alice",), "owner_not_found"),
        (here.settings, door.url, ("alice", "reverse-text"), "upstream_refused"),
        (here.settings, door.url, ("Alice!",), "bad_name"),
    ):
        with pytest.raises(HubProblem) as refused:
            await asyncio.to_thread(service.add, here.database, settings, ORIGIN, url, *what)
        assert refused.value.code == code
    token = tmp_path / "token"
    token.write_text(hub.tokens["alice"] + "\n")
    await follow(here, door.url, token_file=token)
    with pytest.raises(HubProblem, match="follows that already"):
        await follow(here, door.url, token_file=token)
    assert (await look(here)).problems == []
    assert (await here.client.get(API)).status_code == 404  # private here as there
    with here.database.read(HUB) as session:
        assert session.scalars(select(Environment.private)).one()
    await change(here, "PUT", API + "/visibility", {"private": False}, "admin")
    assert (await look(here, thorough=True)).problems == []
    assert (await here.client.get(API)).status_code == 404  # it is no more open here than there
    token.unlink()
    assert (await look(here)).problems == ["its token cannot be read: No such file or directory"]

    await change(
        here, "PUT", "/api/v1/environments/alice/reverse-text/visibility", {"private": True}, "admin"
    )
    await hub.publish(
        make_wheel(name="text", files={"text.py": b"def load_environment(): ...\n"}), owner="bob"
    )
    spec = make_wheel(name="text", files={"text.py": b"def load_environment(): ...\n"})
    with here.database.write(HUB) as session:
        new_owner(session, "bob")
    published = await here.client.post(
        "/bob/legacy/",
        data={":action": "file_upload", "protocol_version": "1"},
        files={"content": (spec.wheel_name, spec.build())},
        headers=here.auth(),
    )
    assert published.status_code == 200, published.text
    before = await here.client.get("/bob/simple/text/")
    with pytest.raises(HubProblem, match="taken here, nothing was written: `bob`, `bob/text`"):
        await follow(here, door.url, "bob")
    assert (await here.client.get("/bob/simple/text/")).content == before.content


@pytest.mark.full
async def test_the_command_killed_at_any_moment_goes_on(hub, door, run_of, make_wheel, tmp_path):
    await fill(hub, run_of, make_wheel)
    given = {k: v for k, v in os.environ.items() if not k.startswith("WANDER_HUB_")}
    given |= {"WANDER_HUB_DATA": str(tmp_path / "second"), "WANDER_HUB_MIRROR_NETWORKS": '["127.0.0.0/8"]'}

    async def run(*words, stop_at=None):
        """Run a command; have it killed when the other hub is asked for something."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "wander_hub.cli.main", "mirror", *words),
            env=given,
            stdout=subprocess.PIPE,
        )

        def watch(path):
            if stop_at is not None and path.endswith(stop_at):
                process.kill()

        door.on_request = watch
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    (tmp_path / "second").mkdir()
    begun = Database(f"sqlite:///{tmp_path / 'second' / 'hub.db'}")
    begun.migrate()
    begun.close()
    status, said = await run("add", door.url, "alice/reverse-text")
    assert (status, said) == (0, f"mirror 1 follows `alice/reverse-text` of {door.url}\n")
    for place in ("0.2.0-py3-none-any.whl", "/rollouts.jsonl"):
        assert (await run("sync", stop_at=place))[0] == -signal.SIGKILL
    status, said = await run("sync", "--json")
    assert (status, json.loads(said)["data"]) == (
        0,
        [{"mirror": 1, "versions": 0, "runs": 3, "problems": []}],
    )
    rows = json.loads((await run("list", "--json"))[1])["data"]
    assert [(one["follows"], one["problems"]) for one in rows] == [("alice/reverse-text", [])]
    assert (await run("remove", "1"))[0] == 0
    database = Database(f"sqlite:///{tmp_path / 'second' / 'hub.db'}")
    assert list(fsck.check(database, Storage.open(None, tmp_path / "second" / "objects"))) == []
    database.close()
