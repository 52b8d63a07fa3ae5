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
from wander_hub.transfers import objects

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
        if answer.is_success and not answer.json()["parts"]:
            answer = await upload.send(spec.wheel_name, files[spec.wheel_name])
        return await upload.finalize() if answer.is_success else answer

    async def post(self, number: int) -> httpx.Response:
        run_id = f"01WHOLE{number:019d}"
        return await self.hub.post_run(*self.run_of(self.wheel, run_id=run_id, model=run_id))

    async def post_parts(self, number: int) -> httpx.Response:
        run_id = f"01PARTS{number:019d}"
        parcel = Parcel.of(*self.run_of(self.wheel, run_id=run_id, model=run_id))
        run = await StagedUpload.begin_run(self.hub.client, self.hub.auth(), parcel)
        answer = run.opened
        if answer.is_success and not answer.json()["finished"]:
            answer = await run.send_chunk(0)
        return await run.finalize() if answer.is_success else answer


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
async def test_a_commit_without_a_response_is_stored_once(hub, run_of, make_wheel, monkeypatch):
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
                assert answer.status_code == 503
                answer = await work(number)
            assert answer.status_code in (200, 201), (work.__name__, number, answer.text)
            made[work.__name__] += 1
            if not missed:
                break
    assert made == {"publish": 2, "stage": 4, "post": 4, "post_parts": 4}, "one for each commit, and one"
    with hub.database.engine.connect() as connection:
        events = Counter(connection.scalars(text("SELECT event FROM webhook_deliveries")))
        acts = Counter(connection.scalars(text("SELECT action FROM audit")))
        assert connection.scalar(text("SELECT count(*) FROM transfer_parts")) == 0
    shown = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (shown["versions"], shown["runs"]) == (7, 8)
    assert (events["version.published"], events["run.posted"]) == (6, 8), (
        "of the first version nobody was told"
    )
    assert (acts["version.publish"], acts["run.post"]) == (7, 8)
    assert list(fsck.find_mismatches(hub.database, hub.client._transport.app.state.storage)) == []


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
async def test_objects_are_not_deleted_after_losing_the_database(hub, monkeypatch):
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
