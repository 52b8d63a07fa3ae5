"""Who may do what: every route that changes something, asked by everybody who may not use it."""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from browsers import PASSWORD
from fastapi import APIRouter
from fastapi.routing import iter_route_contexts
from lock_files import lock_of
from outages import OUTAGES, outage
from pyotp import random_base32
from run_parcels import Parcel
from sealed_rows import keep_sealed_set
from small_models import checkpoint, digests
from sqlalchemy import update
from staged_uploads import MODELS, RUNS, VERSIONS, StagedUpload, pushed
from staged_uploads import PATH as TRANSFERS
from wander.wire.models import revision_of
from wander.wire.postings import key_fingerprint
from wander.wire.transfers import make_set
from wander_hub.accounts import repository as accounts
from wander_hub.accounts import service as account_service
from wander_hub.accounts.models import Membership
from wander_hub.audit import AuditEntry, list_entries
from wander_hub.database import Base, now
from wander_hub.environments import repository as environments
from wander_hub.http.boundary import Manager, action_of, find_mutating_routes, find_undeclared_routes
from wander_hub.identity import HUB, scope_for
from wander_hub.jobs import Job
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.leaderboards.placement import board_name
from wander_hub.people import identities, sessions
from wander_hub.people.models import SecondFactor
from wander_hub.people.passwords import hash_again
from wander_hub.rights.models import Grant
from wander_hub.rights.tokens import add_token, revoke_leaked
from wander_hub.runs.service import find as find_run
from wander_hub.security import token_hash
from wander_hub.webhooks.models import WebhookDelivery

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "/api/v1/environments/{owner}/{name}"
MODEL = "/api/v1/models/{owner}/{name}"
INVITATION = "/api/v1/account/invitations/{invitation}"
FACTOR = "/api/v1/account/second-factor"
SEALED = "/api/v1/sealed/{commitment}"
HOOKS = "/api/v1/webhooks"
HOOK = HOOKS + "/{webhook}"
IDENTITIES = "/api/v1/users/{user}/identities"
OPEN_TO_ROLES = {("POST", "/api/v1/runs"), ("POST", RUNS)}
"""A stranger is told there that the run's environment is not to be found."""
PUBLIC_KEY = base64.b64encode(bytes(32)).decode()
RUN = "01JRUNPRIVATE000000000000A"
VALUES = {
    "owner": "alice",
    "name": "reverse-text",
    "version": "0.1.0",
    "user": "bob",
    "run_id": RUN,
    "number": "1",
    "sha256": "0" * 64,
    "chunk": "0",
    "file": "notes.txt",
    "fingerprint": key_fingerprint(PUBLIC_KEY),
    "publisher": "1",
    "webhook": "1",
    "job": "1",
    "organization": "lab",
    "delivery": "1",
    "invitation": "1",
    "revision": revision_of(digests(checkpoint())),
}


PUBLISHER = {
    "name": "reverse-text",
    "kind": "github",
    "subject": "acme/environments",
    "workflow": "release.yml",
}


@dataclass(frozen=True)
class Attempt:
    """One request to a route that changes something, which alice's whole token may make."""

    body: dict[str, Any] | None = None
    query: dict[str, str] = field(default_factory=dict)
    status: int = 200


