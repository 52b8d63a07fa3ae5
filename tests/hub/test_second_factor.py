"""The second factor: codes of an authenticator app, each good once, and recovery codes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from browsers import PASSWORD, browser, form, give_password
from click.testing import CliRunner
from pyotp import TOTP, parse_uri
from sqlalchemy import select, text, update
from wander_hub.accounts import repository as accounts
from wander_hub.audit import list_entries
from wander_hub.cli.main import app as command
from wander_hub.database import now
from wander_hub.people import second_factor, sign_in
from wander_hub.people.models import BrowserSession, OneTimeCode, SignInAttempts

PLACE = "/api/v1/account/second-factor"


class Phone:
    """An authenticator app, and the time."""

    def __init__(self) -> None:
        self.secret, self.moment = "", now()

    def code(self) -> str:
        """Return the code of a fresh time step."""
        self.moment += timedelta(seconds=30)
        return TOTP(self.secret).at(self.moment)


@pytest.fixture
def phone(hub, monkeypatch):
    give_password(hub, "alice", "bob")
    found = Phone()
    monkeypatch.setattr(second_factor, "now", lambda: found.moment)
    return found


async def ask(hub, method: str, path: str = PLACE, who: str = "alice", **body: str):
    return await hub.client.request(method, path, headers=hub.auth(who), json=body or None)


@pytest.fixture
async def recovery(hub, phone) -> list[str]:
    """Alice's recovery codes: her second factor is on."""
    phone.secret = (await ask(hub, "POST", password=PASSWORD)).json()["secret"]
    return (await ask(hub, "PUT", code=phone.code())).json()["data"]


async def enter(client, second: str = "", name: str = "alice", password: str = PASSWORD):
    return await form(client, "/login", name=name, password=password, second=second)


async def test_the_second_factor_is_required_after_its_confirmation(hub, phone):
    assert (await ask(hub, "PUT", code="000000")).json()["code"] == "nothing_to_confirm"
    assert (await ask(hub, "POST", password="x")).json()["code"] == "wrong_password"
    assert (await ask(hub, "POST", who="admin", password="x")).json()["code"] == "no_password"
    made = (await ask(hub, "POST", password=PASSWORD)).json()
    phone.secret = made["secret"]
    assert parse_uri(made["uri"]).secret == phone.secret
    assert (await ask(hub, "GET")).json() == {"on": False, "recovery_codes": 0}
    async with browser(hub) as client:
        assert (await enter(client)).status_code == 303, "not yet"
        assert (await ask(hub, "PUT", code="abc")).json()["code"] == "wrong_code"
        codes = (await ask(hub, "PUT", code=phone.code())).json()["data"]
        assert (await client.get("/api/v1/whoami")).status_code == 401, (
            "who was in signs in again, with a code"
        )
    assert len(set(codes)) == 10
    assert (await ask(hub, "GET")).json() == {"on": True, "recovery_codes": 10}
    assert (await ask(hub, "POST", password=PASSWORD)).json()["code"] == "second_factor_on"
    with hub.database.read() as session:
        kept = str(session.execute(text("SELECT recovery FROM second_factors")).all())
        told = str([vars(one) for one in list_entries(session)])
    assert not any(code in kept + told for code in codes)
    assert phone.secret not in told


async def test_a_code_works_once_and_errors_reveal_nothing(hub, phone, recovery):
    async with browser(hub) as client:
        said = [await enter(client), await enter(client, "000000"), await enter(client, password="x")]
        code = phone.code()
        assert (await enter(client, f"{code[:3]} {code[3:]}")).status_code == 303
        said.append(await enter(client, code))
        older = TOTP(phone.secret).at(phone.moment - timedelta(seconds=30))
        said.append(await enter(client, older))
        assert {(one.status_code, one.text) for one in said} == {(401, said[0].text)}
        assert (await enter(client, recovery[0].upper())).status_code == 303
        assert (await enter(client, recovery[0])).status_code == 401
        assert (await enter(client, "whatever", name="bob")).status_code == 303, (
            "who has none may type anything"
        )
    assert (await ask(hub, "GET")).json()["recovery_codes"] == 9


async def test_one_code_signs_in_only_once(hub, phone, recovery):
    async with browser(hub) as client:
        for code in (phone.code(), recovery[1]):
            tries = await asyncio.gather(*(enter(client, code) for _ in range(3)))
            assert [one.status_code for one in tries].count(303) == 1


async def test_changing_the_password_requires_a_code(hub, phone, recovery):
    place, new = "/api/v1/account/password", "eight red bottles fell"
    assert (await ask(hub, "PUT", place, old=PASSWORD, new=new)).json()["code"] == "wrong_code"
    assert (await ask(hub, "PUT", place, old=PASSWORD, new=new, code=phone.code())).status_code == 204
    with hub.database.write() as session:
        link = sign_in.make_code(session, accounts.user_named(session, "alice"))
    async with browser(hub) as client:
        chosen = {"code": link, "password": PASSWORD}
        assert (await form(client, "/login/password", **chosen)).status_code == 403
        with hub.database.read() as session:
            assert session.scalar(select(OneTimeCode)) is not None, "the link is not used up"
            assert session.scalar(select(BrowserSession)) is None
        assert (await form(client, "/login/password", **chosen, second=phone.code())).status_code == 303
    for code, status in (("", 403), (recovery[2], 204)):
        assert (await ask(hub, "POST", f"{PLACE}/off", code=code)).status_code == status
    async with browser(hub) as client:
        assert (await enter(client)).status_code == 303


async def test_guessing_second_factor_codes_is_limited(hub, phone, recovery):
    for number in range(12):
        async with browser(hub, address=f"192.0.{number}.9") as client:
            assert (await enter(client, "000000")).status_code == 401
    with hub.database.write() as session:
        waits = (
            update(SignInAttempts)
            .where(SignInAttempts.failures >= 10)
            .values(until=now() + timedelta(minutes=9))
        )
        assert session.execute(waits).rowcount == 1
    async with browser(hub, address="198.51.100.1") as client:
        assert (await enter(client, phone.code())).status_code == 401, "for a while no guess is taken"
    late = await ask(hub, "POST", f"{PLACE}/off", code=recovery[3])
    assert (late.status_code, late.json()["code"]) == (429, "too_many_attempts")
    with hub.database.write() as session:
        session.execute(text("DELETE FROM attempts"))
    for number in range(12):  # who does not know it keeps nobody out
        async with browser(hub, address=f"192.0.{number}.9") as client:
            await enter(client, "000000", password="x")
    async with browser(hub, address="198.51.100.1") as client:
        assert (await enter(client, phone.code())).status_code == 303
    with hub.database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM attempts WHERE failures > 10")) == 0


async def test_an_operator_can_reset_a_second_factor(hub, recovery, monkeypatch):
    monkeypatch.setenv("WANDER_HUB_DATABASE_URL", hub.database.url)
    monkeypatch.setenv("WANDER_HUB_DATA", str(hub.settings.data))
    for words, said in (([], "on"), (["--remove"], "off"), ([], "off")):
        done = CliRunner().invoke(command, ["user", "second-factor", "alice", *words])
        assert done.stdout == f"the second factor of `alice` is {said}\n", done.output
    async with browser(hub) as client:
        assert (await enter(client)).status_code == 303
