"""Organizations: who makes them, how many, and what is left of one that is removed."""

from __future__ import annotations

import threading

import pytest
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service
from wander_hub.http.problems import HubProblem
from wander_hub.people import organizations
from wander_hub.rights.tokens import authenticate


async def ask(hub, method: str, path: str, who: str = "alice", **options):
    return await hub.client.request(method, f"/api/v1{path}", headers=hub.auth(who), **options)


async def test_the_creator_of_an_organization_is_its_first_owner(hub, make_wheel):
    made = await ask(hub, "POST", "/owners", json={"name": "Lab"})
    assert (made.status_code, made.json()["name"], made.json()["role"]) == (201, "lab", "owner")
    found = (await ask(hub, "GET", "/owners")).json()["data"]
    assert [(one["name"], one["kind"]) for one in found] == [("alice", "user"), ("lab", "organization")]
    spec = make_wheel()
    assert (await hub.upload(spec.build(), spec.wheel_name, owner="lab")).status_code == 200
    for name, code in (("lab", "name_taken"), ("bob", "name_taken"), ("api", "bad_name"), ("-", "bad_name")):
        refused = await ask(hub, "POST", "/owners", json={"name": name})
        assert refused.json()["code"] == code, name
    await ask(hub, "DELETE", "/users/bob", "admin")
    taken = await ask(hub, "POST", "/owners", json={"name": "bob"})
    assert taken.json()["code"] == "name_taken", "nor the name of somebody who was removed"
    with pytest.raises(HubProblem, match="already taken"), hub.database.write() as session:
        service.add_user(session, "lab")


def test_the_number_of_organizations_per_user_is_limited(hub):
    few = hub.settings.model_copy(update={"max_organizations": 2})
    alice, admin = (authenticate(hub.database, hub.tokens[one]) for one in ("alice", "admin"))
    barrier, refused = threading.Barrier(4), []

    def make(name: str) -> None:
        barrier.wait()
        try:
            hub.database.commit(lambda session: organizations.make_organization(session, alice, few, name))
        except HubProblem as problem:
            refused.append(problem.code)

    threads = [threading.Thread(target=make, args=(f"lab-{number}",)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert refused == ["too_many_organizations"] * 2
    closed = hub.settings.model_copy(update={"organizations": "administrators"})
    with hub.database.write() as session:
        with pytest.raises(HubProblem, match="administrators"):
            organizations.make_organization(session, alice, closed, "mine")
        assert organizations.make_organization(session, admin, closed, "mine").name == "mine"


async def test_a_removed_organization_keeps_its_environments_and_nothing_else(hub, make_wheel):
    await ask(hub, "POST", "/owners", json={"name": "lab"})
    spec = make_wheel()
    await hub.upload(spec.build(), spec.wheel_name, owner="lab")
    narrow = {"name": "ci", "scopes": ["publish"], "target": "lab"}
    hub.tokens["ci"] = (await ask(hub, "POST", "/tokens", json=narrow)).json()["token"]
    await ask(hub, "PUT", "/owners/lab/members/carol", json={"role": "reader"})
    assert (await ask(hub, "DELETE", "/organizations/lab")).status_code == 204
    assert (await ask(hub, "GET", "/whoami", "ci")).status_code == 401
    assert (await ask(hub, "GET", "/owners/lab/members")).status_code == 404
    assert (await ask(hub, "GET", "/owners/lab/members", "admin")).json()["data"] == []
    assert (await hub.get("/api/v1/environments/lab/reverse-text")).status_code == 200
    with hub.database.read() as session:
        assert accounts.owner_named(session, "lab") is not None


async def test_owners_remove_organizations_over_the_api(hub):
    for name in ("alpha", "beta", "gamma"):
        await ask(hub, "POST", "/owners", json={"name": name})
    assert (await ask(hub, "DELETE", "/organizations/beta", "bob")).status_code == 403
    assert (await ask(hub, "DELETE", "/organizations/Beta", follow_redirects=True)).status_code == 204
    for name, status, code in (
        ("alice", 409, "not_an_organization"),
        ("nobody", 404, "owner_not_found"),
        ("beta", 403, "not_permitted"),
    ):
        refused = await ask(hub, "DELETE", f"/organizations/{name}")
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert (await ask(hub, "POST", "/owners", json={"name": "beta"})).json()["code"] == "name_taken"
    first = (await ask(hub, "GET", "/organizations", "admin", params={"limit": 2})).json()
    assert [(one["name"], one["owners"]) for one in first["data"]] == [("alpha", ["alice"]), ("beta", [])]
    rest = await ask(hub, "GET", "/organizations", "admin", params={"cursor": first["next"]})
    assert [one["name"] for one in rest.json()["data"]] == ["gamma"]
