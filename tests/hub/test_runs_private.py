"""Private runs, withdrawn runs, signed runs: who sees what, and what stays."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from run_parcels import Parcel
from staged_uploads import posted
from wander.wire.postings import key_fingerprint, signed_text
from wander_hub.accounts import service as accounts
from wander_hub.fsck import check as fsck
from wander_hub.identity import HUB
from wander_hub.rights.tokens import add_token

RUN = "01JRUNPRIVATE000000000000A"


@pytest.fixture
async def pinned(hub):
    """Alice's published environment, and carol, whom nobody gave a role: the digest of the wheel."""
    with hub.database.write(HUB) as session:
        hub.tokens["carol"] = add_token(session, accounts.add_user(session, "carol"), "test")
    return await hub.publish()


async def post(hub, manifest, rollouts, user: str, *, private: bool = False, **stated):
    parcel = Parcel.of(manifest, rollouts)
    return await posted(hub.client, hub.auth(user), parcel, private=private, **stated)


async def test_a_private_run_is_visible_to_its_submitter_and_members(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, run_id=RUN, model="secret-model")
    made = await post(hub, manifest, rollouts, "bob", private=True)
    assert (made.status_code, made.json()["private"]) == (201, True)
    paths = [f"/api/v1/runs/{RUN}", f"/api/v1/runs/{RUN}/rollouts", f"/api/v1/runs/{RUN}/rollouts/0"]
    paths += [f"/api/v1/runs/{RUN}/verifications", f"/api/v1/runs/{RUN}/links"]
    paths += [f"/api/v1/runs/{RUN}/exports/{kind}" for kind in ("atif", "eval-results", "inspect")]
    for path in (*paths, f"/api/v1/runs/{RUN}/rollouts.jsonl", f"/runs/{RUN}", f"/runs/{RUN}/rollouts/0"):
        for user, status in ((None, 404), ("carol", 404), ("bob", 200), ("alice", 200), ("admin", 200)):
            answer = await hub.get(path, headers=hub.auth(user) if user else {})
            if "verifications" in path and status == 404:
                assert answer.status_code == 404 or answer.json()["data"] == [], (path, user)
            else:
                assert answer.status_code == status, (path, user)
    board = "/api/v1/environments/alice/reverse-text/leaderboard"
    for user in ("alice", "bob", "admin"):
        assert (await hub.get(board, headers=hub.auth(user))).json()["rows"] == [], (
            "not even for those who see it"
        )
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["runs"] == 0
    for user, count in (("carol", 0), ("bob", 1)):
        assert len((await hub.get("/api/v1/runs", headers=hub.auth(user))).json()["data"]) == count
    for path in ("/", "/alice/reverse-text", "/runs"):
        assert "secret-model" not in (await hub.get(path, headers={"Accept": "text/html"})).text


async def test_a_private_run_becomes_public_once(hub, pinned, run_of):
    await post(hub, *run_of(pinned, run_id=RUN), "bob", private=True)
    for user, status in (("alice", 403), ("carol", 404)):
        answer = await hub.client.post(f"/api/v1/runs/{RUN}/publish", headers=hub.auth(user))
        assert answer.status_code == status
    shown = await hub.client.post(f"/api/v1/runs/{RUN}/publish", headers=hub.auth("bob"))
    assert (shown.status_code, shown.json()["private"]) == (200, False)
    board = (await hub.get("/api/v1/environments/alice/reverse-text/leaderboard")).json()
    assert [one["run_id"].partition("~")[0] for one in board["rows"]] == [RUN]
    place = f"/api/v1/environments/alice/reverse-text/versions/0.1.0/boards/{board['board']}"
    arranged = await hub.client.put(place, json={"pinned": True}, headers=hub.auth("alice"))
    assert arranged.status_code == 200
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["best_model"] == "tiny"


