"""Staged uploads: announced, sent in chunks, and published all together or not at all."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from datetime import timedelta

import pytest
import tomlkit
from archive_forge import MODULE, PROJECT, SDIST_NAME, WHEEL_NAME, metadata, sdist_of, wheel_of
from sqlalchemy import update
from staged_uploads import PATH, StagedUpload, announced, published
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service as account_service
from wander_hub.database import now
from wander_hub.environments.models import Version
from wander_hub.fsck import check as fsck
from wander_hub.http.boundary import Context
from wander_hub.identity import HUB
from wander_hub.rights.tokens import authenticate
from wander_hub.storage import Storage
from wander_hub.upload import finalize
from wander_hub.upload.models import UploadSession
from wander_hub.upload.sweep import sweep

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
    assert (upload.opened.status_code, upload.opened.json()["status"]) == (201, "open")
    assert upload.opened.headers["location"] == f"http://hub.test{PATH}/{upload.id}"
    await upload.send_all()
    assert await names_on_page(hub) == set()
    assert (await hub.get(ENVIRONMENT, headers=hub.auth())).status_code == 404
    answer = await upload.finalize()
    assert (answer.status_code, answer.headers["x-wander-upload"]) == (200, "created"), answer.text
    assert await names_on_page(hub) == set(BOTH)
    assert answer.json()["source"]["compared"] == [WHEEL_NAME]
    for filename, body in BOTH.items():
        assert (await hub.get(f"/alice/files/good-env/{filename}")).content == body
    assert list(storage.list_staged()) == []
    again = await upload.finalize()
    assert (again.status_code, again.headers["x-wander-upload"]) == (200, "unchanged")
    assert again.json() == answer.json()
    assert (await upload.show()).json()["status"] == "published"
    assert list(fsck.check(hub.database, storage)) == []


async def test_what_the_version_has_is_not_sent_again(hub, begin):
    await hub.upload(WHEEL, WHEEL_NAME)
    upload = await begin(BOTH)
    shown = {one["filename"]: one for one in upload.opened.json()["files"]}
    assert (shown[WHEEL_NAME]["published"], shown[WHEEL_NAME]["offset"]) == (True, len(WHEEL))
    assert (shown[SDIST_NAME]["published"], shown[SDIST_NAME]["offset"]) == (False, 0)
    await upload.send_all()
    assert (await upload.finalize()).json()["source"]["compared"] == [WHEEL_NAME]
    second = await begin(BOTH)
    assert all(one["published"] for one in second.opened.json()["files"])
    answer = await second.finalize()
    assert (answer.status_code, answer.headers["x-wander-upload"]) == (200, "unchanged")


async def test_chunks_follow_each_other_and_a_repeated_one_is_harmless(hub, begin):
    upload = await begin({WHEEL_NAME: LARGE})
    step = 100 * KIB
    address = f"{PATH}/{upload.id}/files/{WHEEL_NAME}"
    for offset in range(0, len(LARGE), step):
        piece = LARGE[offset : offset + step]
        ahead = await upload.send(WHEEL_NAME, piece, offset + step)
        assert (ahead.status_code, ahead.json()["code"]) == (409, "offset_mismatch")
        assert ahead.headers["upload-offset"] == str(offset)
        digest = base64.b64encode(hashlib.sha256(piece).digest()).decode()
        for _ in range(2):
            sent = await upload.send(WHEEL_NAME, piece, offset, {"Content-Digest": f"sha-256=:{digest}:"})
            assert (sent.status_code, sent.json()["offset"]) == (200, offset + len(piece)), sent.text
        head = await hub.client.head(address, headers=hub.auth())
        assert (head.status_code, head.headers["upload-offset"]) == (200, str(offset + len(piece)))
    other = await upload.send(WHEEL_NAME, bytes(step), 0)
    assert other.json()["code"] == "offset_mismatch", "other bytes for a place that is taken"
    assert (await upload.finalize()).status_code == 200
    assert (await hub.get(f"/alice/files/good-env/{WHEEL_NAME}")).content == LARGE


async def test_an_interrupted_upload_goes_on_where_it_was(begin):
    first = await begin({WHEEL_NAME: LARGE})
    await first.send(WHEEL_NAME, LARGE[: 200 * KIB])
    second = await begin({WHEEL_NAME: LARGE})
    assert (second.opened.status_code, second.id) == (200, first.id)
    assert second.opened.json()["files"][0]["offset"] == 200 * KIB
    await second.send_all()
    assert (await second.finalize()).status_code == 200


async def test_chunks_that_do_not_fit_are_refused(begin, settings):
    upload = await begin({WHEEL_NAME: LARGE})
    half = len(LARGE) // 2
    answers = {
        "chunk_too_short": await upload.send(WHEEL_NAME, LARGE[: 10 * KIB]),
        "chunk_too_long": await upload.send(WHEEL_NAME, LARGE + b"x"),
        "chunk_too_large": await upload.send(WHEEL_NAME, bytes(settings.upload_chunk_bytes + 1)),
        "digest_mismatch": await upload.send(
            WHEEL_NAME,
            LARGE[:half],
            0,
            {"Content-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"},
        ),
        "file_not_found": await upload.send("other.whl", LARGE[:half]),
        "invalid_request": await upload.send(WHEEL_NAME, LARGE[:half], 0, {"Upload-Offset": "soon"}),
    }
    assert {code: one.json()["code"] for code, one in answers.items()} == {code: code for code in answers}
    assert all(400 <= one.status_code < 500 for one in answers.values())
    empty = await upload.send(WHEEL_NAME, b"")
    assert empty.json()["code"] == "chunk_too_short"
    assert (await upload.show()).json()["files"][0]["offset"] == 0
    missing = await upload.finalize()
    assert (missing.status_code, missing.json()["code"]) == (409, "upload_incomplete")
    assert WHEEL_NAME in missing.json()["detail"]


async def test_bytes_that_are_not_the_announced_ones_are_sent_anew(begin):
    upload = await begin(BOTH)
    await upload.send(SDIST_NAME, SDIST)
    await upload.send(WHEEL_NAME, bytes(len(WHEEL)))
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "digest_mismatch")
    offsets = {one["filename"]: one["offset"] for one in (await upload.show()).json()["files"]}
    assert offsets == {WHEEL_NAME: 0, SDIST_NAME: len(SDIST)}
    await upload.send(WHEEL_NAME, WHEEL)
    assert (await upload.finalize()).status_code == 200


async def test_one_bad_file_keeps_all_of_them_out(hub, begin, storage):
    upload = await begin({WHEEL_NAME: WHEEL, SDIST_NAME: SDIST + b"\n"})
    await upload.send_all()
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "trailing_data")
    assert await names_on_page(hub) == set()
    assert [one for one in storage.objects() if one.sha256] == [], "nothing of it is kept"
    assert (await upload.cancel()).status_code == 204
    assert list(storage.list_staged()) == []


async def test_what_can_be_said_before_a_byte_is_sent_is_said(hub, begin):
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
    answer = await hub.client.post(PATH, json=huge, headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    with hub.database.write() as session:
        session.execute(update(Version).values(uploaded_at=now() - timedelta(days=15)))
    assert (await begin(BOTH)).opened.json()["code"] == "version_closed"
    assert (await begin({WHEEL_NAME: WHEEL})).opened.status_code == 201, "it brings nothing new"


async def test_a_version_that_came_in_between_is_not_changed(hub, begin):
    upload = await begin(BOTH)
    await upload.send_all()
    await hub.upload(wheel_of({"extra.py": b""}), WHEEL_NAME)
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (409, "version_exists")
    assert await names_on_page(hub) == {WHEEL_NAME}


async def test_the_sessions_of_others_do_not_exist(hub, begin):
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
    assert {(one.status_code, one.json()["code"]) for one in answers} == {(404, "upload_not_found")}
    unknown = await hub.get(f"{PATH}/{'0' * 32}", headers=hub.auth("bob"))
    assert unknown.json()["detail"].replace("0" * 32, upload.id) == answers[0].json()["detail"]


async def test_who_lost_the_right_cannot_go_on(hub):
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


async def test_an_upload_is_called_off(hub, begin, storage):
    upload = await begin(BOTH)
    await upload.send(WHEEL_NAME, WHEEL)
    for _ in range(2):
        assert (await upload.cancel()).status_code == 204
    assert list(storage.list_staged()) == []
    for answer in (await upload.send(SDIST_NAME, SDIST), await upload.finalize()):
        assert (answer.status_code, answer.json()["code"]) == (409, "upload_ended")
    assert (await upload.show()).json()["status"] == "canceled"
    fresh = await begin(BOTH)
    assert (fresh.opened.status_code, fresh.id == upload.id) == (201, False)
    await fresh.send_all()
    assert (await fresh.finalize()).status_code == 200
    done = await fresh.cancel()
    assert (done.status_code, done.json()["code"]) == (409, "upload_ended")


async def test_a_second_transfer_of_the_same_files_goes_on_when_the_first_has_published(hub, begin, storage):
    first, second = await begin(BOTH), await begin(BOTH)
    assert second.id == first.id
    made = (await first.complete()).json()
    await second.send_all()
    finished = await second.finalize()
    assert (finished.json(), finished.headers["X-Wander-Upload"]) == (made, "unchanged")
    assert (await second.show()).json()["status"] == "published"
    assert list(storage.list_staged()) == []


async def test_what_nobody_finishes_is_swept(hub, begin, storage):
    kept = await begin(BOTH)
    await kept.send(WHEEL_NAME, WHEEL)
    left = await begin({WHEEL_NAME: LARGE})
    await left.send(WHEEL_NAME, LARGE)
    storage.stage(f"{'0' * 32}/1/{0:015d}-{'0' * 64}", b"a chunk whose session was never written")
    assert list(fsck.check(hub.database, storage)) == [], "these may be under way"
    with hub.database.write() as session:
        changed = update(UploadSession).where(UploadSession.id == left.id)
        session.execute(changed.values(expires_at=now() - timedelta(seconds=1)))
    for answer in (await left.show(), await left.finalize()):
        assert (answer.status_code, answer.json()["code"]) == (404, "upload_not_found")
    assert sweep(hub.database, storage) == (1, 2)
    assert sweep(hub.database, storage) == (0, 0)
    assert {one.path.partition("/")[0] for one in storage.list_staged()} == {kept.id}
    await kept.send(SDIST_NAME, SDIST)
    assert (await kept.finalize()).status_code == 200


async def test_fsck_finds_leftovers_and_lost_chunks(hub, begin, storage, monkeypatch):
    upload = await begin({WHEEL_NAME: LARGE})
    await upload.send(WHEEL_NAME, LARGE[: 100 * KIB])
    await upload.send(WHEEL_NAME, LARGE[100 * KIB : 200 * KIB], 100 * KIB)
    storage.stage(f"{'0' * 32}/1/{0:015d}-{'0' * 64}", b"left over")
    monkeypatch.setattr(fsck, "GRACE", timedelta(0))
    second = sorted(one.path for one in storage.list_staged(f"{upload.id}/"))[1]
    storage.unstage(second)
    for repair in (False, True):
        found = list(fsck.check(hub.database, storage, repair=repair))
        assert [(one.code, one.repaired) for one in found] == [
            ("chunk_missing", repair),
            ("chunk_extra", repair),
        ]
    assert list(fsck.check(hub.database, storage)) == []
    assert (await upload.show()).json()["files"][0]["offset"] == 100 * KIB, "goes on at what is there"
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    assert (await upload.finalize()).status_code == 200


async def test_a_user_has_so_many_uploads_open(hub, begin):
    most = hub.settings.max_open_uploads
    for number in range(most):
        assert (await begin({WHEEL_NAME: b"%d" % number})).opened.status_code == 201
    refused = await begin(BOTH)
    assert (refused.opened.status_code, refused.opened.json()["code"]) == (429, "too_many_uploads")
    assert (await begin({WHEEL_NAME: b"0"})).opened.status_code == 200
    assert (await begin(BOTH, user="bob", owner="bob")).opened.status_code == 201


async def test_of_publications_at_the_same_time_one_wins(hub, begin, storage):
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
    assert sorted(statuses) == [200, 409, 409, 409, 409], [one.text for one in answers]
    winner = versions[statuses.index(200)]
    for filename, body in winner.items():
        assert (await hub.get(f"/alice/files/good-env/{filename}")).content == body
    assert {one.json()["code"] for one in answers if one.status_code == 409} == {"version_exists"}


async def test_the_same_upload_finalized_at_the_same_time_is_published_once(begin):
    upload = await begin(BOTH)
    await upload.send_all()
    answers = await asyncio.gather(*(upload.finalize() for _ in range(4)))
    assert {one.status_code for one in answers} == {200}, [one.text for one in answers]
    assert sorted(one.headers["x-wander-upload"] for one in answers) == ["created", *["unchanged"] * 3]


async def test_a_finalize_that_comes_late_is_answered_like_the_first(hub, begin, storage, monkeypatch):
    """The chunks go while it reads them: the version is there."""
    upload = await begin(BOTH)
    await upload.send_all()
    read = finalize.copy_pieces
    answers = []

    def slow(*arguments):
        monkeypatch.setattr(finalize, "copy_pieces", read)
        caller = authenticate(hub.database, hub.tokens["alice"])
        context = Context(caller, hub.database, storage, hub.settings, "http://hub.test")
        answers.append(finalize.finalize(context, upload.id))
        return read(*arguments)

    monkeypatch.setattr(finalize, "copy_pieces", slow)
    answer = await upload.finalize()
    assert (answer.status_code, answer.headers["x-wander-upload"]) == (200, "unchanged"), answer.text
    assert answers[0][0].model_dump(mode="json") == answer.json()


async def test_a_lost_chunk_is_asked_for_again(begin, storage):
    upload = await begin({WHEEL_NAME: LARGE})
    await upload.send(WHEEL_NAME, LARGE[: 100 * KIB])
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    storage.unstage(sorted(one.path for one in storage.list_staged())[1])
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (409, "upload_incomplete")
    await upload.send(WHEEL_NAME, LARGE[100 * KIB :], 100 * KIB)
    assert (await upload.finalize()).status_code == 200


async def test_two_chunks_for_one_place_leave_one_file(hub, begin):
    upload = await begin({WHEEL_NAME: LARGE})
    pieces = [LARGE[: 100 * KIB], bytes(100 * KIB), LARGE[: 100 * KIB]]
    answers = await asyncio.gather(*(upload.send(WHEEL_NAME, piece) for piece in pieces))
    assert {one.status_code for one in answers} <= {200, 409}
    offset = (await upload.show()).json()["files"][0]["offset"]
    assert offset == 100 * KIB
    await upload.send(WHEEL_NAME, LARGE[offset:], offset)
    finished = await upload.finalize()
    won = answers[1].status_code == 200
    assert finished.status_code == (422 if won else 200), "the bytes are those that were counted"


async def test_the_legacy_route_and_a_session_agree(hub):
    answer = await published(hub.client, hub.auth(), BOTH)
    assert answer.status_code == 200, answer.text
    for filename, body in BOTH.items():
        again = await hub.upload(body, filename)
        assert (again.status_code, again.headers["x-wander-upload"]) == (200, "unchanged")
    assert (await hub.upload(wheel_of({"extra.py": b""}), WHEEL_NAME)).status_code == 409


async def test_a_lock_is_published_with_its_version_or_nothing_is(hub, begin, storage):
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
    offsets = {one["filename"]: one["offset"] for one in resumed.opened.json()["files"]}
    assert offsets == {WHEEL_NAME: len(WHEEL), SDIST_NAME: len(SDIST), "pylock.toml": 0}
    await resumed.send_all()
    answer = await resumed.finalize()
    assert answer.status_code == 200, answer.text
    assert answer.json()["lock"]["sha256"] == hashlib.sha256(lock).hexdigest()
    assert (await hub.get(f"{ENVIRONMENT}/versions/1.0/pylock.toml")).content == lock
    assert list(fsck.check(hub.database, storage)) == []
    assert [(await begin({"pylock.toml": lock})).opened.status_code] == [422], "that has a route of its own"


async def test_a_lock_without_its_wheel_is_refused(hub):
    answer = await published(hub.client, hub.auth(), {SDIST_NAME: SDIST, "pylock.toml": b"x"})
    assert (answer.status_code, answer.json()["code"]) == (422, "lock_mismatch")