BROWSERS = ("browser of stranger", "browser of alice")
ATTEMPTS = {
    ("POST", "/api/v1/tokens"): Attempt(
        {"name": "ci", "scopes": ["manage"], "target": "alice/reverse-text"}, status=201
    ),
    ("DELETE", "/api/v1/tokens/{prefix}"): Attempt(),
    ("PUT", "/api/v1/account/password"): Attempt({"new": "seven green bottles"}, status=204),
    ("DELETE", "/api/v1/account/sessions"): Attempt(status=204),
    ("POST", FACTOR): Attempt({"password": PASSWORD}),
    ("PUT", FACTOR): Attempt({"code": "recovery"}),
    ("POST", FACTOR + "/off"): Attempt({"code": "recovery"}, status=204),
    ("POST", "/api/v1/users"): Attempt({"name": "fresh"}, status=201),
    ("POST", "/api/v1/users/{user}/link"): Attempt(),
    ("DELETE", "/api/v1/users/{user}/second-factor"): Attempt(status=204),
    ("POST", IDENTITIES): Attempt({"issuer": "https://id.example", "subject": "7"}, status=204),
    ("DELETE", IDENTITIES): Attempt(query={"issuer": "https://id.example", "subject": "7"}, status=204),
    ("PUT", "/api/v1/users/{user}/disabled"): Attempt(),
    ("DELETE", "/api/v1/users/{user}/disabled"): Attempt(),
    ("DELETE", "/api/v1/users/{user}"): Attempt(),
    ("PUT", "/api/v1/owners/{owner}/members/{user}"): Attempt({"role": "maintainer"}),
    ("DELETE", "/api/v1/owners/{owner}/members/{user}"): Attempt(),
    ("POST", "/api/v1/owners"): Attempt({"name": "fresh"}, status=201),
    ("DELETE", "/api/v1/organizations/{organization}"): Attempt(status=204),
    ("POST", INVITATION + "/accept"): Attempt(),
    ("DELETE", INVITATION): Attempt(),
    ("PUT", "/api/v1/owners/{owner}/quota"): Attempt({"runs": 5}),
    ("PUT", "/api/v1/owners/{owner}/settings"): Attempt({"private_by_default": True}),
    ("POST", "/api/v1/owners/{owner}/publishers"): Attempt(PUBLISHER, status=201),
    ("DELETE", "/api/v1/owners/{owner}/publishers/{publisher}"): Attempt(),
    ("PUT", ENVIRONMENT + "/members/{user}"): Attempt({"role": "maintainer"}),
    ("DELETE", ENVIRONMENT + "/members/{user}"): Attempt(),
    ("PUT", ENVIRONMENT + "/versions/{version}/yank"): Attempt({"reason": "wrong"}),
    ("DELETE", ENVIRONMENT + "/versions/{version}/yank"): Attempt(),
    ("PUT", ENVIRONMENT + "/versions/{version}/pylock.toml"): Attempt(),
    ("DELETE", ENVIRONMENT + "/versions/{version}"): Attempt(query={"reason": "leaked"}),
    ("DELETE", ENVIRONMENT): Attempt(status=204),
    ("PUT", ENVIRONMENT + "/status"): Attempt({"status": "archived"}),
    ("PUT", ENVIRONMENT + "/visibility"): Attempt({"private": False}),
    ("POST", ENVIRONMENT + "/transfer"): Attempt({"owner": "alice", "name": "other"}),
    ("POST", "/{owner}/legacy"): Attempt(),
    ("POST", "/{owner}/legacy/"): Attempt(),
    **{
        (method, path + end): Attempt(status=status)
        for path in (VERSIONS, MODELS, RUNS)
        for method, end, status in (
            ("POST", "", 201),
            ("PUT", "/{transfer_id}/files/{filename}", 200),
            ("POST", "/{transfer_id}/finish", 201),
            ("DELETE", "/{transfer_id}", 204),
        )
    },
    ("PUT", MODEL + "/visibility"): Attempt({"private": False}),
    ("PUT", MODEL + "/revisions/{revision}/yank"): Attempt({"reason": "wrong"}),
    ("DELETE", MODEL + "/revisions/{revision}/yank"): Attempt(),
    ("DELETE", MODEL + "/revisions/{revision}"): Attempt(query={"reason": "leaked"}, status=204),
    ("DELETE", MODEL): Attempt(status=204),
    ("POST", "/api/v1/runs"): Attempt(status=201),
    ("POST", "/api/v1/runs/{run_id}/publish"): Attempt(),
    ("PUT", "/api/v1/runs/{run_id}/name"): Attempt({"name": "the third try"}),
    ("DELETE", "/api/v1/runs/{run_id}"): Attempt(query={"reason": "wrong"}),
    ("PUT", ENVIRONMENT + "/versions/{version}/boards/{board}"): Attempt({"title": "Easy"}),
    ("PUT", "/api/v1/runs/{run_id}/hiding"): Attempt({"reason": "its author asked"}),
    ("DELETE", "/api/v1/runs/{run_id}/hiding"): Attempt(status=204),
    ("POST", "/api/v1/keys"): Attempt({"name": "laptop", "public_key": PUBLIC_KEY}, status=201),
    ("DELETE", "/api/v1/keys/{fingerprint}"): Attempt(),
    ("POST", "/api/v1/runs/{run_id}/verifications"): Attempt({"sample": None}, status=201),
    ("DELETE", "/api/v1/verifications/{number}"): Attempt(),
    ("POST", ENVIRONMENT + "/versions/{version}/sealed"): Attempt(
        query={"opens_at": "2033-01-01T00:00:00Z"}, status=201
    ),
    ("POST", SEALED + "/plays"): Attempt({"model": "m", "endpoint": "https://model.example/v1"}, status=201),
    ("PUT", SEALED + "/opening"): Attempt({}),
    ("POST", HOOKS): Attempt({"url": "https://hook.example/", "owner": "alice"}, status=201),
    ("PUT", HOOK): Attempt({"url": "https://hook.example/new"}),
    ("DELETE", HOOK): Attempt(),
    ("POST", HOOK + "/secret"): Attempt(),
    ("POST", HOOK + "/test"): Attempt(status=202),
    ("POST", HOOK + "/deliveries/{delivery}/redeliver"): Attempt(status=202),
    ("POST", "/api/v1/jobs/{job}/retry"): Attempt(),
    ("POST", "/api/v1/jobs/retry"): Attempt(),
    ("DELETE", "/api/v1/jobs/{job}"): Attempt(),
}
"""One for every mutating route of the hub: a route that is missing here fails the first test below."""
MAY = {
    "yourself": {"stranger", "reader", "maintainer", "owner", "alice", "admin", *BROWSERS},
    "reader": {"reader", "maintainer", "owner", "alice", "admin", "browser of alice"},
    "maintainer": {"maintainer", "owner", "alice", "admin", "browser of alice"},
    "owner": {"owner", "alice", "admin", "browser of alice"},
    "its maker": {"alice", "browser of alice"},
    "the invited user": {"alice", "browser of alice"},
    "its maker and administrators": {"alice", "browser of alice", "admin"},
    "owner who did not make it": {"owner", "admin"},
    "administrator": {"admin"},
}
OPEN = {
    ("POST", one)
    for one in (
        "/_/oidc/mint-token",
        "/account/forms/{form}",
        "/login",
        "/login/oidc/link",
        "/login/password",
        "/logout",
        "/api/v1/leaks",
    )
}
"""Routes whose body proves who asks, or that send it on to another, with tests of their own."""


