"""The combined index: an owner has the names that begin with its own, and nobody else has them there."""

from __future__ import annotations

from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_hub.accounts import service as accounts
from wander_hub.index.namespaces import covers, namespaces_of, oldest
from wander_hub.index.negotiation import JSON_V1
from wander_hub.rights.tokens import add_token

AS_JSON = {"Accept": JSON_V1}


@pytest.fixture
async def filled(hub, make_wheel):
    """Alice and bob with names inside and outside of their namespaces."""
    for name in ("alice-texts", "alice", "texts", "bob-games"):
        await hub.publish(make_wheel(name=name))
    await hub.publish(make_wheel(name="bob-games", summary="The true one."), owner="bob")
    return hub


async def names(hub, **options) -> list[str]:
    page = (await hub.get("/simple/", headers=AS_JSON, **options)).json()
    return [one["name"] for one in page["projects"]]


async def test_the_combined_index_lists_the_namespace_of_each_owner(filled):
    assert await names(filled) == ["alice", "alice-texts", "bob-games"]
    html = (await filled.get("/simple/")).text
    assert '<a href="alice-texts/">alice-texts</a>' in html
    assert (await filled.get("/simple/texts/")).status_code == 404
    assert "/OWNER/simple/" in (await filled.get("/simple/texts/")).json()["hint"]


async def test_a_name_is_served_by_its_owner(filled):
    combined = await filled.get("/simple/bob-games/", headers=AS_JSON)
    own = await filled.get("/bob/simple/bob-games/", headers=AS_JSON)
    assert (combined.content, combined.headers["etag"]) == (own.content, own.headers["etag"])
    assert own.json()["namespaces"] == [{"name": "bob", "owned": True}]
    assert (await filled.get("/alice/simple/bob-games/", headers=AS_JSON)).json()["namespaces"] is None
    url = urljoin("http://hub.test/simple/bob-games/", combined.json()["files"][0]["url"])
    assert url == "http://hub.test/files/bob-games/bob_games-0.1.0-py3-none-any.whl"
    metadata = await filled.get(url + ".metadata")
    assert "The true one." in metadata.text
    assert (await filled.get(url)).headers["etag"] == f'"{own.json()["files"][0]["hashes"]["sha256"]}"'


async def test_other_spellings_are_redirected(filled):
    for path in ("/simple/Alice.Texts/", "/simple/alice-texts", "/simple/Alice_Texts"):
        answer = await filled.get(path)
        assert (answer.status_code, answer.headers["location"]) == (301, "/simple/alice-texts/")
    assert (await filled.get("/simple")).headers["location"] == "/simple/"


async def test_a_newer_owner_cannot_take_existing_names(filled, make_wheel):
    hub = filled
    with hub.database.write() as session:
        user = accounts.add_user(session, "alice-texts")
        hub.tokens["alice-texts"] = add_token(session, user, "test")
    await hub.publish(make_wheel(name="alice-texts", summary="Not hers."), owner="alice-texts")
    await hub.publish(make_wheel(name="alice-texts-long"), owner="alice-texts")
    page = await hub.get("/simple/alice-texts/", headers=AS_JSON)
    assert page.content == (await hub.get("/alice/simple/alice-texts/", headers=AS_JSON)).content
    assert await names(hub) == ["alice", "alice-texts", "bob-games"]
    assert (await hub.get("/simple/alice-texts-long/")).status_code == 404


async def test_private_environments_are_visible_only_to_their_readers(filled, make_wheel):
    spec = make_wheel(name="alice-secret")
    await filled.upload(spec.build(), spec.wheel_name, fields={"wander_visibility": "private"})
    path = "/simple/alice-secret/"
    strangers = [(await filled.get(one)).status_code for one in (path, "/simple/alice-nothing/")]
    assert strangers == [401, 401], "a stranger cannot tell what is there from what is not"
    assert (await filled.get(path, headers=filled.auth())).status_code == 200
    assert "alice-secret" not in await names(filled)
    answer = await filled.get("/simple/", headers=AS_JSON | filled.auth())
    assert "alice-secret" in answer.text


async def test_namespaces_are_described(filled):
    listed = (await filled.get("/simple/namespaces")).json()
    assert [(one["name"], one["owner"]) for one in listed] == [("alice", "alice"), ("bob", "bob")]
    assert (await filled.get("/simple/namespace/Bob", follow_redirects=True)).json() == listed[1]
    assert (await filled.get("/simple/namespace/carol")).status_code == 404


async def test_hatch_finds_uploaded_files_below_the_upload_address(filled):
    page = await filled.get("/alice/legacy/+simple/texts/")
    assert page.status_code == 200
    assert ">texts-0.1.0-py3-none-any.whl</a>" in page.text
    assert (await filled.get("/alice/legacy/+simple/nothing/")).status_code == 404


name = st.from_regex(r"[a-c]{1,2}(-[a-c]{1,2}){0,4}", fullmatch=True)


@given(name, st.lists(name, unique=True))
def test_a_name_has_at_most_one_owner_and_keeps_it(project, owners):
    ages = {owner: number for number, owner in enumerate(owners)}
    holder = oldest(namespaces_of(project), ages)
    covering = [one for one in owners if covers(one, project)]
    assert holder == (covering[0] if covering else None)
    later = {**ages, **{f"{project}-x": 99, project.split("-")[0] + "z": 100}}
    assert oldest(namespaces_of(project), later) == holder
