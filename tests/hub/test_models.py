"""Models on the hub: pushed in chunks, immutable, seen by whom they are for, linked by digest to runs."""

from __future__ import annotations

import asyncio
import json
import re

from small_models import checkpoint, digests, tokenizer, weights
from staged_uploads import MODELS, StagedUpload, pushed
from wander.wire.models import revision_of, weights_of
from wander_hub.fsck.check import find_mismatches
from wander_hub.http.boundary import Context
from wander_hub.rights.tokens import authenticate
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers
from wander_hub.upload import revisions
from wander_hub.web import routes

MODEL = "/api/v1/models/alice/ttt"
FILES = checkpoint()
REVISION = revision_of(digests(FILES))


async def push(hub, files=FILES, user="alice", **stated):
    return await pushed(hub.client, hub.auth(user), files, **stated)


def kept(hub) -> list[str]:
    """The objects that are there, of whatever is not still on its way."""
    return [one.sha256 for one in hub.client._transport.app.state.storage.objects() if one.sha256]


async def test_a_pushed_model_is_described_by_its_files(hub):
    answer = await push(hub)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["revision"], made["weights_sha256"]) == (REVISION, weights_of(digests(FILES)))
    assert (made["architecture"], made["parameters"], made["pushed_by"]) == ("LlamaForCausalLM", 32, "alice")
    assert (await hub.get(f"{MODEL}/revisions/latest")).json() == made
    assert (await hub.get(f"{MODEL}/revisions/{REVISION[:8]}")).json() == made
    for file in made["files"]:
        got = await hub.get(file["url"])
        assert got.content == FILES[file["filename"]]
    part = await hub.get(made["files"][-1]["url"], headers={"Range": "bytes=3-"})
    assert (part.status_code, part.content) == (206, FILES[made["files"][-1]["filename"]][3:])
    page = (await hub.get("/models/alice/ttt", headers={"Accept": "text/html"})).text
    assert "Yank" not in page
    own = (await hub.get("/models/alice/ttt", headers={"Accept": "text/html"} | hub.auth())).text
    assert all(f'action="/account/forms/{one}"' in own for one in ("yank-revision", "model-visibility"))
    assert "<em>plays</em>" in page
    assert "license: mit" not in page
    missing = await hub.get("/models/alice/ttt/beefbeef", headers={"Accept": "text/html"})
    assert missing.status_code == 404
    assert "/models/alice/ttt" in (await hub.get("/alice", headers={"Accept": "text/html"})).text


async def test_the_same_files_are_the_same_revision_and_others_a_new_one(hub):
    await push(hub)
    again = await StagedUpload.begin_model(hub.client, hub.auth(), FILES)
    assert all(one["there"] for one in again.opened.json()["files"])
    assert (await again.finalize()).status_code == 200
    later = checkpoint("more")
    upload = await StagedUpload.begin_model(hub.client, hub.auth(), later)
    assert [one["filename"] for one in upload.opened.json()["files"] if not one["there"]] == [
        "model.safetensors"
    ]
    await upload.send_all()
    assert (await upload.finalize()).status_code == 201
    model = (await hub.get(MODEL)).json()
    assert [one["revision"] for one in model["revisions"]] == [revision_of(digests(later)), REVISION]
    assert model["latest"] == revision_of(digests(later))


async def test_simultaneous_equal_pushes_are_one_revision(hub):
    member = "/api/v1/owners/alice/members/bob"
    assert (
        await hub.client.put(member, headers=hub.auth("admin"), json={"role": "owner"})
    ).status_code == 200
    answers = await asyncio.gather(*(push(hub, user=user) for user in ("alice", "bob", "alice", "bob")))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert [one["revision"] for one in (await hub.get(MODEL)).json()["revisions"]] == [REVISION]


async def test_a_push_that_another_overtakes_gives_the_same_revision(hub, monkeypatch):
    read, overtaken = revisions._read, []

    def overtake(storage, wanted):
        monkeypatch.setattr(revisions, "_read", read)
        caller = authenticate(hub.database, hub.tokens["alice"])
        context = Context(caller, hub.database, storage, hub.settings, "http://hub.test")
        overtaken.append(transfers.finish(context, revisions.MODELS, upload.id))
        return read(storage, wanted)

    upload = await StagedUpload.begin_model(hub.client, hub.auth(), FILES)
    monkeypatch.setattr(revisions, "_read", overtake)
    answer = await upload.complete()
    assert (answer.status_code, answer.json()["revision"]) == (200, REVISION)
    assert (overtaken[0][0].revision, overtaken[0][1]) == (REVISION, True)