ROWS = re.findall(
    r"(?m)^\| `([A-Z]+) (/\S*)` \| ([a-z ]+)(?:,[^|]*)? \| ([`\w, ]+) \|$",
    (ROOT / "docs/api/rights.md").read_text(),
)
TABLE = {(method, path): (who, scope) for method, path, who, scope in ROWS}
"""What the documentation says of each route that changes something."""


@pytest.fixture
async def private(hub, make_wheel, run_of):
    """Alice's private environment, people with every role on it, and tokens of every scope."""
    answer = await hub.upload(
        make_wheel().build(), make_wheel().wheel_name, fields={"wander_visibility": "private"}
    )
    assert answer.status_code == 200, answer.text
    manifest, rollouts = run_of(None, run_id=RUN)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    with hub.database.write(HUB) as session:
        environment = environments.environment_named(session, "alice", "reverse-text")
        alice = accounts.owner_named(session, "alice")
        account_service.add_member(session, "team", accounts.user_named(session, "alice"))
        for name in ("reader", "maintainer", "owner", "stranger"):
            user = account_service.add_user(session, name)
            hub.tokens[name] = add_token(session, user, "test")
            if name != "stranger":
                session.add(Membership(owner_id=alice.id, user_id=user.id, role=name))
                account_service.add_member(session, "team", user)
        bob = accounts.user_named(session, "bob")
        session.add(Membership(owner_id=alice.id, user_id=bob.id, role="reader"))
        session.add(Grant(environment_id=environment.id, user_id=bob.id, role="reader"))
        user = accounts.user_named(session, "alice")
        for scope in ("read", "results", "publish", "manage"):
            hub.tokens[scope] = add_token(session, user, scope, scopes=(scope,))
        other = accounts.owner_named(session, "team")
        hub.tokens["elsewhere"] = add_token(session, user, "elsewhere", owner=other)
        hub.tokens["expired"] = add_token(session, user, "expired", latest=now() - timedelta(seconds=1))
        hub.tokens["revoked"] = add_token(session, user, "revoked")
        revoke_leaked(session, hub.tokens["revoked"])
        gone = account_service.add_user(session, "gone")
        session.add(Membership(owner_id=alice.id, user_id=gone.id, role="owner"))
        hub.tokens["disabled"], gone.disabled_at = add_token(session, gone, "left"), now()
        for name in ("alice", "stranger"):
            user = accounts.user_named(session, name)
            hub.tokens[f"browser of {name}"] = (
                f"wander-session={sessions.begin_session(session, user, hub.settings)}"
            )
    return hub


