"""Uploads and posted runs of which a hub has half: resumed though it is newer now, and swept in time.

`recorded/half_sent.tar.xz` is the data folder of the hub at commit 6136779, closed after the first 64 KiB of
a wheel and after the second of two chunks of a run, with the bytes that its clients had still to send.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from archive_forge import WHEEL_NAME, wheel_of
from run_parcels import Parcel
from sqlalchemy import func, select, update
from staged_uploads import StagedUpload
from wander_hub.app import create_app, sweep
from wander_hub.database import Database, now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.runs.models import PostingRow
from wander_hub.settings import Settings
from wander_hub.upload.models import UploadSession

RECORDED = Path(__file__).parent / "recorded" / "half_sent.tar.xz"


@pytest.mark.usefixtures("sqlite_alone", "folder_alone")
async def test_what_an_older_hub_has_half_of_is_finished(tmp_path):
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    told = json.loads((tmp_path / "begun.json").read_text())
    wheel = (tmp_path / told["wheel"]).read_bytes()
    settings = Settings(data=tmp_path / "data", bundled_packages=False)
    database = Database(settings.resolved_database_url)
    database.migrate()
    app = create_app(settings, database=database)
    headers = {"Authorization": f"Bearer {told['token']}"}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://hub.test", headers=headers) as client,
    ):
        stated = {"name": "reverse-text", "version": "0.2.0"}
        upload = await StagedUpload.begin(client, headers, {told["wheel"]: wheel}, **stated)
        assert (upload.opened.status_code, upload.id) == (200, told["upload"])
        assert [one["offset"] for one in upload.opened.json()["files"]] == [64 * 1024]
        await upload.send_all()
        answer = await upload.finalize()
        assert answer.status_code == 200, answer.text
        served = await client.get(f"/alice/files/reverse-text/{told['wheel']}")
        assert served.content == wheel

        place = f"/api/v1/postings/{told['posting']}"
        opened = await client.put(place, content=told["manifest"].encode())
        assert opened.status_code == 200, opened.text
        assert [one["number"] for one in opened.json()["chunks"]] == [1]
        assert [one["name"] for one in opened.json()["artifacts"]] == ["metrics.jsonl"]
        first = told["chunks"][0].encode()
        digest = hashlib.sha256(first).hexdigest()
        sent = await client.put(f"{place}/chunks/0", params={"digest": digest}, content=first)
        assert sent.status_code == 200, sent.text
        posted = await client.post(f"{place}/finish", json={"chunks": 2})
        assert (posted.status_code, posted.json()["sha256"]) == (201, told["posting"])
        lines = await client.get(f"/api/v1/runs/{posted.json()['run_id']}/rollouts.jsonl")
        assert lines.text == "".join(told["chunks"])
        assert list(fsck.check(database, app.state.storage)) == []


async def test_one_sweep_drops_both_kinds_once_their_time_is_over(hub, run_of):
    storage = hub.client._transport.app.state.storage
    parcel = Parcel.of(*run_of(await hub.publish()))
    place = f"/api/v1/postings/{parcel.sha256}"
    assert (await hub.client.put(place, content=parcel.manifest, headers=hub.auth())).status_code == 201
    options = {"params": {"digest": parcel.chunk_sha256}, "content": parcel.lines, "headers": hub.auth()}
    assert (await hub.client.put(f"{place}/chunks/0", **options)).status_code == 200
    upload = await StagedUpload.begin(hub.client, hub.auth(), {WHEEL_NAME: wheel_of()})
    await upload.send_all()
    before = {one.path for one in storage.objects()}, len(list(storage.list_staged()))
    sweep(hub.database, storage)
    assert ({one.path for one in storage.objects()}, len(list(storage.list_staged()))) == before
    with hub.database.write(HUB) as session:
        for table in (PostingRow, UploadSession):
            session.execute(update(table).values(expires_at=now() - timedelta(minutes=1)))
    sweep(hub.database, storage)
    with hub.database.read() as session:
        for table in (PostingRow, UploadSession):
            assert session.scalar(select(func.count()).select_from(table)) == 0
    assert len(before[0]) - len(list(storage.objects())) == before[1] + 1, "a chunk of each kind is gone"
    assert (before[1], list(storage.list_staged()), list(fsck.check(hub.database, storage))) == (1, [], [])