async def test_files_that_are_not_a_checkpoint_are_rejected(hub):
    for files, told in (
        (checkpoint(model_safetensors=weights()[:-1]), "is truncated"),
        (checkpoint(tokenizer_json=tokenizer(9)), "weights and tokenizer do not fit"),
        (checkpoint(modeling_py=b"import os"), "cannot contain files such as"),
    ):
        upload = await StagedUpload.begin_model(hub.client, hub.auth(), files)
        answer = await upload.complete()
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_model")
        assert told in answer.json()["detail"]
        assert (await hub.get(MODEL)).status_code == 404
        assert upload.opened.is_error or (await upload.cancel()).status_code == 204
        assert kept(hub) == []


async def test_files_that_differ_from_the_announcement_are_rejected(hub):
    upload = await StagedUpload.begin_model(hub.client, hub.auth(), FILES)
    await upload.send_all()
    await upload.send("model.safetensors", weights("other"))
    refused = await upload.finalize()
    assert (refused.status_code, refused.json()["code"]) == (422, "digest_mismatch")
    await upload.send("model.safetensors", FILES["model.safetensors"])
    assert (await upload.finalize()).status_code == 201


async def test_names_and_rights(hub):
    for name in ("ttt!", "tíc", "settings", "-"):
        assert (await push(hub, name=name)).json()["code"] == "bad_name"
    assert (await push(hub, name="Tic.Tac_Toe")).json()["name"] == "tic-tac-toe"
    assert (await push(hub, user="bob")).status_code == 403
    assert (await push(hub, owner="nobody")).status_code == 404
    assert (await hub.client.post(MODELS, json={})).status_code == 401
    await push(hub, private=True)
    for path in (MODEL, f"{MODEL}/revisions/latest", f"{MODEL}/revisions/latest/files/config.json"):
        for headers in ({}, hub.auth("bob")):
            assert (await hub.get(path, headers=headers)).status_code == 404
        assert (await hub.get(path, headers=hub.auth())).status_code == 200
    assert "ttt" not in (await hub.get("/alice", headers={"Accept": "text/html"})).text.replace(
        "tic-tac-toe", ""
    )
    differs = await push(hub, checkpoint("more"), private=False)
    assert (differs.status_code, differs.json()["code"]) == (409, "visibility_differs")
    told = {"json": {"private": False}}
    assert (await hub.client.put(f"{MODEL}/visibility", headers=hub.auth("bob"), **told)).status_code == 404
    assert (await hub.client.put(f"{MODEL}/visibility", headers=hub.auth(), **told)).status_code == 200
    assert (await hub.get(MODEL)).json()["private"] is False
    assert (await hub.client.put(f"{MODEL}/visibility", headers=hub.auth("bob"), **told)).status_code == 403
    assert (await hub.client.delete(MODEL, headers=hub.auth("bob"))).status_code == 403


async def test_yanked_and_deleted_revisions(hub, settings):
    later = checkpoint("more")
    newest = revision_of(digests(later))
    await push(hub)
    await push(hub, later)
    path = f"{MODEL}/revisions/{newest}"
    yanked = await hub.client.put(f"{path}/yank", headers=hub.auth(), json={"reason": "it\ncheats"})
    assert (yanked.json()["yanked"], yanked.json()["yanked_reason"]) == (True, "it cheats")
    assert (await hub.get(MODEL)).json()["latest"] == REVISION
    assert (await hub.get(path)).status_code == 200
    assert (
        "it cheats"
        in (await hub.get(f"/models/alice/ttt/{newest[:12]}", headers={"Accept": "text/html"})).text
    )
    await hub.client.delete(f"{path}/yank", headers=hub.auth())
    assert (await hub.get(MODEL)).json()["latest"] == newest
    assert (await hub.client.delete(path, headers=hub.auth())).status_code == 204
    assert (await hub.get(f"{path}/files/config.json")).status_code == 410
    storage = Storage.open(settings.storage_url, settings.data / "objects")
    assert storage.exists(digests(FILES)["config.json"])
    assert not storage.exists(digests(later)["model.safetensors"])
    assert (await push(hub, later)).json()["code"] == "revision_deleted"
    assert (await push(hub, checkpoint("third"))).status_code == 201
    assert (await hub.client.delete(MODEL, headers=hub.auth())).status_code == 204
    assert (await hub.get(MODEL)).status_code == 410
    assert (await push(hub)).json()["code"] == "name_deleted"
    assert not storage.exists(digests(FILES)["config.json"])
    assert list(find_mismatches(hub.database, storage)) == []


