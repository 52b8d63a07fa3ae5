"""The token of a job of the hub reads what the job is about, ends with it, and does nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import JOB_TOKEN, Identity
from wander_hub.jobs import JobRefused
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


async def test_it_reads_its_environment_and_what_everybody_reads(hub, make_wheel, lent):
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


async def test_it_ends_with_the_job(hub, make_wheel, lent):
    await publish(hub, make_wheel(), "alice")
    lent("alice", "reverse-text")
    with hub.database.read() as session:
        assert list(session.scalars(select(Token).where(Token.name.startswith(JOB_TOKEN)))) == []


async def test_it_reads_what_the_version_requires_of_its_owner(hub, make_wheel, lent):
    await publish(hub, make_wheel(name="Tools-Of-Alice".lower()), "alice")
    await publish(hub, make_wheel(name="bobs"), "bob")
    await publish(hub, make_wheel(requires_dist=("wander-sdk", "Tools_of.Alice>=0.1")), "alice")
    seen, _, _ = lent("alice", "reverse-text")
    assert seen == {"alice/reverse-text", "alice/tools-of-alice"}


async def test_a_requirement_opens_nothing_of_others(hub, make_wheel, lent):
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
