"""Transfers of versions: announced, sent in parts, and published all together or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import pytest
import tomlkit
from archive_forge import MODULE, PROJECT, SDIST_NAME, WHEEL_NAME, metadata, sdist_of, wheel_of
from sqlalchemy import update
from staged_uploads import VERSIONS, StagedUpload, announced, published
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service as account_service
from wander_hub.database import now
from wander_hub.environments.models import Version
from wander_hub.fsck import check as fsck
from wander_hub.http.boundary import Context
from wander_hub.identity import HUB
from wander_hub.rights.tokens import authenticate
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer, TransferPart
from wander_hub.upload import versions

ENVIRONMENT = "/api/v1/environments/alice/good-env"
PAGE = "/alice/simple/good-env/"
KIB = 1024


def source(module: bytes = MODULE, **files: bytes) -> bytes:
    """Return a source archive with the module that the wheel has."""
    members = {"PKG-INFO": metadata(), "pyproject.toml": PROJECT, "good_env.py": module}
    return sdist_of(files=members | files)


WHEEL, SDIST = wheel_of(), source()
BOTH = {WHEEL_NAME: WHEEL, SDIST_NAME: SDIST}
LARGE = wheel_of({"good_data.bin": hashlib.shake_256(b"data").digest(300 * KIB)})


@pytest.fixture
def storage(hub) -> Storage:
    return hub.client._transport.app.state.storage


@pytest.fixture
def begin(hub):
    async def begin(files: dict[str, bytes], user: str = "alice", **stated) -> StagedUpload:
        return await StagedUpload.begin(hub.client, hub.auth(user), files, **stated)

    return begin


async def names_on_page(hub) -> set[str]:
    answer = await hub.get(PAGE, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    return {one["filename"] for one in answer.json()["files"]} if answer.status_code == 200 else set()


async def test_wheel_and_source_become_visible_together(hub, begin, storage):
    upload = await begin(BOTH)
    assert (upload.opened.status_code, upload.opened.json()["finished"]) == (201, False)
    assert upload.opened.headers["location"] == f"http://hub.test{upload.place}"
    await upload.send_all()
    assert await names_on_page(hub) == set()
    assert (await hub.get(ENVIRONMENT, headers=hub.auth())).status_code == 404
    answer = await upload.finalize()
    assert answer.status_code == 201, answer.text
    assert await names_on_page(hub) == set(BOTH)
    assert answer.json()["source"]["compared"] == [WHEEL_NAME]
    for filename, body in BOTH.items():
        assert (await hub.get(f"/alice/files/good-env/{filename}")).content == body
    again = await upload.finalize()
    assert (again.status_code, again.json()) == (200, answer.json())
    assert (await upload.show()).json()["finished"]
    assert list(fsck.find_mismatches(hub.database, storage)) == []


async def test_existing_files_of_a_version_are_not_uploaded_again(hub, begin):
    await hub.upload(WHEEL, WHEEL_NAME)
    upload = await begin(BOTH)
    shown = {one["filename"]: one for one in upload.opened.json()["files"]}
    assert (shown[WHEEL_NAME]["there"], shown[SDIST_NAME]["there"]) == (True, False)
    await upload.send_all()
    assert (await upload.finalize()).json()["source"]["compared"] == [WHEEL_NAME]
    second = await begin(BOTH)
    assert all(one["there"] for one in second.opened.json()["files"])
    assert (await second.finalize()).status_code == 200


async def test_parts_come_in_any_order_and_a_repeated_one_is_harmless(hub, begin, storage):
    upload = await begin({WHEEL_NAME: LARGE})
    step = 100 * KIB
    for offset in reversed(range(0, len(LARGE), step)):
        for _ in range(2):
            sent = await upload.send(WHEEL_NAME, LARGE[offset : offset + step], offset)
            assert (sent.status_code, sent.json()["offset"]) == (200, offset), sent.text
    assert (await upload.finalize()).status_code == 201
    assert (await hub.get(f"/alice/files/good-env/{WHEEL_NAME}")).content == LARGE
    assert [one.sha256 for one in storage.objects()] == [hashlib.sha256(LARGE).hexdigest()], "no part is left"


async def test_an_interrupted_upload_learns_which_parts_exist(begin):
    first = await begin({WHEEL_NAME: LARGE})
    await first.send(WHEEL_NAME, LARGE[: 200 * KIB])
    second = await begin({WHEEL_NAME: LARGE})
    assert (second.opened.status_code, second.id) == (200, first.id)
    (part,) = second.opened.json()["parts"]
    digest = hashlib.sha256(LARGE[: 200 * KIB]).hexdigest()
    assert part == {"filename": WHEEL_NAME, "offset": 0, "sha256": digest}
    assert (await second.show()).json()["parts"] == [part]
    await second.send(WHEEL_NAME, LARGE[200 * KIB :], 200 * KIB)
    assert (await second.finalize()).status_code == 201


async def test_parts_that_do_not_fit_are_rejected(begin):
    upload = await begin({WHEEL_NAME: LARGE})
    half = len(LARGE) // 2
    answers = {
        "part_too_short": await upload.send(WHEEL_NAME, LARGE[: 10 * KIB]),
        "part_too_long": await upload.send(WHEEL_NAME, LARGE + b"x"),
        "part_too_large": await upload.send(WHEEL_NAME, bytes(transfers.MOST_PART_BYTES + 1)),
        "digest_mismatch": await upload.send(WHEEL_NAME, LARGE[:half], 0, "0" * 64),
        "file_not_found": await upload.send("other.whl", LARGE[:half]),
        "invalid_request": await upload.send(WHEEL_NAME, LARGE[:half], -1),
    }
    assert {code: one.json()["code"] for code, one in answers.items()} == {code: code for code in answers}
    assert all(400 <= one.status_code < 500 for one in answers.values())
    assert (await upload.send(WHEEL_NAME, b"")).json()["code"] == "part_too_short"
    assert (await upload.show()).json()["parts"] == []
    await upload.send(WHEEL_NAME, LARGE[half:], half)
    missing = await upload.finalize()
    assert (missing.status_code, missing.json()["code"]) == (409, "transfer_incomplete")
    gap = {"file": WHEEL_NAME, "start": 0, "end": half, "msg": "missing"}
    assert missing.json()["errors"] == [gap]


async def test_a_repeated_part_replaces_the_earlier_one(begin):
    upload = await begin(BOTH)
    await upload.send(SDIST_NAME, SDIST)
    await upload.send(WHEEL_NAME, bytes(len(WHEEL)))
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "digest_mismatch")
    await upload.send(WHEEL_NAME, WHEEL)
    assert (await upload.finalize()).status_code == 201


async def test_parts_that_overlap_replace_each_other(hub, begin, storage):
    upload = await begin({WHEEL_NAME: LARGE})
    await upload.send(WHEEL_NAME, LARGE[: 100 * KIB])
    await upload.send(WHEEL_NAME, bytes(100 * KIB), 100 * KIB)
    await upload.send(WHEEL_NAME, LARGE[64 * KIB : 250 * KIB], 64 * KIB)
    assert [part["offset"] for part in (await upload.show()).json()["parts"]] == [64 * KIB]
    await upload.send(WHEEL_NAME, LARGE[: 64 * KIB])
    await upload.send(WHEEL_NAME, LARGE[250 * KIB :], 250 * KIB)
    assert (await upload.finalize()).status_code == 201
    assert len(list(storage.objects())) == 1


async def test_one_bad_file_rejects_the_whole_upload(hub, begin, storage):
    upload = await begin({WHEEL_NAME: WHEEL, SDIST_NAME: SDIST + b"\n"})
    await upload.send_all()
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "trailing_data")
    assert await names_on_page(hub) == set()
    assert (await upload.cancel()).status_code == 204
    assert list(storage.objects()) == [], "nothing of it is kept"


async def test_uploads_are_checked_before_any_byte_is_sent(hub, begin):
    await hub.upload(WHEEL, WHEEL_NAME)
    other = wheel_of({"extra.py": b""})
    cases = {
        "version_exists": await begin({WHEEL_NAME: other}),
        "name_mismatch": await begin({WHEEL_NAME: WHEEL}, name="other"),
        "bad_version": await begin({WHEEL_NAME: WHEEL}, version="soon"),
        "bad_filename": await begin({"x.whl": WHEEL}),
        "invalid_request": await begin({"pylock.toml": b"x"}),
        "owner_not_found": await begin(BOTH, owner="nobody"),
        "not_permitted": await begin(BOTH, owner="bob"),
        "visibility_differs": await begin(BOTH, private=True),
    }
    assert {code: one.opened.json()["code"] for code, one in cases.items()} == {code: code for code in cases}
    huge = announced(BOTH)
    huge["files"][0]["size"] = hub.settings.max_upload_bytes + 1
    answer = await hub.client.post(VERSIONS, json=huge, headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    with hub.database.write() as session:
        session.execute(update(Version).values(uploaded_at=now() - timedelta(days=15)))
    assert (await begin(BOTH)).opened.json()["code"] == "version_closed"
    assert (await begin({WHEEL_NAME: WHEEL})).opened.status_code == 201, "it brings nothing new"


async def test_a_version_published_in_between_is_not_changed(hub, begin):
    upload = await begin(BOTH)
    await upload.send_all()
    await hub.upload(wheel_of({"extra.py": b""}), WHEEL_NAME)
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (409, "version_exists")
    assert await names_on_page(hub) == {WHEEL_NAME}


async def test_upload_sessions_of_others_are_not_found(hub, begin):
    upload = await begin(BOTH)
    with hub.database.write(HUB) as session:
        bob = accounts.user_named(session, "bob")
        account_service.add_member(session, "alice", bob)
    upload.headers = hub.auth("bob")
    answers = [
        await upload.show(),
        await upload.send(WHEEL_NAME, WHEEL),
        await upload.finalize(),
        await upload.cancel(),
    ]
    assert {(one.status_code, one.json()["code"]) for one in answers} == {(404, "transfer_not_found")}
    unknown = await hub.get(f"{VERSIONS}/{'0' * 32}", headers=hub.auth("bob"))
    assert unknown.json()["detail"].replace("0" * 32, upload.id) == answers[0].json()["detail"]


async def test_an_upload_stops_when_the_right_is_lost(hub):
    with hub.database.write(HUB) as session:
        bob = accounts.user_named(session, "bob")
        account_service.add_member(session, "alice", bob)
    upload = await StagedUpload.begin(hub.client, hub.auth("bob"), BOTH)
    await upload.send_all()
    gone = await hub.client.delete("/api/v1/owners/alice/members/bob", headers=hub.auth())
    assert gone.status_code == 200, gone.text
    for answer in (await upload.send(WHEEL_NAME, WHEEL), await upload.finalize()):
        assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")
    assert await names_on_page(hub) == set()


async def test_an_upload_can_be_canceled(hub, begin, storage):
    upload = await begin(BOTH)
    await upload.send(WHEEL_NAME, WHEEL)
    assert (await upload.cancel()).status_code == 204
    assert list(storage.objects()) == []
    for answer in (await upload.send(SDIST_NAME, SDIST), await upload.finalize(), await upload.cancel()):
        assert (answer.status_code, answer.json()["code"]) == (404, "transfer_not_found")
    fresh = await begin(BOTH)
    assert (fresh.opened.status_code, fresh.id == upload.id) == (201, False)
    await fresh.send_all()
    assert (await fresh.finalize()).status_code == 201
    assert (await fresh.cancel()).status_code == 204
    assert await names_on_page(hub) == set(BOTH), "what it became stays"


async def test_a_second_upload_of_the_same_files_finishes_too(hub, begin, storage):
    first, second = await begin(BOTH), await begin(BOTH)
    assert second.id == first.id
    made = (await first.complete()).json()
    await second.send_all()
    finished = await second.finalize()
    assert (finished.status_code, finished.json()) == (200, made)
    assert (await second.show()).json()["finished"]
    assert list(fsck.find_mismatches(hub.database, storage)) == []


async def test_unfinished_uploads_expire(hub, begin, storage):
    kept = await begin(BOTH)
    await kept.send(WHEEL_NAME, WHEEL)
    left = await begin({WHEEL_NAME: LARGE})
    await left.send(WHEEL_NAME, LARGE)
    with hub.database.write() as session:
        changed = update(Transfer).where(Transfer.id == left.id)
        session.execute(changed.values(expires_at=now() - timedelta(seconds=1)))
    for answer in (await left.show(), await left.finalize()):
        assert (answer.status_code, answer.json()["code"]) == (404, "transfer_not_found")
    assert transfers.sweep(hub.database, storage) == 1
    assert transfers.sweep(hub.database, storage) == 0
    assert [one.sha256 for one in storage.objects()] == [hashlib.sha256(WHEEL).hexdigest()]
    assert list(fsck.find_mismatches(hub.database, storage)) == []
    await kept.send(SDIST_NAME, SDIST)
    assert (await kept.finalize()).status_code == 201


async def test_the_number_of_open_transfers_per_user_is_limited(hub, begin):
    most = hub.settings.max_open_transfers
    for number in range(most):
        assert (await begin({WHEEL_NAME: b"%d" % number})).opened.status_code == 201
    refused = await begin(BOTH)
    assert (refused.opened.status_code, refused.opened.json()["code"]) == (429, "too_many_transfers")
    assert (await begin({WHEEL_NAME: b"0"})).opened.status_code == 200
    assert (await begin(BOTH, user="bob", owner="bob")).opened.status_code == 201


async def test_one_of_simultaneous_publications_wins(hub, begin, storage):
    """With other bytes in each: what is shown is all of one of them."""
    versions = [
        {
            WHEEL_NAME: wheel_of({"number.py": b"%d" % number}),
            SDIST_NAME: source(**{"number.py": b"%d" % number}),
        }
        for number in range(5)
    ]
    uploads = [await begin(files) for files in versions]
    await asyncio.gather(*(one.send_all() for one in uploads))
    answers = await asyncio.gather(*(one.finalize() for one in uploads))
    statuses = [one.status_code for one in answers]
    assert sorted(statuses) == [201, 409, 409, 409, 409], [one.text for one in answers]
    winner = versions[statuses.index(201)]
    for filename, body in winner.items():
        assert (await hub.get(f"/alice/files/good-env/{filename}")).content == body
    assert {one.json()["code"] for one in answers if one.status_code == 409} == {"version_exists"}


async def test_the_same_upload_finalized_at_the_same_time_is_published_once(begin):
    upload = await begin(BOTH)
    await upload.send_all()
    answers = await asyncio.gather(*(upload.finalize() for _ in range(4)))
    assert sorted(one.status_code for one in answers) == [200, 200, 200, 201], [one.text for one in answers]


async def test_a_repeated_finish_gets_the_same_response(hub, begin, storage, monkeypatch):
    """The parts go while it reads them: the version is there."""
    upload = await begin({WHEEL_NAME: LARGE})
    await upload.send(WHEEL_NAME, LARGE[: 100 * KIB])
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    read = versions.copy_pieces
    answers = []

    def slow(*arguments):
        monkeypatch.setattr(versions, "copy_pieces", read)
        caller = authenticate(hub.database, hub.tokens["alice"])
        context = Context(caller, hub.database, storage, hub.settings, "http://hub.test")
        answers.append(transfers.finish(context, versions.VERSIONS, upload.id))
        return read(*arguments)

    monkeypatch.setattr(versions, "copy_pieces", slow)
    answer = await upload.finalize()
    assert answer.status_code == 200, answer.text
    assert answers[0][0].model_dump(mode="json") == answer.json()


async def test_a_lost_part_is_requested_again(hub, begin, storage):
    upload = await begin({WHEEL_NAME: LARGE})
    await upload.send(WHEEL_NAME, LARGE[: 100 * KIB])
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    with hub.database.read() as session:
        storage.delete(session.get(TransferPart, (upload.id, WHEEL_NAME, 100 * KIB)).object_sha256)
    assert [one.code for one in fsck.find_mismatches(hub.database, storage)] == ["object_missing"]
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (409, "transfer_incomplete")
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    assert (await upload.finalize()).status_code == 201


async def test_simultaneous_uploads_of_a_part_leave_one_file(hub, begin):
    upload = await begin({WHEEL_NAME: LARGE})
    pieces = [LARGE[: 100 * KIB], bytes(100 * KIB), LARGE[: 100 * KIB]]
    answers = await asyncio.gather(*(upload.send(WHEEL_NAME, piece) for piece in pieces))
    assert {one.status_code for one in answers} == {200}
    (part,) = (await upload.show()).json()["parts"]
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    won = part["sha256"] == hashlib.sha256(LARGE[: 100 * KIB]).hexdigest()
    finished = await upload.finalize()
    assert finished.status_code == (201 if won else 422), "the bytes are those that are listed"


async def test_the_legacy_route_and_a_session_agree(hub):
    answer = await published(hub.client, hub.auth(), BOTH)
    assert answer.status_code == 201, answer.text
    for filename, body in BOTH.items():
        again = await hub.upload(body, filename)
        assert (again.status_code, again.headers["x-wander-upload"]) == (200, "unchanged")
    assert (await hub.upload(wheel_of({"extra.py": b""}), WHEEL_NAME)).status_code == 409


async def test_a_lock_and_its_version_are_published_together(hub, begin, storage):
    own = {"url": f"http://hub.test/alice/files/good-env/{WHEEL_NAME}"}
    own["hashes"] = {"sha256": hashlib.sha256(WHEEL).hexdigest()}
    package = {"name": "good-env", "version": "1.0", "wheels": [own]}
    lock = tomlkit.dumps({"lock-version": "1.0", "created-by": "wander", "packages": [package]}).encode()
    upload = await begin(BOTH | {"pylock.toml": b"no lock"})
    await upload.send_all()
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_lock"), refused.text
    assert await names_on_page(hub) == set()
    resumed = await begin(BOTH | {"pylock.toml": lock})
    assert resumed.id == upload.id
    await resumed.send("pylock.toml", lock)
    answer = await resumed.finalize()
    assert answer.status_code == 201, answer.text
    assert answer.json()["lock"]["sha256"] == hashlib.sha256(lock).hexdigest()
    assert (await hub.get(f"{ENVIRONMENT}/versions/1.0/pylock.toml")).content == lock
    assert list(fsck.find_mismatches(hub.database, storage)) == []
    assert [(await begin({"pylock.toml": lock})).opened.status_code] == [422], "that has a route of its own"


async def test_a_lock_without_its_wheel_is_rejected(hub):
    answer = await published(hub.client, hub.auth(), {SDIST_NAME: SDIST, "pylock.toml": b"x"})
    assert (answer.status_code, answer.json()["code"]) == (422, "lock_mismatch")
