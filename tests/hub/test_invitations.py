"""Invitations: offered by name, accepted or declined, withdrawn; and leaving by oneself."""

from __future__ import annotations

import re
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service
from wander_hub.accounts.models import Membership, User
from wander_hub.audit import list_entries
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.http.problems import HubProblem
from wander_hub.people import departures
from wander_hub.rights import invitations, members
from wander_hub.rights.models import Invitation
from wander_hub.rights.tokens import add_token, authenticate

MINE = "/account/invitations"
TEAM = "/owners/alice/members"


async def ask(hub, method: str, path: str, who: str = "alice", **options):
    return await hub.client.request(method, f"/api/v1{path}", headers=hub.auth(who), **options)


async def invite(hub, name: str, role: str = "maintainer", where: str = TEAM, who: str = "alice"):
    answer = await ask(hub, "PUT", f"{where}/{name}", who, json={"role": role}, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return answer


async def waiting_for(hub, who: str) -> list[dict]:
    return (await ask(hub, "GET", MINE, who)).json()["data"]


async def roles(hub, where: str = TEAM) -> dict[str, str]:
    found = (await ask(hub, "GET", where)).json()["data"]
    return {one["user"]: ("invited " if one.get("pending_until") else "") + one["role"] for one in found}


async def test_nobody_learns_whether_there_is_such_a_user(hub):
    def told(answer, name: str) -> tuple:
        body = re.sub(r'T[\d:.]+Z|"request_id":"\w+"', "", answer.text.replace(name, "NAME"))
        headers = {key: value for key, value in answer.headers.items() if key not in ("x-request-id", "date")}
        return answer.status_code, body, headers

    seen = {}
    for name in ("bob", "zoe"):
        seen[name] = [told(await invite(hub, name), name), told(await invite(hub, name, "reader"), name)]
        for _ in range(2):  # withdrawn, and then none is there
            seen[name].append(told(await ask(hub, "DELETE", f"{TEAM}/{name}"), name))
    assert seen["bob"] == seen["zoe"]
    assert seen["bob"][-1][0] == 404
    assert (await ask(hub, "PUT", f"{TEAM}/not%20a%20name", json={"role": "reader"})).status_code == 422
    unknown = await ask(hub, "PUT", f"{TEAM}/zoe", "admin", json={"role": "reader"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "user_not_found"), "administrators know"


async def test_only_the_invited_user_answers_an_invitation(hub):
    await invite(hub, "BOB")
    assert await roles(hub) == {"alice": "owner", "bob": "invited maintainer"}
    assert (await ask(hub, "GET", "/whoami", "bob")).json()["owners"] == ["bob"], "not yet"
    (mine,) = await waiting_for(hub, "bob")
    assert (mine["target"], mine["role"], mine["invited_by"]) == ("alice", "maintainer", "alice")
    for who in ("alice", "admin"):
        assert (await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", who)).status_code == 404
    with hub.database.write() as session:
        bob = accounts.user_named(session, "bob")
        hub.tokens["narrow"] = add_token(session, bob, "n", owner=accounts.owner_named(session, "bob"))
    for method, path in (("GET", MINE), ("POST", f"{MINE}/{mine['id']}/accept")):
        assert (await ask(hub, method, path, "narrow")).status_code == 403
    assert (await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", "bob")).json()["target"] == "alice"
    assert await roles(hub) == {"alice": "owner", "bob": "maintainer"}
    members = (await ask(hub, "GET", TEAM)).json()["data"]
    assert not any("pending_until" in one for one in members), (
        "older clients refuse fields that they do not know"
    )
    assert (await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", "bob")).status_code == 404, "once"
    await invite(hub, "bob", "reader")
    assert await roles(hub) == {"alice": "owner", "bob": "reader"}, "of a member it changes at once"
    left = await ask(hub, "DELETE", f"{TEAM}/bob", "bob")
    assert (left.status_code, left.json()["data"]) == (200, []), "who left sees nobody"
    assert (await ask(hub, "DELETE", f"{TEAM}/bob", "bob")).status_code == 404
    await invite(hub, "bob")
    (mine,) = await waiting_for(hub, "bob")
    await ask(hub, "DELETE", f"{MINE}/{mine['id']}", "bob")
    assert await roles(hub) == {"alice": "owner"}
    with hub.database.read() as session:
        told = [(one.action, one.actor, one.owner) for one in list_entries(session, owner="alice")]
    assert told[::-1] == [
        ("member.set", "alice", "alice"),
        ("invitation.accept", "bob", "alice"),
        ("member.set", "alice", "alice"),
        ("member.remove", "bob", "alice"),
        ("member.set", "alice", "alice"),
        ("invitation.decline", "bob", "alice"),
    ]


async def test_invitations_end_with_time_roles_and_users(hub, make_wheel):
    await hub.publish(make_wheel())
    one = "/environments/alice/reverse-text/members"
    with hub.database.write() as session:
        carol = service.add_user(session, "carol")
        hub.tokens["carol"] = add_token(session, carol, "test")
        service.add_member(session, "alice", carol, "owner")
    await invite(hub, "bob", where=one, who="carol")
    await invite(hub, "bob", who="carol")
    assert [mine["target"] for mine in await waiting_for(hub, "bob")] == ["alice/reverse-text", "alice"]
    await invite(hub, "carol", "maintainer")
    assert await waiting_for(hub, "bob") == [], "carol is no owner any more"
    assert "bob" not in await roles(hub, one)
    await invite(hub, "bob", where=one)
    with hub.database.write() as session:
        session.execute(update(Invitation).values(expires_at=now() - timedelta(seconds=1)))
        number = session.scalar(select(Invitation.id))
    assert await waiting_for(hub, "bob") == []
    assert (await ask(hub, "POST", f"{MINE}/{number}/accept", "bob")).status_code == 404
    assert "bob" not in await roles(hub, one)
    await invite(hub, "bob", "reader", where=one)
    (mine,) = await waiting_for(hub, "bob")
    body = {"owner": "alice", "name": "other"}
    await ask(hub, "POST", "/environments/alice/reverse-text/transfer", json=body)
    accepted = await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", "bob")
    assert accepted.json()["target"] == "alice/other", "a new name is the same environment"
    left = await ask(hub, "DELETE", "/environments/alice/other/members/bob", "bob")
    assert (left.status_code, left.json()["data"]) == (200, [])
    await invite(hub, "bob")
    await ask(hub, "PUT", "/users/bob/disabled", "admin")
    assert "bob" in await roles(hub), "whoever invites a name learns nothing of who has it"
    await ask(hub, "DELETE", "/users/bob/disabled", "admin")
    with hub.database.write() as session:
        hub.tokens["bob"] = add_token(session, accounts.user_named(session, "bob"), "new")
    (mine,) = await waiting_for(hub, "bob")
    with hub.database.write() as session:
        service.add_member(session, "alice", accounts.user_named(session, "alice"), "maintainer")
    assert await waiting_for(hub, "bob") == [], "alice may not invite any more"
    assert (await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", "bob")).status_code == 404


async def test_a_role_is_never_lost_by_accepting(hub):
    await invite(hub, "bob", "reader")
    (mine,) = await waiting_for(hub, "bob")
    with hub.database.write() as session:
        service.add_member(session, "alice", accounts.user_named(session, "bob"), "owner")
    await ask(hub, "POST", f"{MINE}/{mine['id']}/accept", "bob")
    assert (await roles(hub))["bob"] == "owner"
    await ask(hub, "DELETE", f"{TEAM}/bob")
    await invite(hub, "bob")
    await ask(hub, "PUT", f"{TEAM}/bob", "admin", json={"role": "owner"})
    assert await waiting_for(hub, "bob") == []
    assert (await ask(hub, "DELETE", f"{TEAM}/alice")).status_code == 200, "another owner is left"
    last = await ask(hub, "DELETE", f"{TEAM}/bob", "bob")
    assert (last.status_code, last.json()["code"]) == (409, "last_owner")


@pytest.mark.parametrize(("change", "left"), [({"role": "reader"}, "reader"), (None, None)])
async def test_changing_a_member_withdraws_pending_invitations(hub, change, left):
    await invite(hub, "bob", "owner")
    with hub.database.write() as session:
        service.add_member(session, "alice", accounts.user_named(session, "bob"), "maintainer")
    method = "PUT" if change else "DELETE"
    assert (await ask(hub, method, f"{TEAM}/bob", json=change)).status_code == 200
    assert await waiting_for(hub, "bob") == []
    assert (await roles(hub)).get("bob") == left


async def test_a_restricted_token_cannot_leave_other_environments(hub, make_wheel):
    with hub.database.write() as session:
        bob = accounts.user_named(session, "bob")
    for name in ("mine", "other"):
        files = {f"{name}.py": b"def load_environment(): ...\n"}
        await hub.publish(make_wheel(name=name, files=files, entry_points=None))
        answer = await ask(
            hub, "PUT", f"/environments/alice/{name}/members/bob", "admin", json={"role": "owner"}
        )
        assert answer.status_code == 200, answer.text
    with hub.database.write() as session:
        hub.tokens["narrow"] = add_token(
            session, bob, "n", environment=environments.environment_named(session, "alice", "mine")
        )
    leave = "/environments/alice/{}/members/bob"
    assert (await ask(hub, "DELETE", leave.format("other"), "narrow")).status_code == 403
    assert (await roles(hub, "/environments/alice/other/members"))["bob"] == "owner"
    assert (await ask(hub, "DELETE", leave.format("mine"), "narrow")).status_code == 200


@pytest.mark.parametrize("other", ["accept", "withdraw", "remove"])
async def test_one_of_two_simultaneous_changes_fails(hub, other):
    await invite(hub, "bob")
    (mine,) = await waiting_for(hub, "bob")
    alice, bob = (authenticate(hub.database, hub.tokens[one]) for one in ("alice", "bob"))
    barrier, refused, done = threading.Barrier(2), [], []

    def do(which: str) -> None:
        def work(session):
            if which == "accept":
                return invitations.accept_invitation(session, bob, mine["id"])
            if which == "remove":
                return departures.remove_user(session, "bob")
            return members.change_owner_role(session, alice, "alice", "bob", None)

        barrier.wait()
        try:
            hub.database.commit(work)
            done.append(which)
        except HubProblem as problem:
            refused.append(problem.code)

    threads = [threading.Thread(target=do, args=(one,)) for one in ("accept", other)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    left = await roles(hub)
    if other == "accept":
        assert (done, refused, left["bob"]) == (["accept"], ["invitation_not_found"], "maintainer")
    elif other == "remove":
        with hub.database.read() as session:
            assert session.scalar(select(Membership).join(User).where(User.name == "bob")) is None
    else:  # it is withdrawn before, or the role is taken after
        assert "bob" not in left
        assert refused in ([], ["invitation_not_found"])


async def test_one_of_two_owners_who_leave_simultaneously_stays(hub):
    with hub.database.write() as session:
        service.add_member(session, "alice", accounts.user_named(session, "bob"), "owner")
    callers = [authenticate(hub.database, hub.tokens[one]) for one in ("alice", "bob")]
    barrier, refused = threading.Barrier(2), []

    def leave(caller) -> None:
        barrier.wait()
        try:
            hub.database.commit(
                lambda session: members.change_owner_role(session, caller, "alice", caller.user, None)
            )
        except HubProblem as problem:
            refused.append(problem.code)

    threads = [threading.Thread(target=leave, args=(one,)) for one in callers]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert refused == ["last_owner"]
    with hub.database.read() as session:
        owner = accounts.owner_named(session, "alice")
        assert len(session.scalars(select(Membership).where(Membership.owner_id == owner.id)).all()) == 1