async def attempt(hub, method: str, path: str, token: str | None, make_wheel, run_of, **changed: str) -> Any:
    """Ask a route of alice's private environment; `changed` values of its address are of something else."""
    wanted = ATTEMPTS[method, path]
    values = VALUES | {
        "prefix": hub.tokens["read"][:10],
        "board": hub.tokens.get("board", "none"),
        "filename": "x",
        "commitment": hub.tokens.get("sealed set", "none"),
        **changed,
    }
    headers = hub.auth(token) if token else {}
    if path.startswith(TRANSFERS):
        return await attempt_transfer(hub, method, path, headers, make_wheel, run_of)
    address = re.sub(r"{(\w+)[^}]*}", lambda match: values[match[1]], path)
    if "legacy" in path:
        spec = make_wheel(version="0.2.0")
        return await hub.upload(spec.build(), spec.wheel_name, user=token, fields=None)
    if path.endswith("/sealed"):
        content = make_set([{"question": "hidden"}])
        return await hub.client.post(address, content=content, params=wanted.query, headers=headers)
    if path == "/api/v1/runs":
        manifest, rollouts = run_of(None)
        return await hub.post_run(manifest, rollouts, user=token)
    if path.endswith("/pylock.toml"):
        lock = lock_of(hashlib.sha256(make_wheel().build()).hexdigest())
        return await hub.client.put(address, content=tomlkit.dumps(lock), headers=headers)
    return await hub.client.request(method, address, json=wanted.body, params=wanted.query, headers=headers)


async def begin_transfer(hub, path: str, headers, make_wheel, run_of) -> StagedUpload:
    """Announce a version, a model or a run, as the path says."""
    if path.startswith(RUNS):
        return await StagedUpload.begin_run(hub.client, headers, Parcel.of(*run_of(None)))
    if path.startswith(MODELS):
        return await StagedUpload.begin_model(hub.client, headers, checkpoint(), name="sent-model")
    spec = make_wheel(version="0.2.0")
    files = {spec.wheel_name: spec.build()}
    return await StagedUpload.begin(hub.client, headers, files, name="reverse-text", version="0.2.0")


async def attempt_transfer(hub, method: str, path: str, headers, make_wheel, run_of) -> Any:
    """Try a route of transfers on the one that alice began."""
    if path in (VERSIONS, MODELS, RUNS):
        return (await begin_transfer(hub, path, headers, make_wheel, run_of)).opened
    address = hub.transfer.place
    if method != "PUT":
        end = "/finish" if path.endswith("/finish") else ""
        return await hub.client.request(method, address + end, headers=headers)
    name, (content, *_) = next(iter(hub.transfer.files.items()))
    digest = hashlib.sha256(content).hexdigest()
    return await hub.client.put(
        f"{address}/files/{name}", params={"offset": 0, "digest": digest}, content=content, headers=headers
    )


