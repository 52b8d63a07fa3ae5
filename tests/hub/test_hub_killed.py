"""A hub whose process is killed with -9 in the middle of a publication: nothing half-done is ever seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from wander_hub.fsck import check as fsck

PUBLISHER = """
import io, os, signal, sys
from wander_hub.accounts import repository as accounts
from wander_hub.identity import HUB
from wander_hub.database import Database
from wander_hub.environments import service as environment_service
from wander_hub.index import service as index
from wander_hub.storage import Storage, digest_of
from wander_hub.upload import checks, service
from wander_hub.upload.schemas import Upload
from wander_hub.settings import Settings
from pathlib import Path

url, objects, wheel, step = sys.argv[1:]
places = {
    "before the object": (Storage, "put"),
    "before the rows": (service, "_version_for"),
    "before the totals": (environment_service, "refresh"),
    "before the pages": (index, "write_pages"),
    "before the list": (index, "write_root"),
}
if step in places:
    owner, name = places[step]
    setattr(owner, name, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))
database, storage = Database(url), Storage.open(None, Path(objects))
body = io.BytesIO(Path(wheel).read_bytes())
sha256, size = digest_of(body)
package = checks.check(Upload("alice", Path(wheel).name, body, size, sha256), Settings())
storage.put(body)
with database.write(HUB) as session:
    service.publish(session, accounts.owner_named(session, "alice"), [package], HUB)
    if step == "before the commit":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("database_kind", "steps"),
    [("sqlite", ("rows", "pages", "commit")), ("postgresql", ("commit",))],
    indirect=["database_kind"],
)
async def test_a_killed_publication_is_complete_or_absent(hub, make_wheel, tmp_path, steps, folder_alone):
    storage = hub.client._transport.app.state.storage
    await hub.publish(make_wheel(version="0.1.0"))
    spec = make_wheel(version="0.2.0")
    wheel = tmp_path / spec.wheel_name
    wheel.write_bytes(spec.build())

    def publish(step: str) -> int:
        command = [sys.executable, "-c", PUBLISHER, hub.database.url, str(hub.settings.data / "objects")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run([*command, str(wheel), step], env=environ, check=False).returncode

    before = (await hub.get("/alice/simple/reverse-text/")).content
    for step in (f"before the {one}" for one in steps):
        assert publish(step) == -signal.SIGKILL, step
        assert (await hub.get("/alice/simple/reverse-text/")).content == before, step
        assert list(fsck.find_mismatches(hub.database, storage)) == [], step
    assert publish("to the end") == 0
    assert b"0.2.0" in (await hub.get("/alice/simple/reverse-text/")).content
    assert list(fsck.find_mismatches(hub.database, storage)) == []
