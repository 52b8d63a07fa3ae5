"""A hub that is killed with -9 at any step of finalize: the whole version is there, or nothing of it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import tomlkit
from archive_forge import MODULE, PROJECT, SDIST_NAME, WHEEL_NAME, metadata, sdist_of, wheel_of
from staged_uploads import StagedUpload
from wander_hub.fsck import check as fsck

BEFORE = {
    "the first byte": "versions.copy_pieces",
    "the gate": "checks.check",
    "the objects": "Storage.exists",
    "the transaction": "service.publish",
    "the version": "service._version_for",
    "the files": "service._put_file",
    "the totals": "environment_listing.refresh",
    "the page": "index_repository.store_page",
    "the list": "index.write_root",
    "the lock": "locks.attach",
    "the end of the transfer": "transfer_repository.drop_parts",
    "the commit": "Session.commit",
}
"""Where the hub dies: before the first call of each of these."""

FINALIZER = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.orm import Session
from wander_hub.accounts import service as accounts
from wander_hub.rights.tokens import authenticate
from wander_hub.database import Database
from wander_hub.lifecycle import locks
from wander_hub.leaderboards import environment_listing
from wander_hub.http.boundary import Context
from wander_hub.index import repository as index_repository
from wander_hub.index import service as index
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import objects, repository as transfer_repository, service as transfers
from wander_hub.upload import checks, service, versions

url, folder, token, transfer_id = sys.argv[1:]

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def finalized(place):
    database, storage = Database(url), Storage.open(None, Path(folder))
    caller = authenticate(database, token)
    if place == "Session.commit":
        event.listen(Session, "before_commit", die)
    elif place:
        owner, name = place.split(".")
        setattr(globals()[owner], name, die)
    context = Context(caller, database, storage, Settings(), "http://hub.test")
    transfers.finish(context, versions.VERSIONS, transfer_id)

for line in sys.stdin:  # one process imports, each step dies in a copy of it
    child = os.fork()
    if child == 0:
        finalized(line.strip())
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def finalizer(hub, transfer_id: str) -> Iterator[Callable[[str], int]]:
    """Give a function that finalizes in a process of its own and returns its exit status."""
    arguments = [hub.database.url, str(hub.settings.data / "objects"), hub.tokens["alice"], transfer_id]
    process = subprocess.Popen(
        [sys.executable, "-c", FINALIZER, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def finalize(place: str) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{place}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield finalize
    finally:
        process.communicate()


def version_files() -> dict[str, bytes]:
    """Return wheel, source and lock of good-env 1.0."""
    wheel = wheel_of()
    own = {"url": f"http://hub.test/alice/files/good-env/{WHEEL_NAME}"}
    own["hashes"] = {"sha256": hashlib.sha256(wheel).hexdigest()}
    package = {"name": "good-env", "version": "1.0", "wheels": [own]}
    lock = tomlkit.dumps({"lock-version": "1.0", "created-by": "wander", "packages": [package]})
    sdist = sdist_of(files={"PKG-INFO": metadata(), "pyproject.toml": PROJECT, "good_env.py": MODULE})
    return {WHEEL_NAME: wheel, SDIST_NAME: sdist, "pylock.toml": lock.encode()}


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
async def test_a_killed_finalize_published_everything_or_nothing(hub, folder_alone):
    storage = hub.client._transport.app.state.storage
    files = version_files()
    upload = await StagedUpload.begin(hub.client, hub.auth(), files)
    await upload.send_all()
    with finalizer(hub, upload.id) as finalize:
        for step, place in BEFORE.items():
            assert finalize(place) == -signal.SIGKILL, step
            assert (await hub.get("/api/v1/environments/alice/good-env")).status_code == 404, step
            assert (await hub.get("/alice/simple/good-env/")).status_code == 404, step
            shown = (await upload.show()).json()
            assert not shown["finished"], step
            assert len(shown["parts"]) == 3, step
            assert list(fsck.find_mismatches(hub.database, storage)) == [], step
        assert finalize("objects.discard") == -signal.SIGKILL
        assert (await upload.show()).json()["finished"], "dying after the commit changes nothing"
        assert finalize("") == 0, "and the same request again is answered"
    answer = await upload.finalize()
    assert {one["filename"] for one in answer.json()["files"]} == {WHEEL_NAME, SDIST_NAME}
    assert answer.json()["lock"] is not None
    for filename in (WHEEL_NAME, SDIST_NAME):
        assert (await hub.get(f"/alice/files/good-env/{filename}")).content == files[filename]
    assert list(fsck.find_mismatches(hub.database, storage)) == []