async def set_a_board_up(hub, method: str, path: str, make_wheel, run_of) -> None:
    """Let the run rank, where the route is about a board; and hide it, where that is to be taken back."""
    if not path.endswith(("/hiding", "/boards/{board}")):
        return
    with hub.database.write(HUB) as session:
        run = find_run(session, RUN)
        run.level = "complete"
        refresh_results(session, run.environment)
        hub.tokens["board"] = board_name(run.task_set_sha256, run.protocol_sha256)
    if method == "DELETE":
        hidden = await attempt(hub, "PUT", path, "alice", make_wheel, run_of)
        assert hidden.status_code == 200, hidden.text


async def keep_a_delivery(hub, path: str) -> None:
    """Make a webhook, where the route is about one, and a delivery to it that ended in vain."""
    if not path.startswith(HOOK):
        return
    made = await hub.client.post(HOOKS, json=ATTEMPTS["POST", HOOKS].body, headers=hub.auth())
    assert made.json()["webhook"]["id"] == 1, made.text
    assert (await hub.client.post(HOOKS + "/1/test", headers=hub.auth())).json()["id"] == 1
    with hub.database.write(HUB) as session:
        session.execute(update(WebhookDelivery).values(state="failed"))


def keep_factors(hub, method: str, path: str) -> None:
    """Give everybody a password and, where it is confirmed or turned off, a second factor with a code."""
    if not path.startswith(FACTOR):
        return
    kept = hash_again(PASSWORD)
    with hub.database.write() as session:
        for name in ("stranger", "reader", "maintainer", "owner", "alice", "admin"):
            user = accounts.user_named(session, name)
            user.password_hash = kept
            if (method, path) != ("POST", FACTOR):
                confirmed = None if method == "PUT" else now()
                codes = {"secret": random_base32(), "recovery": [token_hash("recovery")]}
                session.add(SecondFactor(user_id=user.id, last_step=0, confirmed_at=confirmed, **codes))


async def keep_for_administrators(hub, method: str, path: str) -> None:
    """Let the hub have an organization, an identity or a job that failed."""
    if "organizations" in path:
        with hub.database.write() as session:
            for name in ("alice", "owner", "maintainer", "reader"):
                role = name if name in ("maintainer", "reader") else "owner"
                account_service.add_member(session, "lab", accounts.user_named(session, name), role)
    if path == IDENTITIES and method == "DELETE":
        with hub.database.write() as session:
            identities.link_identity(
                session, "https://id.example", "7", accounts.user_named(session, "bob").id
            )
    if path.endswith("/retry"):
        with hub.database.write() as session:
            session.execute(update(Job).where(Job.id == 1).values(state="failed", finished_at=now()))


async def prepare(hub, method: str, path: str, make_wheel, run_of) -> None:
    """Make what the route is about."""
    await keep_for_administrators(hub, method, path)
    keep_factors(hub, method, path)
    await set_a_board_up(hub, method, path, make_wheel, run_of)
    if "{number}" in path:
        asked = await attempt(hub, "POST", "/api/v1/runs/{run_id}/verifications", "alice", make_wheel, run_of)
        assert asked.json()["id"] == 1, asked.text
    if "{invitation}" in path:
        address, role = "/api/v1/owners/bob/members/alice", {"role": "reader"}
        invited = await hub.client.put(address, json=role, headers=hub.auth("bob"))
        assert invited.status_code == 200, invited.text
    if "{publisher}" in path:
        added = await attempt(hub, "POST", "/api/v1/owners/{owner}/publishers", "alice", make_wheel, run_of)
        assert added.json()["id"] == 1, added.text
    await keep_a_delivery(hub, path)
    if path.startswith(SEALED):
        hub.tokens["sealed set"] = keep_sealed_set(hub.database, VALUES["name"])
    if "{transfer_id}" in path:
        hub.transfer = await begin_transfer(hub, path, hub.auth(), make_wheel, run_of)
        if path.endswith("/finish"):
            await hub.transfer.send_all()
    if path.startswith(MODEL):
        model = await pushed(hub.client, hub.auth(), checkpoint(), name=VALUES["name"], private=True)
        assert model.status_code == 201, model.text
    if path.startswith("/api/v1/keys/"):
        begun = await attempt(hub, "POST", "/api/v1/keys", "alice", make_wheel, run_of)
        assert begun.status_code in (200, 201)
    if path.endswith("/publish"):
        with hub.database.write(HUB) as session:
            find_run(session, RUN).private = True


