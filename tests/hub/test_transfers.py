"""Versions and runs of which a hub has half are swept in time."""

from __future__ import annotations

from datetime import timedelta

from archive_forge import WHEEL_NAME, wheel_of
from run_parcels import Parcel
from sqlalchemy import func, select, update
from staged_uploads import StagedUpload
from wander_hub.app import sweep
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.transfers.models import Transfer


async def test_one_sweep_removes_expired_transfers_of_every_kind(hub, run_of):
    storage = hub.client._transport.app.state.storage
    run = await StagedUpload.begin_run(hub.client, hub.auth(), Parcel.of(*run_of(await hub.publish())))
    await run.send_all()
    upload = await StagedUpload.begin(hub.client, hub.auth(), {WHEEL_NAME: wheel_of()})
    await upload.send_all()
    before = {one.path for one in storage.objects()}
    sweep(hub.database, storage)
    assert {one.path for one in storage.objects()} == before
    with hub.database.write(HUB) as session:
        session.execute(update(Transfer).values(expires_at=now() - timedelta(minutes=1)))
    sweep(hub.database, storage)
    with hub.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Transfer)) == 0
    assert len(before) - len(list(storage.objects())) == 2, "a part of each kind is gone"
    assert list(fsck.find_mismatches(hub.database, storage)) == []