async def test_a_withdrawn_run_leaves_a_tombstone_and_nothing_else(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, run_id=RUN)
    before = await hub.post_run(manifest, rollouts, user="bob", artifacts={"notes.txt": b"words"})
    assert before.status_code == 201
    path = f"/api/v1/runs/{RUN}"
    for user in ("alice", "carol"):
        assert (
            await hub.client.delete(path, params={"reason": "no"}, headers=hub.auth(user))
        ).status_code == 403
    assert (await hub.client.delete(path, headers=hub.auth("bob"))).status_code == 422, "a reason is owed"
    gone = await hub.client.delete(path, params={"reason": "wrong prompt"}, headers=hub.auth("bob"))
    assert gone.status_code == 200, gone.text
    again = await hub.client.delete(path, params={"reason": "other"}, headers=hub.auth("bob"))
    told = (await hub.get(path)).json()
    assert told["withdrawn"]["reason"] == again.json()["withdrawn"]["reason"] == "wrong prompt"
    assert told["withdrawn"]["by"] == "bob"
    kept = ("sha256", "rollouts_sha256", "summary")
    assert told["manifest"] == manifest
    assert [told[name] for name in kept] == [before.json()[name] for name in kept]
    assert told["artifacts"] == []
    parts = ("/rollouts", "/rollouts/0", "/rollouts.jsonl", "/artifacts/notes.txt", "/exports/inspect")
    for part in parts:
        answer = await hub.get(path + part)
        assert (answer.status_code, answer.json()["code"]) == (410, "run_withdrawn"), part
    page = await hub.get(f"/runs/{RUN}", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "wrong prompt" in page.text
    board = (await hub.get("/api/v1/environments/alice/reverse-text/leaderboard")).json()
    assert (board["rows"], board["hidden_incomplete"]) == ([], 0)
    assert (await hub.get("/api/v1/runs")).json()["data"] == []
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["runs"] == 0
    assert list(fsck.find_mismatches(hub.database, hub.client._transport.app.state.storage)) == []
    refused = await hub.post_run(manifest, rollouts, user="bob", artifacts={"notes.txt": b"words"})
    assert (refused.status_code, refused.json()["code"]) == (409, "run_withdrawn")


async def test_objects_that_another_run_has_too_stay(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, run_id=RUN)
    await hub.post_run(manifest, rollouts)
    other = manifest | {"run_id": "01JRUNOTHER0000000000000A"}
    await hub.post_run(other, rollouts)
    await hub.client.delete(f"/api/v1/runs/{RUN}", params={"reason": "twice"}, headers=hub.auth())
    assert (await hub.get(f"/api/v1/runs/{other['run_id']}/rollouts/3")).status_code == 200


class Signer:
    def __init__(self) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.public_key = base64.b64encode(self.private.public_key().public_bytes_raw()).decode()
        self.fingerprint = key_fingerprint(self.public_key)

    def sign(self, sha256: str) -> dict[str, str]:
        signature = base64.b64encode(self.private.sign(signed_text(sha256))).decode()
        return {"fingerprint": self.fingerprint, "signature": signature}


async def register(hub, signer: Signer, user: str):
    body = {"name": "laptop", "public_key": signer.public_key}
    return await hub.client.post("/api/v1/keys", json=body, headers=hub.auth(user))


async def test_a_signature_is_checked_shown_and_outlives_its_key(hub, pinned, run_of):
    signer, manifest = Signer(), run_of(pinned, run_id=RUN)[0]
    rollouts = run_of(pinned)[1]
    sha256 = Parcel.of(manifest, rollouts).sha256
    unknown = await post(hub, manifest, rollouts, "bob", signature=signer.sign(sha256))
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_key")
    assert (await register(hub, signer, "bob")).status_code == 201
    assert (await register(hub, signer, "bob")).status_code == 200
    assert (await register(hub, signer, "alice")).json()["code"] == "key_taken"
    answer = await post(hub, manifest, rollouts, "bob", signature=signer.sign("0" * 64))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_signature")
    answer = await post(hub, manifest, rollouts, "bob", signature=signer.sign(sha256))
    assert answer.status_code == 201, answer.text
    shown = answer.json()["signature"]
    assert (shown["signed_by"], shown["public_key"]) == ("bob", signer.public_key)
    signer.private.public_key().verify(base64.b64decode(shown["signature"]), signed_text(sha256))
    page = (await hub.get(f"/runs/{RUN}", headers={"Accept": "text/html"})).text
    assert signer.fingerprint[:16] in page
    revoked = await hub.client.delete(f"/api/v1/keys/{signer.fingerprint[:12]}", headers=hub.auth("bob"))
    assert revoked.json()["revoked_at"] is not None
    assert (await hub.get(f"/api/v1/runs/{RUN}")).json()["signature"]["key_revoked_at"] is not None
    page = (await hub.get(f"/runs/{RUN}", headers={"Accept": "text/html"})).text
    assert "revoked" in page
    listed = (await hub.get("/api/v1/keys", headers=hub.auth("bob"))).json()["data"]
    assert [one["fingerprint"] for one in listed] == [signer.fingerprint]
    assert (await hub.get("/api/v1/keys", headers=hub.auth("alice"))).json()["data"] == []
    other = run_of(pinned, run_id="01JRUNOTHER0000000000000A")
    late = await post(hub, *other, "bob", signature=signer.sign(Parcel.of(*other).sha256))
    assert late.json()["code"] == "unknown_key", "a revoked key signs nothing"


@pytest.mark.parametrize("public_key", ["A" * 44, base64.b64encode(bytes(33)).decode(), "é" * 44])
async def test_invalid_keys_are_rejected(hub, public_key):
    body = {"name": "x", "public_key": public_key}
    answer = await hub.client.post("/api/v1/keys", json=body, headers=hub.auth())
    assert answer.status_code == 422


async def test_nobody_raises_the_level_of_a_run(hub, pinned, run_of):
    """There is no route that sets a level, and no field of a manifest that a level is taken from."""
    manifest, rollouts = run_of(None, run_id=RUN)
    assert (await hub.post_run(manifest | {"level": "replayed"}, rollouts)).status_code == 422
    answer = await post(hub, manifest, rollouts, "alice", level="replayed")
    assert answer.status_code == 422
    place = f"/api/v1/runs/{RUN}"
    await hub.post_run(manifest, rollouts)
    for method in ("PUT", "PATCH", "POST"):
        answer = await hub.client.request(
            method, place, json={"level": "replayed"}, headers=hub.auth("admin")
        )
        assert answer.status_code == 405
    assert (await hub.get(place)).json()["level"] == "claimed"


async def stated_ids(hub, run_of, make_wheel, pinned) -> list[str]:
    """Post what carol does not see: a private run, and one on a private environment; return their ids."""
    spec = make_wheel(name="hidden-env")
    body = spec.build()
    made = await hub.upload(body, spec.wheel_name, fields={"wander_visibility": "private"})
    assert made.status_code == 200, made.text
    wheel = hashlib.sha256(body).hexdigest()
    on_private = run_of(wheel, name="hidden-env", run_id="01JRUNPRIVATE000000000000B")
    assert (await post(hub, *run_of(pinned, run_id=RUN), "alice", private=True)).status_code == 201
    assert (await post(hub, *on_private, "alice")).status_code == 201
    return [RUN, "01JRUNPRIVATE000000000000B"]


async def test_posting_the_id_of_a_hidden_run_reveals_nothing(hub, pinned, run_of, make_wheel):
    hidden, free = await stated_ids(hub, run_of, make_wheel, pinned), "01JRUNPRIVATE000000000000C"
    told = []
    for number, run_id in enumerate((*hidden, free)):
        manifest, rollouts = run_of(pinned, run_id=run_id, model=f"model-{number}")
        answers = [
            await post(hub, manifest, rollouts, "carol"),
            await hub.post_run(manifest, rollouts, user="carol"),
            await hub.post_run(*run_of(pinned, run_id=run_id, model="other"), user="carol"),
            await post(hub, *run_of(pinned, run_id=run_id, model="third"), "carol", private=True),
            await hub.get(f"/api/v1/runs/{run_id}"),
        ]
        codes = [(one.status_code, one.json().get("code")) for one in answers]
        told.append((codes, answers[0].json()["run_id"] == run_id, answers[4].json()["posted_by"]))
    assert told[0] == told[1] == told[2]
    assert [status for status, _ in told[2][0]] == [201, 200, 409, 409, 200]


async def test_the_submitter_of_a_hidden_run_can_find_it(hub, pinned, run_of, make_wheel):
    for run_id in await stated_ids(hub, run_of, make_wheel, pinned):
        found = await hub.get(f"/api/v1/runs/{run_id}", headers=hub.auth())
        kept = found.json()["run_id"]
        assert (found.status_code, kept.partition("~")[0]) == (200, run_id)
        assert (await hub.get(f"/runs/{kept}", headers=hub.auth("admin"))).status_code == 200
        assert (await hub.get(f"/api/v1/runs/{run_id}", headers=hub.auth("carol"))).status_code == 404
        stated = run_of(pinned, run_id=kept)
        assert (await hub.post_run(*stated, user="carol")).json()["code"] == "bad_manifest"
    manifest, rollouts = run_of(pinned, run_id=RUN)
    for private in (True, False):
        again = await post(hub, manifest, rollouts, "alice", private=private)
        assert again.status_code == 200
    other = run_of(pinned, run_id=RUN, model="other")
    for private in (True, False):
        refused = await post(hub, *other, "alice", private=private)
        assert (refused.status_code, refused.json()["code"]) == (409, "run_exists")


async def test_a_formerly_public_id_gives_the_same_response(hub, pinned, run_of, make_wheel):
    spec = make_wheel(name="open-env")
    body = spec.build()
    assert (await hub.upload(body, spec.wheel_name)).status_code == 200
    other = run_of(hashlib.sha256(body).hexdigest(), name="open-env", run_id=RUN)
    assert (await post(hub, *run_of(pinned, run_id=RUN), "alice")).status_code == 201
    answers = []
    for private in (False, True):
        visibility = "/api/v1/environments/alice/reverse-text/visibility"
        changed = await hub.client.put(visibility, json={"private": private}, headers=hub.auth("alice"))
        assert changed.status_code == 200, changed.text
        answer = await post(hub, *other, "carol")
        told = {name: value for name, value in answer.json().items() if name != "request_id"}
        answers.append((answer.status_code, told))
    assert answers[0] == answers[1]
    assert (answers[0][0], answers[0][1]["code"]) == (409, "run_exists")
    assert (await hub.get(f"/api/v1/runs/{RUN}", headers=hub.auth("carol"))).status_code == 404
