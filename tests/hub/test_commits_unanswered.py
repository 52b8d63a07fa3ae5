"""PostgreSQL keeps a transaction and ends before it says so: the same again is neither lost nor doubled."""

from __future__ import annotations

import io
from collections import Counter

import httpx
import pytest
from run_parcels import Parcel
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from staged_uploads import StagedUpload
from wander_hub.fsck import check as fsck
from wander_hub.posting import service as posting
from wander_hub.runs import objects

HOOK = {"owner": "alice", "url": "https://example.com/hook"}
_MOST_COMMITS = 20


class Sender:
    """Whoever publishes and posts, each in two ways; a number stands for a version or a run."""

    def __init__(self, hub, make_wheel, run_of, wheel: str) -> None:
        self.hub, self.make_wheel, self.run_of, self.wheel = hub, make_wheel, run_of, wheel

    async def publish(self, number: int) -> httpx.Response:
        spec = self.make_wheel(version=f"0.2.{number}")
        return await self.hub.upload(spec.build(), spec.wheel_name)

    async def stage(self, number: int) -> httpx.Response:
        spec = self.make_wheel(version=f"0.3.{number}")
        files, stated = {spec.wheel_name: spec.build()}, {"name": spec.name, "version": spec.version}
        upload = await StagedUpload.begin(self.hub.client, self.hub.auth(), files, **stated)
        answer = upload.opened
        if answer.is_success and (at := answer.json()["files"][0]["offset"]) < len(files[spec.wheel_name]):
            answer = await upload.send(spec.wheel_name, files[spec.wheel_name][at:], at)
        return await upload.finalize() if answer.is_success else answer

    async def post(self, number: int) -> httpx.Response:
        run_id = f"01WHOLE{number:019d}"
        return await self.hub.post_run(*self.run_of(self.wheel, run_id=run_id, model=run_id))

    async def post_parts(self, number: int) -> httpx.Response:
        run_id = f"01PARTS{number:019d}"
        parcel = Parcel.of(*self.run_of(self.wheel, run_id=run_id, model=run_id))
        place, client, headers = f"/api/v1/postings/{parcel.sha256}", self.hub.client, self.hub.auth()
        answer = await client.put(place, content=parcel.manifest, headers=headers)
        if answer.is_success and not answer.json()["posted"]:
            chunk = f"{place}/chunks/0?digest={parcel.chunk_sha256}"
            answer = await client.put(chunk, content=parcel.lines, headers=headers)
        if not answer.is_success:
            return answer
        return await client.post(f"{place}/finish", json={"chunks": 1}, headers=headers)


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
async def test_what_was_kept_without_an_answer_is_there_once(hub, run_of, make_wheel, monkeypatch):
    sender = Sender(hub, make_wheel, run_of, await hub.publish())
    assert (await hub.client.post("/api/v1/webhooks", json=HOOK, headers=hub.auth())).status_code == 201
    dialect, until = hub.database.engine.dialect, [0]
    commit = dialect.do_commit

    def lose(connection) -> None:
        commit(connection)
        until[0] -= 1
        if until[0] == 0:
            connection.dbapi_connection.close()
            raise dialect.dbapi.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(dialect, "do_commit", lose)
    made = Counter()
    for work in (sender.publish, sender.stage, sender.post, sender.post_parts):
        for number in range(_MOST_COMMITS):
            until[0] = number + 1
            answer, missed = await work(number), until[0] <= 0
            until[0] = 0
            if missed:
                # A whole run looks whether it is there before it tells of a failure.
                assert answer.status_code == 503 or (work, answer.status_code) == (sender.post, 200)
                answer = await work(number)
            assert answer.status_code in (200, 201), (work.__name__, number, answer.text)
            made[work.__name__] += 1
            if not missed:
                break
    assert made == {"publish": 2, "stage": 4, "post": 4, "post_parts": 4}, "one for each commit, and one"
    with hub.database.engine.connect() as connection:
        events = Counter(connection.scalars(text("SELECT event FROM webhook_deliveries")))
        acts = Counter(connection.scalars(text("SELECT action FROM audit")))
        assert connection.scalar(text("SELECT count(*) FROM postings")) == 0
    shown = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (shown["versions"], shown["runs"]) == (7, 8)
    assert (events["version.published"], events["run.posted"]) == (6, 8), (
        "of the first version nobody was told"
    )
    assert (acts["version.publish"], acts["run.post"]) == (7, 8)
    assert list(fsck.check(hub.database, hub.client._transport.app.state.storage)) == []


async def test_a_request_goes_on_when_another_for_the_same_run_fails_and_drops_it(hub, run_of, monkeypatch):
    manifest, rollouts = run_of(await hub.publish())
    parcel, add, dropped = Parcel.of(manifest, rollouts), posting.add_chunk, []
    await hub.client.put(f"/api/v1/postings/{parcel.sha256}", content=parcel.manifest, headers=hub.auth())

    def drop_before(context, sha256, *positional):
        if not dropped:
            dropped.append(posting.drop(context, sha256))
        return add(context, sha256, *positional)

    monkeypatch.setattr(posting, "add_chunk", drop_before)
    answer = await hub.post_run(manifest, rollouts)
    assert (answer.status_code, answer.json()["sha256"], len(dropped)) == (201, parcel.sha256, 1), answer.text


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
async def test_who_lost_the_database_deletes_no_object_any_more(hub, monkeypatch):
    storage, database = hub.client._transport.app.state.storage, hub.database
    loose, look = storage.put(io.BytesIO(b"nobody has it")), objects.in_use

    def end_connection(session, digests) -> set[str]:
        found, pid = look(session, digests), session.scalar(text("SELECT pg_backend_pid()"))
        with database.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        return found

    monkeypatch.setattr(objects, "in_use", end_connection)
    with pytest.raises(OperationalError):
        objects.discard(database, storage, [loose])
    monkeypatch.setattr(objects, "in_use", look)
    assert storage.exists(loose), "by now somebody else may have it"
    assert objects.discard(database, storage, [loose]) == [loose]
    assert not storage.exists(loose)
