"""A hub whose process is killed with -9 anywhere in a posting: the run is whole or not there, never twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from run_parcels import Parcel
from staged_uploads import StagedUpload
from wander_hub.fsck import check as fsck

POSTER = """
import hashlib, io, os, signal, sys
from pathlib import Path
from wander.wire.postings import ROLLOUTS
from wander.wire.transfers import NewRun, RunFile
from wander_hub.transfers import repository, service as transfers
from wander_hub.identity import HUB
from wander_hub.database import Database
from wander_hub.posting import finish as finishing
from wander_hub.posting.arrival import RUNS, announce
from wander_hub.http.boundary import Context
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from dataclasses import replace

url, folder, parcel, sha256, user_id = sys.argv[1:6]
identity = replace(HUB, user_id=int(user_id))
texts = [one.encode() for one in eval(Path(parcel).read_text())]

def die(*a, **k):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_inside(work):
    def doomed(self, session_work, reader=None):
        def then_die(session):
            session_work(session)
            session.flush()
            die()
        return work(self, then_die, reader)
    return doomed

def attempt(step):
    database, storage = Database(url), Storage.open(None, Path(folder))
    context = Context(identity, database, storage, Settings())
    manifest, *chunks = texts
    size = sum(map(len, chunks))
    files = [RunFile(filename=ROLLOUTS, size=size, sha256=sha256)]
    info, _ = announce(context, NewRun(manifest=manifest.decode(), files=files))
    offset = 0
    for number, lines in enumerate(chunks):
        if number == 1 and step.startswith("chunk"):
            if step == "chunk: before its object":
                Storage.put = die
            elif step == "chunk: before its row":
                repository.drop_overlapping = die
            elif step == "chunk: before the commit":
                Database.commit = dies_inside(Database.commit)
        digest = hashlib.sha256(lines).hexdigest()
        transfers.receive(context, RUNS, info.id, ROLLOUTS, offset, digest, io.BytesIO(lines))
        offset += len(lines)
    if step == "finish: before the order":
        Storage.put = die
    elif step == "finish: before the rows":
        finishing._run = die
    elif step == "finish: before the posting goes":
        repository.drop_parts = die
    elif step == "finish: before the commit":
        Database.commit = dies_inside(Database.commit)
    done = transfers.finish(context, RUNS, info.id)
    if step == "finish: before the answer":
        die()

for step in sys.argv[6:]:
    child = os.fork()
    if child == 0:
        attempt(step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (step, status)
"""
STEPS = (
    *("chunk: before its object", "chunk: before its row", "chunk: before the commit"),
    *("finish: before the order", "finish: before the rows", "finish: before the posting goes"),
    "finish: before the commit",
)


def killed(hub, folder, parcel: Parcel, user_id: int, *steps: str) -> None:
    """Post in processes that die at each of the steps in turn."""
    texts = folder / "parcel"
    texts.write_text(repr([parcel.manifest.decode(), *(one.decode() for one in parcel.chunks)]))
    command = [sys.executable, "-c", POSTER, hub.database.url, str(hub.settings.data / "objects")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [str(texts), str(parcel.rollouts_sha256), str(user_id), *steps]
    done = subprocess.run([*command, *words], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
async def test_a_killed_posting_resumes_and_counts_once(hub, run_of, tmp_path):
    manifest, rollouts = run_of(await hub.publish(), examples=8, per_example=2)
    parcel = Parcel.of(manifest, rollouts, per_chunk=5)
    bob = 3
    assert (await hub.get("/api/v1/whoami", headers=hub.auth("bob"))).json()["user"] == "bob"
    storage = hub.client._transport.app.state.storage
    run = f"/api/v1/runs/{manifest['run_id']}"
    killed(hub, tmp_path, parcel, bob, *STEPS)
    assert (await hub.get(run)).status_code == 404
    assert (await hub.get("/api/v1/runs")).json()["data"] == []
    upload = await StagedUpload.begin_run(hub.client, hub.auth("bob"), parcel)
    assert len((await upload.show()).json()["parts"]) == 4, "all that was kept is still there"
    assert list(fsck.find_mismatches(hub.database, storage, settings=hub.settings)) == []
    killed(hub, tmp_path, parcel, bob, "finish: before the answer")
    shown = (await hub.get(run)).json()
    assert (shown["summary"]["rollouts"], shown["level"], shown["posted_by"]) == (16, "complete", "bob")
    (asked,) = (await hub.get(f"{run}/verifications")).json()["data"]
    assert asked["state"] == "queued", "the run came with its job"
    answer = await upload.finalize()
    assert (answer.status_code, answer.json()["sha256"]) == (200, parcel.sha256)
    lines = (await hub.get(f"{run}/rollouts.jsonl")).text.splitlines()
    assert [json.loads(line) for line in lines] == rollouts
    environment = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert environment["runs"] == 1
    assert list(fsck.find_mismatches(hub.database, storage, settings=hub.settings)) == []
