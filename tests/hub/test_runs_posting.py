"""Runs that come in parts: in any order, as often as it takes, and never half."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from datetime import timedelta
from typing import Any

import pytest
import zstandard
from run_parcels import Parcel
from sqlalchemy import func, select
from staged_uploads import RUNS, StagedUpload, posted
from wander.evals.stats.summary import summarize_run
from wander.types import Rollout
from wander.wire import RunManifest
from wander.wire.postings import RolloutsDigest, line_digest, run_digest
from wander_hub.database import now
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.posting.arrival import MAX_ARTIFACTS
from wander_hub.runs.models import Run, RunChunk
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer, TransferPart


@pytest.fixture
async def pinned(hub):
    """A published environment: the digest of its wheel."""
    return await hub.publish()


async def begin(hub, parcel: Parcel, user: str = "alice", **stated) -> StagedUpload:
    return await StagedUpload.begin_run(hub.client, hub.auth(user), parcel, **stated)


def rich(run_of, pinned, **options) -> tuple[dict, list[dict]]:
    """A run whose rollouts differ in everything that an aggregate is made from."""
    manifest, rollouts = run_of(pinned, examples=20, per_example=5, **options)
    for number, one in enumerate(rollouts):
        if number % 7 == 0:
            failure = {"boundary": ("model", "tool")[number % 2], "type": "X", "message": "m"}
            one |= {"reward": None, "failure": failure, "metrics": {}, "stop_reason": None}
        else:
            one |= {"reward": number % 4 / 4, "stop_reason": ("done", "turns")[number % 2]}
            one |= {"metrics": {"lcs": number / 100, "words": float(number)}, "truncated": number % 3 == 0}
        one |= {"turns": one["turns"] * (1 + number % 3), "seconds": number / 8}
        one |= {"usage": {"prompt_tokens": number, "completion_tokens": 12 + 2 * number}}
    return manifest, rollouts


async def test_chunks_in_any_order_make_the_run_that_the_sdk_would_summarize(hub, pinned, run_of):
    manifest, rollouts = rich(run_of, pinned)
    parcel = Parcel.of(manifest, rollouts, per_chunk=7)
    run = await begin(hub, parcel)
    begun = run.opened.json()
    assert (run.opened.status_code, begun["parts"], begun["finished"]) == (201, [], False)
    for number in reversed(range(len(parcel.chunks))):
        answer = await run.send_chunk(number)
        assert answer.status_code == 200, answer.text
    assert (await hub.get(f"/api/v1/runs/{manifest['run_id']}")).status_code == 404, "not before it is whole"
    done = await run.finalize()
    assert done.status_code == 201, done.text
    whole = [Rollout.model_validate(one) for one in rollouts]
    expected = summarize_run(RunManifest.model_validate(manifest), whole).model_dump(mode="json")
    assert done.json()["summary"] == expected
    assert done.json()["sha256"] == parcel.sha256
    for number in (0, 6, 7, 50, 99):
        got = await hub.get(f"/api/v1/runs/{manifest['run_id']}/rollouts/{number}")
        assert Rollout.model_validate(got.json()) == whole[number]
    page = (await hub.get(f"/api/v1/runs/{manifest['run_id']}/rollouts?offset=5&limit=40")).json()["data"]
    assert [(one["number"], one["example_id"], one["reward"]) for one in page] == [
        (number, rollouts[number]["example_id"], rollouts[number]["reward"]) for number in range(5, 45)
    ]


async def test_downloaded_rollouts_match_the_digest(hub, pinned, run_of):
    manifest, rollouts = rich(run_of, pinned)
    parcel = Parcel.of(manifest, rollouts, per_chunk=30, artifacts={"notes.txt": b"words"})
    run = await begin(hub, parcel)
    await run.send_all()
    assert (await run.send("notes.txt", b"other")).status_code == 200
    wrong = await run.finalize()
    assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
    assert (await run.send("notes.txt", b"words")).status_code == 200
    assert (await run.finalize()).status_code == 201
    digest = RolloutsDigest()
    for line in (await hub.get(f"/api/v1/runs/{manifest['run_id']}/rollouts.jsonl")).content.splitlines():
        digest.add(line_digest(line))
    artifacts = {"notes.txt": hashlib.sha256(b"words").hexdigest()}
    assert run_digest(parcel.manifest, digest.hexdigest(), artifacts) == parcel.sha256


async def test_an_interrupted_posting_learns_what_exists_and_resumes(hub, pinned, run_of):
    parcel = Parcel.of(*rich(run_of, pinned), per_chunk=25)
    run = await begin(hub, parcel)
    offsets = [sum(map(len, parcel.chunks[:number])) for number in range(5)]
    for number in (0, 2):
        await run.send_chunk(number)
    again = await begin(hub, parcel)
    assert (again.opened.status_code, again.id) == (200, run.id)
    assert [one["offset"] for one in again.opened.json()["parts"]] == [offsets[0], offsets[2]]
    assert (await run.show()).json()["parts"] == again.opened.json()["parts"]
    early = await run.finalize()
    assert (early.status_code, early.json()["code"]) == (409, "transfer_incomplete")
    assert [(one["start"], one["end"]) for one in early.json()["errors"]] == [
        (offsets[number], offsets[number + 1]) for number in (1, 3)
    ]
    for number in (1, 3, 3, 0):
        assert (await run.send_chunk(number)).status_code == 200
    assert (await run.finalize()).status_code == 201
    repeated = await run.finalize()
    assert (repeated.status_code, repeated.json()["summary"]["rollouts"]) == (200, 100), "its answer was lost"
    opened = await begin(hub, parcel)
    assert (opened.opened.status_code, opened.opened.json()["finished"]) == (200, True)
    assert len((await hub.get("/api/v1/runs")).json()["data"]) == 1
    with hub.database.read() as session:
        assert session.scalar(select(func.count()).select_from(TransferPart)) == 0


async def test_only_its_submitter_can_continue_a_posting(hub, pinned, run_of):
    parcel = Parcel.of(*run_of(pinned))
    run = await begin(hub, parcel)
    others = dataclasses.replace(run, headers=hub.auth("bob"))
    for answer in (
        await others.send_chunk(0),
        await others.finalize(),
        await others.show(),
        await others.cancel(),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "transfer_not_found")
    bobs = await begin(hub, parcel, user="bob")
    assert bobs.opened.status_code == 201, "bob may post the same run himself"
    assert (await run.complete()).status_code == 201
    second = await bobs.complete()
    assert (second.status_code, second.json()["posted_by"]) == (200, "alice"), "the first one counts"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: [lines[1], lines[0], *lines[2:]], "order of examples"),
        (lambda lines: [lines[0], lines[0]], "order of examples"),
        (lambda lines: [lines[0], b"{\n"], "line 2 of the part at 0"),
        (lambda lines: [line.replace(b'"0"', b'"7"', 1) for line in lines], "no example"),
        (
            lambda lines: [line.replace(b'"index": 1', b'"index": 2') for line in lines],
            "outside",
        ),
    ],
)
async def test_a_bad_chunk_is_rejected_on_arrival(hub, pinned, run_of, spoil, words):
    parcel = Parcel.of(*run_of(pinned))
    run = await begin(hub, parcel)
    answer = await run.send_chunk(0, b"".join(spoil(parcel.lines.splitlines(keepends=True))))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")
    assert words in answer.json()["detail"]
    assert (await run.show()).json()["parts"] == []


async def test_chunks_that_were_changed_on_their_way_or_come_twice(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    parcel = Parcel.of(manifest, rollouts, per_chunk=3)
    run = await begin(hub, parcel)
    wrong = await run.send("rollouts.jsonl", parcel.lines, 0, "0" * 64)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
    twice = Parcel.of(manifest, [*rollouts[:3], *rollouts[:3]], per_chunk=3)
    forged = await (await begin(hub, twice)).complete()
    assert (forged.status_code, forged.json()["code"]) == (422, "bad_rollouts")
    assert (await run.complete()).status_code == 201
    storage = hub.client._transport.app.state.storage
    assert list(fsck.find_mismatches(hub.database, storage)) == []


async def test_an_abandoned_posting_is_removed_with_its_objects(hub, pinned, run_of):
    run = await begin(hub, Parcel.of(*run_of(pinned)))
    await run.send_all()
    storage = hub.client._transport.app.state.storage
    with hub.database.write(HUB) as session:
        sha256 = session.scalars(select(TransferPart.object_sha256)).one()
        session.scalars(select(Transfer)).one().expires_at = now() - timedelta(minutes=1)
    assert storage.exists(sha256)
    assert (await run.show()).status_code == 404
    assert transfers.sweep(hub.database, storage) == 1
    assert not storage.exists(sha256)


async def test_one_run_id_is_one_run(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    assert (await posted(hub.client, hub.auth(), Parcel.of(manifest, rollouts))).status_code == 201
    rollouts[0]["reward"] = 1.0
    other = (await begin(hub, Parcel.of(manifest, rollouts))).opened
    assert (other.status_code, other.json()["code"]) == (409, "run_exists")
    whole = await hub.post_run(manifest, rollouts)
    assert (whole.status_code, whole.json()["code"]) == (409, "run_exists")


async def test_a_run_in_one_request_is_the_same_run(hub, pinned, run_of):
    manifest, rollouts = rich(run_of, pinned)
    parcel = Parcel.of(manifest, rollouts, per_chunk=10)
    assert (await hub.post_run(manifest, rollouts[::-1])).json()["sha256"] == parcel.sha256
    assert (await begin(hub, parcel)).opened.json()["finished"] is True


@pytest.mark.parametrize(
    "only", ["scored", *(pytest.param(only, marks=pytest.mark.full) for only in ("all", "failed"))]
)
@pytest.mark.parametrize("sort", ["number", "reward", "-reward"])
async def test_pages_in_every_order_and_of_every_kind(hub, pinned, run_of, sort, only):
    manifest, rollouts = rich(run_of, pinned)
    await posted(hub.client, hub.auth(), Parcel.of(manifest, rollouts, per_chunk=9))
    numbers = [
        n for n, one in enumerate(rollouts) if only in ("all", ("scored", "failed")[one["reward"] is None])
    ]
    if sort != "number":
        sign = -1 if sort == "-reward" else 1
        scored = [n for n in numbers if rollouts[n]["reward"] is not None]
        scored.sort(key=lambda n: (sign * rollouts[n]["reward"], -sign * n if sign > 0 else n))
        numbers = scored + [n for n in numbers if rollouts[n]["reward"] is None]
    seen = []
    for offset in (0, 50, 100):
        page = await hub.get(
            f"/runs/{manifest['run_id']}",
            params={"sort": sort, "only": only, "offset": offset},
            headers={"Accept": "text/html"},
        )
        links = rf'href="/runs/{manifest["run_id"]}/rollouts/(\d+)["?]'
        seen += map(int, re.findall(links, page.text.partition('id="rollouts"')[2]))
    assert seen == numbers


async def test_limits_hold(hub, pinned, run_of):
    parcel = Parcel.of(*run_of(pinned))
    run = await begin(hub, parcel)
    bomb = zstandard.ZstdCompressor().compress(b" " * (65 * 1024 * 1024))
    answer = await run.send("rollouts.jsonl", bomb)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    manifest, rollouts = run_of(pinned, examples=1, per_example=1001)
    many = await begin(hub, Parcel.of(manifest, rollouts, per_chunk=2000))
    answer = await many.send_chunk(0)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")
    for names, code in (
        (["x.html"], "bad_artifact"),
        (["curve.png", "CURVE.png"], "bad_artifact"),
        ([f"{number}.png" for number in range(MAX_ARTIFACTS + 1)], "too_many_artifacts"),
    ):
        artifacts = dict.fromkeys(names, b"x")
        evil = (await begin(hub, Parcel.of(manifest, rollouts, artifacts=artifacts))).opened
        assert (evil.status_code, evil.json()["code"]) == (422, code)
    huge = parcel.announced()
    huge["files"][0]["size"] = hub.settings.max_run_bytes + 1
    answer = await hub.client.post(RUNS, json=huge, headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_training_run_and_evaluations_of_its_checkpoints_know_each_other(hub, pinned, run_of):
    weights = {step: hashlib.sha256(str(step).encode()).hexdigest() for step in (0, 10, 20)}
    lines = [json.dumps({"step": step, "weights_sha256": weights[step]}) for step in (10, 20)]
    training, _ = run_of(pinned, reward=[], examples=0, kind="training", run_id="01JTRAINING00000000000000A")
    training["model"]["weights_sha256"] = weights[0]
    artifacts = {
        "checkpoints.jsonl": "\n".join(lines).encode(),
        "metrics.jsonl": b'{"step": 1, "reward": 1}\n',
    }
    bad = await hub.post_run(training, None, artifacts={"checkpoints.jsonl": b'{"step": -1}\n'})
    assert (bad.status_code, bad.json()["code"]) == (422, "bad_artifact")
    assert (await hub.post_run(training, None, artifacts=artifacts)).status_code == 201
    ids = {}
    for step in (0, 20):
        manifest, rollouts = run_of(pinned, run_id=f"01JEVALUATION0000000000{step:03d}", reward=step / 20)
        manifest["model"]["weights_sha256"] = weights[step]
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
        ids[step] = manifest["run_id"]
    links = (await hub.get(f"/api/v1/runs/{training['run_id']}/links")).json()
    assert [(one["run_id"], one["step"], one["reward_mean"]) for one in links["evaluated_by"]] == [
        (ids[0], 0, 0.0),
        (ids[20], 20, 1.0),
    ]
    assert [one["step"] for one in links["checkpoints"]] == [10, 20]
    links = (await hub.get(f"/api/v1/runs/{ids[20]}/links")).json()
    assert [(one["run_id"], one["step"]) for one in links["trained_by"]] == [(training["run_id"], 20)]
    page = (await hub.get(f"/runs/{training['run_id']}", headers={"Accept": "text/html"})).text
    assert f"/runs/{ids[20]}" in page
    page = (await hub.get(f"/runs/{ids[20]}", headers={"Accept": "text/html"})).text
    assert f"/runs/{training['run_id']}" in page


async def test_rows_of_a_posted_run_are_few(hub, pinned, run_of):
    await posted(hub.client, hub.auth(), Parcel.of(*rich(run_of, pinned), per_chunk=50))
    with hub.database.read() as session:
        assert session.scalars(select(RunChunk.first).order_by(RunChunk.first)).all() == [0, 50]
        assert session.scalars(select(Run.order_sha256)).one() is not None


@pytest.mark.parametrize("per_chunk", [2, 5, 40])
async def test_rollouts_of_an_example_have_one_seed_across_chunks(hub, pinned, run_of, per_chunk):
    manifest, rollouts = run_of(pinned, examples=4, per_example=3)
    for number, one in enumerate(rollouts):
        one["seed"] = 10 + number // 3
    good = Parcel.of(manifest, rollouts, per_chunk=per_chunk)
    rollouts[8]["seed"] += 1
    forged = Parcel.of(manifest | {"run_id": "01FORGED000000000000000000"}, rollouts, per_chunk=per_chunk)
    for parcel, status in ((good, 201), (forged, 422)):
        answer = await posted(hub.client, hub.auth(), parcel)
        assert answer.status_code == status, answer.text
    assert "its seed differs from an earlier rollout of `2`" in answer.json()["detail"]


async def test_an_interrupted_form_is_not_an_error_of_the_hub(hub, caplog):
    arriving = iter([{"type": "http.request", "body": b"--x\r\n", "more_body": True}])
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(arriving, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    headers = {
        "host": hub.client.base_url.host,
        "content-type": "multipart/form-data; boundary=x",
        **hub.auth(),
    }
    scope = {"type": "http", "method": "POST", "path": "/api/v1/runs", "query_string": b"", "scheme": "http"}
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await hub.client._transport.app(
        scope | {"http_version": "1.1", "client": ("127.0.0.1", 1)}, receive, send
    )
    assert answers[0]["status"] == 400
    assert b"body_broken_off" in answers[1]["body"]
    assert "unexpected failure" not in caplog.text
