"""Uploads and posted runs of which a hub has half: resumed though it is newer now, and swept in time.

`recorded/half_sent.tar.xz` is the data folder of the hub at commit 6136779, closed after the first 64 KiB of
a wheel and after the second of two chunks of a run, with the bytes that its clients had still to send.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from archive_forge import WHEEL_NAME, wheel_of
from run_parcels import Parcel
from sqlalchemy import func, select, update
from staged_uploads import StagedUpload
from wander_hub.app import sweep
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.runs.models import PostingRow
from wander_hub.upload.models import UploadSession

RECORDED = Path(__file__).parent / "recorded" / "half_sent.tar.xz"


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
