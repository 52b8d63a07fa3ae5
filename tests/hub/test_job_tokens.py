"""The token of a job of the hub reads what the job is about, ends with it, and does nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy import select
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import JOB_TOKEN, Identity
from wander_hub.jobs import Job, JobRefused, TableQueue
from wander_hub.rights.models import Token
from wander_hub.rights.tokens import authenticate
from wander_hub.verification.program import ClientProgram


class Lease:
    job_id = 1


class Context:
    lease = Lease()


async def publish(hub, spec, owner: str, visibility: str = "private") -> None:
    fields = {"wander_visibility": visibility}
    answer = await hub.upload(spec.build(), spec.wheel_name, owner=owner, user=owner, fields=fields)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def lent(hub, monkeypatch: pytest.MonkeyPatch):
    """Run a job about an environment's version; return what its token reads and whose it is."""

    def run(owner: str, name: str) -> tuple[set[str], Identity, str]:
        found: list[tuple[set[str], Identity, str]] = []

        def answer(
            self: ClientProgram, context: Any, words: list[str], secret: str, *_: Any
        ) -> dict[str, Any]:
            identity = authenticate(hub.database, secret)
            from wander_hub.environments.repository import visible

            with hub.database.read(identity) as session:
                seen = {one.label for one in session.scalars(visible(session))}
            found.append((seen, identity, secret))
            raise JobRefused("enough")

        monkeypatch.setattr(ClientProgram, "_answer", answer)
        with hub.database.read() as session:
            query = select(Version.id).join(Version.environment).where(Environment.name == name)
            version_id = session.scalars(query).one()
        program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=True, seconds=60)
        with pytest.raises(JobRefused):
            program.run(Context(), ["check", f"{owner}/{name}@0.1.0"], version_id)  # type: ignore[arg-type]
        return found[0]

    return run


async def test_a_job_token_reads_its_environment_and_public_data(hub, make_wheel, lent):
    await publish(hub, make_wheel(), "alice")
    await publish(hub, make_wheel(name="other-one"), "alice")
    await publish(hub, make_wheel(name="inner"), "alice", "internal")
    await publish(hub, make_wheel(name="bobs"), "bob")
    await publish(hub, make_wheel(name="open"), "bob", "public")
    seen, identity, secret = lent("alice", "reverse-text")
    assert seen == {"alice/reverse-text", "bob/open"}
    assert identity.token.scopes == ["read"]
    assert not identity.administers
    for path in ("/alice/simple/other-one/", "/bob/simple/bobs/", "/api/v1/environments/bob/bobs"):
        assert (await hub.get(path, headers=hub.auth("admin"))).status_code == 200
        refused = await hub.get(path, headers={"Authorization": f"Bearer {secret}"})
        assert refused.status_code in (401, 403, 404), "and the token is gone with its job"


async def test_a_job_token_expires_with_its_job(hub, make_wheel, lent):
    await publish(hub, make_wheel(), "alice")
    lent("alice", "reverse-text")
    with hub.database.read() as session:
        assert list(session.scalars(select(Token).where(Token.name.startswith(JOB_TOKEN)))) == []


async def test_a_job_token_reads_required_packages_of_the_owner(hub, make_wheel, lent):
    await publish(hub, make_wheel(name="Tools-Of-Alice".lower()), "alice")
    await publish(hub, make_wheel(name="bobs"), "bob")
    await publish(hub, make_wheel(requires_dist=("wander-sdk", "Tools_of.Alice>=0.1")), "alice")
    seen, _, _ = lent("alice", "reverse-text")
    assert seen == {"alice/reverse-text", "alice/tools-of-alice"}


async def test_a_requirement_gives_no_access_to_other_owners(hub, make_wheel, lent):
    await publish(hub, make_wheel(name="bobs"), "bob")
    await publish(hub, make_wheel(name="secret-env"), "alice")
    await publish(hub, make_wheel(requires_dist=("wander-sdk", "bobs")), "alice")
    seen, _, _ = lent("alice", "reverse-text")
    assert seen == {"alice/reverse-text"}
    # Who may publish one environment of an owner alone opens no other one by requiring it.
    with hub.database.write() as session:
        version = session.scalars(select(Version).where(Version.summary == "Reverse a text.")).all()[-1]
        version.requires_dist = ["secret-env"]
        version.uploaded_by_id = 1  # the administrator is no member of alice's
    seen, _, _ = lent("alice", "reverse-text")
    assert seen == {"alice/reverse-text"}


# What the token reads while its job runs, over HTTP.


@pytest.fixture
async def two_versions(hub, make_wheel) -> None:
    """A private environment of alice's with two versions, and another one."""
    for version in ("0.1.0", "0.2.0"):
        await publish(hub, make_wheel(version=version, readme=f"# Readme of {version}\n"), "alice")
    await publish(hub, make_wheel(name="other-one"), "alice")


@contextmanager
def running(hub, version: str = "0.1.0", **payload: Any) -> Iterator[tuple[str, int]]:
    """Let a job about a version run; yield its token and its id."""
    queue = TableQueue(hub.database)
    with hub.database.write() as session:
        found = select(Version).join(Version.environment).where(Environment.name == "reverse-text")
        version_id = session.scalars(found.where(Version.version == version)).one().id
        queue.submit(session, "check", f"check {version} {payload}", {"version_id": version_id, **payload})
    lease = queue.claim("worker", ["check"])
    assert lease is not None
    program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=True, seconds=60)
    with program._lend_token(lease.job_id, version_id) as secret:
        yield secret, lease.job_id