@contextmanager
def undone(hub) -> Iterator[None]:
    """Take back what is done to a database of SQLite meanwhile."""
    with closing(sqlite3.connect(":memory:")) as kept:
        with closing(sqlite3.connect(hub.settings.data / "hub.db")) as live:
            live.backup(kept)
        yield
        with closing(sqlite3.connect(hub.settings.data / "hub.db")) as live:
            kept.backup(live)


def rows(hub) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that the database holds, but for when tokens were last used."""
    found = {}
    with hub.database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            columns = [one for one in table.columns if one.name != "last_used_at"]
            found[table.name] = sorted(
                map(repr, connection.execute(table.select().with_only_columns(*columns)))
            )
    return found


def entries(hub) -> list[AuditEntry]:
    """Return what the audit log tells of requests; the levels of runs are told by themselves."""
    with hub.database.read(HUB) as session:
        return [one for one in list_entries(session, limit=1000) if one.action != "run.level"]


def test_every_mutating_route_is_tried_below(hub):
    found = {(method, path) for method, path, _ in find_mutating_routes(hub.client._transport.app.routes)}
    assert found == set(ATTEMPTS) | OPEN, "add an Attempt for the new route"
    assert len(TABLE) == len(ROWS), "a route has two rows"
    assert set(TABLE) == set(ATTEMPTS), "say in docs/api/rights.md who may use the new route"


def test_a_route_without_declared_rights_is_found():
    router = APIRouter()
    router.post("/anything")(lambda: None)
    router.get("/harmless")(lambda: None)

    @router.post("/undeclared")
    def change(caller: Manager) -> None:
        """Say who may, and not what is done."""

    assert find_undeclared_routes(router.routes) == ["POST /anything", "POST /undeclared"]


def attempts() -> list[Any]:
    """Return every route. The short run tries one route for each row of `MAY`."""
    tried, found = set[str](), []
    for route in ATTEMPTS:
        who, _ = TABLE.get(route, ("", ""))
        found.append(pytest.param(*route, marks=[pytest.mark.full] if who in tried else []))
        tried.add(who)
    return found


@pytest.mark.parametrize(("method", "path"), attempts(), ids=lambda one: one.replace("/api/v1", ""))
async def test_routes_require_their_declared_right(private, make_wheel, run_of, method, path):
    hub, (who, scope) = private, TABLE[method, path]
    routes = hub.client._transport.app.routes
    needed = {(m, p): needs.permission for m, p, needs in find_mutating_routes(routes) if (m, p) not in OPEN}
    assert scope.partition(",")[0].strip("`") == scope_for(needed[method, path])
    await prepare(hub, method, path, make_wheel, run_of)
    before = rows(hub)
    codes = {
        None: "token_required",
        "expired": "token_expired",
        "revoked": "bad_token",
        "disabled": "bad_token",
    }
    for caller, code in codes.items():
        refused = await attempt(hub, method, path, caller, make_wheel, run_of)
        assert (refused.status_code, refused.json()["code"]) == (401, code)
        assert "www-authenticate" in refused.headers
    for other in sorted({"read", "results", "publish", "manage"} - {scope.strip("`")}):
        refused = await attempt(hub, method, path, other, make_wheel, run_of)
        assert refused.status_code == 403, other
        assert refused.json()["code"] == "token_scope" or f"`{other}`" in scope
    may = MAY[who] | ({scope.strip("`")} if "alice" in MAY[who] and "," not in scope else set())
    for caller in ("stranger", "reader", "maintainer", "owner", "alice", "admin", "elsewhere", *BROWSERS):
        if caller not in may:
            refused = await attempt(hub, method, path, caller, make_wheel, run_of)
            hidden = (method, path) in OPEN_TO_ROLES or (caller == "elsewhere" and path.startswith(RUNS))
            allowed = (422,) if hidden else (403, 404)
            assert refused.status_code in allowed, (caller, refused.text)
    assert rows(hub) == before, "a refused request leaves no trace"
    endpoints = {(m, one.path): one for one in iter_route_contexts(routes) for m in one.methods or ()}
    action = action_of(endpoints[method, path].original_route.endpoint)
    # What was taken from storage, or is in another database, is not given back.
    repeatable = hub.database.engine.dialect.name == "sqlite" and not path.endswith("/finish")
    for caller in sorted(may) if repeatable else sorted(may)[:1]:
        with undone(hub) if repeatable else nullcontext():
            granted = await attempt(hub, method, path, caller, make_wheel, run_of)
            assert granted.status_code == ATTEMPTS[method, path].status, (caller, granted.text)
            told = [one for one in entries(hub) if one.request_id == granted.headers["x-request-id"]]
            assert [one.action for one in told] == [action] * bool(action)
            name = caller.removeprefix("browser of ") if caller in MAY["yourself"] else "alice"
            assert all(one.actor == name and one.target for one in told), "the audit log tells of it, once"
            if not path.endswith(("/yank", "/account/sessions")) or method == "PUT":
                assert rows(hub) != before


@pytest.mark.parametrize(
    "away",
    [*[*OUTAGES][:1], *(pytest.param(each, marks=pytest.mark.full) for each in [*OUTAGES][1:])],
)
async def test_writes_reveal_no_private_name(private, make_wheel, run_of, away):
    """Nor while something that the hub needs is away."""
    hub = private
    model = await pushed(hub.client, hub.auth(), checkpoint(), name=VALUES["name"], private=True)
    assert model.status_code == 201, model.text
    absent = {"name": "nowhere-known", "run_id": "01JRUNABSENT0000000000000A"}
    routes = [(method, path) for method, path in ATTEMPTS if "{name}" in path or "{run_id}" in path]
    with outage(hub, away):
        for method, path in routes:
            there = await attempt(hub, method, path, "stranger", make_wheel, run_of)
            free = await attempt(hub, method, path, "stranger", make_wheel, run_of, **absent)
            assert there.status_code == free.status_code, (method, path, there.text, free.text)
            assert there.status_code in ((404, 503) if away == "database read-only" else (404,)), there.text
            told = [one.text.replace(one.json()["request_id"], "") for one in (there, free)]
            for names in (VALUES, absent):
                told = [one.replace(names["name"], "").replace(names["run_id"], "") for one in told]
            assert told[0] == told[1], (method, path)


async def test_a_reader_posts_results_and_a_maintainer_publishes(private, make_wheel, run_of):
    spec = make_wheel(version="0.3.0")
    assert (await private.upload(spec.build(), spec.wheel_name, user="maintainer")).status_code == 200
    manifest, rollouts = run_of(None)
    assert (await private.post_run(manifest, rollouts, user="reader")).status_code == 201


async def test_a_maintainer_needs_a_token_with_the_scope_to_yank(private, make_wheel):
    hub, changed = private, f"{ENVIRONMENT.format(**VALUES)}/versions/0.1.0/yank"
    with hub.database.write(HUB) as session:
        maintainer = accounts.user_named(session, "maintainer")
        hub.tokens["uploads"] = add_token(session, maintainer, "ci", scopes=("publish",))
    refused = await hub.client.put(changed, json={}, headers=hub.auth("uploads"))
    assert (refused.status_code, refused.json()["code"]) == (403, "token_scope")
    assert refused.json()["hint"] == "create a token with `wander auth token new NAME --scope manage`"
    assert (await hub.client.put(changed, json={}, headers=hub.auth("maintainer"))).status_code == 200
    spec = make_wheel(version="0.2.0")
    assert (await hub.upload(spec.build(), spec.wheel_name, user="uploads")).status_code == 200


async def test_a_role_on_an_environment_is_valid_only_there(private, make_wheel):
    hub = private
    with hub.database.write(HUB) as session:
        environment = environments.environment_named(session, "alice", "reverse-text")
        stranger = accounts.user_named(session, "stranger")
        session.add(Grant(environment_id=environment.id, user_id=stranger.id, role="maintainer"))
    spec = make_wheel(version="0.2.0")
    assert (await hub.upload(spec.build(), spec.wheel_name, user="stranger")).status_code == 200
    other = make_wheel(name="other", files={"other.py": b"def load_environment(): ...\n"})
    assert (await hub.upload(other.build(), other.wheel_name, user="stranger")).status_code == 403
    whoami = (await hub.get("/api/v1/whoami", headers=hub.auth("stranger"))).json()
    assert whoami["owners"] == ["alice", "stranger"]
    listed = (await hub.get("/api/v1/environments", headers=hub.auth("stranger"))).json()["data"]
    assert [(one["owner"], one["name"], one["private"]) for one in listed] == [
        ("alice", "reverse-text", True)
    ]


async def test_only_an_administrator_quarantines(private):
    body = {"status": "quarantined", "reason": "steals keys"}
    path = "/api/v1/environments/alice/reverse-text/status"
    for who in ("alice", "maintainer"):
        assert (await private.client.put(path, json=body, headers=private.auth(who))).status_code == 403
    answer = await private.client.put(path, json=body, headers=private.auth("admin"))
    assert (answer.status_code, answer.json()["status"]) == (200, "quarantined")
    undone = {"status": "active"}
    assert (await private.client.put(path, json=undone, headers=private.auth("alice"))).status_code == 403
    answer = await private.client.put(path, json=undone, headers=private.auth("admin"))
    assert answer.json()["status"] == "active"


async def test_an_owner_keeps_an_owner(hub):
    answer = await hub.client.delete("/api/v1/owners/alice/members/alice", headers=hub.auth())
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")
    answer = await hub.client.put(
        "/api/v1/owners/alice/members/alice", json={"role": "reader"}, headers=hub.auth()
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")
    await hub.client.put(
        "/api/v1/owners/alice/members/bob", json={"role": "owner"}, headers=hub.auth("admin")
    )
    answer = await hub.client.delete("/api/v1/owners/alice/members/alice", headers=hub.auth("bob"))
    assert [one["user"] for one in answer.json()["data"]] == ["bob"]


@pytest.mark.parametrize("place", ["simple", "files", "integrity", "legacy/+simple"])
async def test_a_restricted_token_reveals_no_private_names(hub, make_wheel, place):
    for name in ("mine", "hidden"):
        await hub.publish(make_wheel(name=name))
    url = "/api/v1/environments/alice/hidden/visibility"
    assert (await hub.client.put(url, json={"private": True}, headers=hub.auth())).is_success
    wanted = {"name": "ci", "scopes": ["publish"], "target": "alice/mine"}
    made = await hub.client.post("/api/v1/tokens", json=wanted, headers=hub.auth())
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    new = {"name": "new", "scopes": ["publish"], "target": "alice/new"}
    begins = await hub.client.post("/api/v1/tokens", json=new, headers=hub.auth())
    tail = {"files": "/{}-0.1.0-py3-none-any.whl", "integrity": "/0.1.0/{}-0.1.0-py3-none-any.whl/provenance"}

    async def ask(name: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        path = f"/alice/{place}/{name}" + tail.get(place, "/").format(name)
        answer = await hub.get(path, headers=headers)
        told = answer.json() if answer.status_code != 200 else {}
        return answer.status_code, {
            key: told.get(key, "").replace(name, "") for key in ("code", "detail", "hint")
        }

    hidden, free = await ask("hidden", headers), await ask("free", headers)
    assert hidden == free
    assert hidden[0] == 401
    if begins.is_success and place in ("simple", "legacy/+simple"):
        uploader = {"Authorization": f"Bearer {begins.json()['token']}"}
        assert (await ask("new", uploader))[0] == 404, "an uploader looks up the name that it may begin"
        assert (await ask("free", uploader))[0] == 401