async def test_fsck_misses_and_reads_the_files_of_models(hub, settings, folder_alone):
    await push(hub)
    storage = Storage.open(settings.storage_url, settings.data / "objects")
    place = storage.local_path(digests(FILES)["model.safetensors"])
    place.write_bytes(weights("other"))
    storage.delete(digests(FILES)["config.json"])
    found = {(one.code, one.detail) for one in find_mismatches(hub.database, storage)}
    assert {code for code, _ in found} == {"object_missing", "object_corrupt"}
    assert any("`model.safetensors` of a model" in detail for _, detail in found)


async def test_rows_and_runs_link_to_the_weights_that_they_name_and_to_no_other(hub, run_of):
    wheel = await hub.publish()
    await push(hub)
    digest = weights_of(digests(FILES))
    for number, sha256 in enumerate((digest, weights_of(digests(checkpoint("more"))))):
        manifest, rollouts = run_of(wheel, run_id=f"01JRUN000000000000000000{number:02d}")
        manifest["model"] = {"name": f"m{number}", "kind": "TransformersClient", "weights_sha256": sha256}
        for line in rollouts:
            line["completion"][0]["content"] += str(number)
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    name = f"alice/ttt@{REVISION[:12]}"
    board = "/api/v1/environments/alice/reverse-text/leaderboard"
    rows = {one["model"]: one["checkpoint"] for one in (await hub.get(board)).json()["rows"]}
    assert rows == {"m0": name, "m1": None}
    html = {"Accept": "text/html"}
    link = f"/models/alice/ttt/{REVISION[:12]}"
    assert (await hub.get("/alice/reverse-text/leaderboard", headers=html)).text.count(link) == 1
    assert link in (await hub.get("/runs/01JRUN00000000000000000000", headers=html)).text
    assert f"hub:{name}" in (await hub.get("/runs/01JRUN00000000000000000000", headers=html)).text
    assert link not in (await hub.get("/runs/01JRUN00000000000000000001", headers=html)).text
    page = (await hub.get(link, headers=html)).text
    assert "/runs/01JRUN00000000000000000000" in page
    assert "/runs/01JRUN00000000000000000001" not in page
    await hub.client.put(f"{MODEL}/visibility", headers=hub.auth(), json={"private": True})
    assert {one["checkpoint"] for one in (await hub.get(board)).json()["rows"]} == {None}
    mine = (await hub.get(board, headers=hub.auth())).json()["rows"]
    assert {one["checkpoint"] for one in mine} == {name, None}
    links = await hub.get("/api/v1/runs/01JRUN00000000000000000000/links", headers=hub.auth())
    assert links.json()["pushed"] == {digest: name}
    assert json.loads(links.text)["trained_by"] == []


async def test_models_are_listed_with_their_runs(hub, run_of, monkeypatch):
    monkeypatch.setattr(routes, "_PER_PAGE", 5)
    digest = (await push(hub)).json()["weights_sha256"]
    sha256, html = await hub.publish(), {"Accept": "text/html"}
    for number, reward in enumerate((0.25, 0.75)):
        manifest, rollouts = run_of(sha256, run_id=f"01JRUN0000000000000000000{number}", reward=reward)
        manifest["model"]["weights_sha256"] = digest
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    for number in range(6):
        files = checkpoint(f"weights {number % 2}")
        assert (await push(hub, files, name=f"other-{number}")).status_code == 201

    async def listed(query: str = "", **headers: str) -> tuple[list[str], str]:
        page = (await hub.get(f"/models{query}", headers=html | headers)).text
        return re.findall(r'class="name" href="/models/([^"]+)"', page), page

    first, page = await listed()
    assert (first[0], len(first)) == ("alice/other-5", 5), "the last pushed first"
    rest, page = await listed(re.search(r'rel="next" href="/models([^"]+)"', page)[1])
    assert (rest[-1], len(first + rest), len({*first, *rest})) == ("alice/ttt", 7, 7)
    assert "0.750</b>" in page
    assert 'href="/runs/01JRUN00000000000000000001">alice/reverse-text</a>' in page
    assert "2 runs" in page
    assert (await listed("?q=TT"))[0] == ["alice/ttt"]
    assert "No models match" in (await listed("?q=%25"))[1]
    await hub.client.put(f"{MODEL}/visibility", headers=hub.auth(), json={"private": True})
    assert (await listed("?q=ttt"))[0] == []
    assert (await listed("?q=ttt", **hub.auth()))[0] == ["alice/ttt"]