VERSION = "/api/v1/environments/alice/reverse-text/versions"
FILES = "/alice/files/reverse-text/reverse_text"
READABLE = [
    f"{VERSION}/0.1.0",
    f"{FILES}-0.1.0-py3-none-any.whl",
    f"{FILES}-0.1.0-py3-none-any.whl.metadata",
    "/alice/simple/reverse-text/",
    "/alice/index/reverse-text/",
]
HIDDEN = [
    f"{VERSION}/0.2.0",
    f"{VERSION}/0.2.0/pylock.toml",
    f"{FILES}-0.2.0-py3-none-any.whl",
    f"{FILES}-0.2.0-py3-none-any.whl.metadata",
    "/api/v1/environments/alice/reverse-text",
    "/api/v1/environments/alice/other-one",
    "/api/v1/environments/alice/other-one/versions/0.1.0",
    "/api/v1/environments",
    "/api/v1/runs",
    "/api/v1/whoami",
    "/alice/simple/other-one/",
    "/alice/index/other-one/",
    "/alice/files/other-one/other_one-0.1.0-py3-none-any.whl",
    "/alice/reverse-text",
    "/alice/reverse-text/versions/0.2.0",
]


async def test_a_job_token_reads_one_version_until_the_job_ends(hub, two_versions):
    for path in (*READABLE, *HIDDEN):
        if "pylock" not in path:
            assert (await hub.get(path, headers=hub.auth("admin"))).status_code == 200, path
    with running(hub) as (secret, _):
        token = {"Authorization": f"Bearer {secret}"}
        for path in READABLE:
            answer = await hub.get(path, headers=token)
            assert answer.status_code == 200, path
            assert b"0.2.0" not in answer.content, path
        for path in HIDDEN:
            answer = await hub.get(path, headers=token)
            assert answer.status_code in (401, 403, 404), path
    for path in (*READABLE, *HIDDEN):
        assert (await hub.get(path, headers=token)).status_code == 401, path


async def test_no_route_shows_a_job_token_another_version(hub, two_versions):
    """Every route that reads something, with what it takes about the other version."""
    values = {
        **{"owner": "alice", "name": "reverse-text", "project": "reverse-text", "version": "0.2.0"},
        **{"filename": "reverse_text-0.2.0-py3-none-any.whl", "path": "reverse_text.py", "run_id": "x"},
    }
    paths = set()
    for each in iter_route_contexts(hub.client._transport.app.routes):
        route = each.original_route
        if isinstance(route, APIRoute) and "GET" in route.methods:
            paths.add(re.sub(r"{(\w+)(?::\w+)?}", lambda part: values.get(part[1], "1"), each.path))
    assert len(paths) > 50
    with running(hub) as (secret, _):
        for path in sorted(paths):
            answer = await hub.get(path, headers={"Authorization": f"Bearer {secret}"})
            assert b"Readme of 0.2.0" not in answer.content, path
            assert b"0.2.0-py3" not in answer.content or answer.status_code >= 400, path


@pytest.mark.parametrize("state", ["done", "failed", "canceled", "queued"])
async def test_a_job_token_is_rejected_when_its_job_is_not_running(hub, two_versions, state: str):
    with running(hub) as (secret, job_id):
        token = {"Authorization": f"Bearer {secret}"}
        assert (await hub.get(READABLE[0], headers=token)).status_code == 200
        with hub.database.write() as session:
            session.get_one(Job, job_id).state = state  # type: ignore[assignment]
        for path in READABLE:
            assert (await hub.get(path, headers=token)).status_code == 401, path


async def test_a_job_token_cannot_change_anything(hub, two_versions, make_wheel):
    with running(hub) as (secret, _):
        token = {"Authorization": f"Bearer {secret}"}
        for method, path in (
            ("PUT", f"{VERSION}/0.1.0/yank"),
            ("DELETE", f"{VERSION}/0.1.0"),
            ("DELETE", "/api/v1/environments/alice/reverse-text"),
            ("POST", "/api/v1/tokens"),
            ("POST", "/api/v1/transfers/versions"),
            ("POST", "/alice/legacy/"),
        ):
            answer = await hub.client.request(method, path, json={}, headers=token)
            assert answer.status_code in (401, 403), (method, path, answer.status_code)


async def test_a_replay_reads_its_run_and_no_other(hub, make_wheel, run_of):
    sha256 = await hub.publish()
    with hub.database.write() as session:
        session.scalars(select(Environment).where(Environment.name == "reverse-text")).one().private = True
    ids = []
    for number in range(2):
        manifest, rollouts = run_of(sha256, run_id=f"01JRUN000000000000000000{number}A", seed=number)
        posted = await hub.post_run(manifest, rollouts)
        ids.append(posted.json()["run_id"])
    with running(hub, run_id=ids[0]) as (secret, _):
        token = {"Authorization": f"Bearer {secret}"}
        for end in ("", "/rollouts", "/rollouts/0"):
            assert (await hub.get(f"/api/v1/runs/{ids[0]}{end}", headers=token)).status_code == 200, end
            assert (await hub.get(f"/api/v1/runs/{ids[1]}{end}", headers=token)).status_code == 404, end
    with running(hub) as (secret, _):
        token = {"Authorization": f"Bearer {secret}"}
        assert (await hub.get(f"/api/v1/runs/{ids[0]}", headers=token)).status_code == 404
