"""People see to their account, owners and environments on pages, by forms that do what the API does."""

from __future__ import annotations

import base64
import html
import re
from typing import Any

import pytest
from browsers import PASSWORD, browser, form, give_password
from pyotp import parse_uri
from sqlalchemy import delete
from wander_hub.audit import list_entries
from wander_hub.people.models import SignInAttempts

HTML = {"Accept": "text/html"}


@pytest.fixture
async def alice(hub: Any) -> Any:
    """A browser in which alice is signed in."""
    give_password(hub, "alice", "bob")
    async with browser(hub) as client:
        await form(client, "/login", name="alice", password=PASSWORD)
        client.headers.update(HTML)
        yield client


async def send(client: Any, which: str, /, **fields: Any) -> Any:
    return await form(client, f"/account/forms/{which}", **fields)


async def test_a_token_is_created_shown_once_and_revoked(hub, alice):
    made = await send(alice, "token", name="ci <b>", scopes=["read", "publish"], days="7", target="alice")
    assert made.status_code == 200, made.text
    secret = re.search(r"wnd_\w+", made.text)[0]
    whoami = (await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {secret}"})).json()
    assert (whoami["user"], whoami["token"]["scopes"]) == ("alice", ["read", "publish"])
    page = (await alice.get("/account/tokens")).text
    assert "ci &lt;b&gt;" in page
    assert secret not in page
    revoked = await send(alice, "revoke", at_prefix=whoami["token"]["prefix"], back="/account/tokens")
    assert (revoked.status_code, revoked.headers["location"]) == (303, "/account/tokens?done=revoke")
    assert (await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {secret}"})).status_code == 401
    with hub.database.read() as session:
        assert [one.action for one in list_entries(session, actor="alice")][:2] == [
            "token.revoke",
            "token.create",
        ]


async def test_forged_and_anonymous_forms_change_nothing(hub, alice):
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {}):
        answer = await alice.post(
            "/account/forms/token", data={"name": "x", "scopes": "read"}, headers=headers
        )
        assert answer.status_code == 403, headers
    async with browser(hub) as nobody:
        ended = await send(nobody, "token", name="x", scopes="read", back="/account?done=yank")
        assert (ended.status_code, ended.headers["location"]) == (303, "/login?next=/account%3Fdone%3Dyank")
        asked = await nobody.get("/alice/settings", headers=HTML)
        assert asked.headers["location"] == "/login?next=/alice/settings"
    for name, fields, status in (("no-such-form", {}, 404), ("token", {"name": "x" * 20_000}, 413)):
        refused = await send(alice, name, **fields)
        assert (refused.status_code, "<html" in refused.text) == (status, True)
    assert (await send(alice, "revoke")).status_code == 422
    other = await send(alice, "member", at_owner="bob", at_user="alice", role="owner", back="/files/x")
    assert (other.status_code, "Nothing was changed" in other.text) == (403, True)


async def test_a_rejected_form_keeps_its_input(hub, alice):
    typed = {"name": 'ci "<b>"', "scopes": ["results", "publish"], "days": "never", "target": "alice"}
    lost = await send(alice, "token", **typed, back="//elsewhere.test")
    assert (lost.status_code, "elsewhere" in lost.text) == (422, False)
    wrong = await send(alice, "token", **typed, back="/account/tokens")
    assert wrong.status_code == 422
    assert "<h1>Tokens</h1>" in wrong.text, "on the page from which it came"
    banner = re.search(r'role="alert".*?</div>', wrong.text, re.DOTALL)[0]
    assert "days must be a whole number." in banner
    assert 'value="ci &#34;&lt;b&gt;&#34;"' in wrong.text
    assert re.findall(r'value="(\w+)" checked', wrong.text) == ["results", "publish"]
    assert re.search(r'name="days"[^>]* value="never" aria-invalid=true', wrong.text)
    assert "is missing" in (await send(alice, "token", scopes="read", days="7")).text
    secrets = {"old": "my old words", "new": "my new words", "again": "other words", "code": "123456"}
    apart = await send(alice, "password", **secrets, back="/account/password")
    assert "the two new passwords differ" in apart.text
    assert not any(one in apart.text for one in secrets.values())
    await hub.publish()
    at = {"at_owner": "alice", "at_name": "reverse-text", "back": "/account"}
    page = {
        "Referer": "http://hub.test/alice/reverse-text/settings?done=status",
        "Sec-Fetch-Site": "same-origin",
    }
    some = {**at, "status": "deprecated", "successor": "no such", "reason": "old"}
    came = await alice.post("/account/forms/status", data=some, headers=page)
    assert "<option selected>deprecated" in came.text
    assert 'value="no such"' in came.text
    assert "Done." not in came.text
    for elsewhere in ("/live/x", "/api/v1/whoami"):
        odd = await send(alice, "status", **{**some, "back": elsewhere})
        assert (odd.status_code, "<h1>Nothing was changed</h1>" in odd.text) == (came.status_code, True)


async def test_owners_invite_people_who_accept_or_decline(hub, alice):
    assert (await send(alice, "organization", name="lab")).status_code == 303
    page = await alice.get("/lab/settings")
    assert page.status_code == 200
    back = "/lab/settings"
    assert (
        await send(alice, "member", at_owner="lab", at_user="bob", role="maintainer", back=back)
    ).status_code == 303
    assert "invited until" in (await alice.get(back)).text
    assert (await send(alice, "new-environments", at_owner="lab", visibility="internal")).status_code == 303
    assert 'value="internal" checked' in (await alice.get(f"{back}/new-environments")).text
    assert '<a href="/lab/settings">' in (await alice.get("/lab", headers=HTML)).text
    async with browser(hub) as bob:
        await form(bob, "/login", name="bob", password=PASSWORD)
        waiting = (await bob.get("/account", headers=HTML)).text
        number = re.search(r'name="at_invitation" value="(\d+)"', waiting)[1]
        assert (await send(bob, "accept", at_invitation=number)).status_code == 303
        assert ">lab</a>" in (await bob.get("/account", headers=HTML)).text
        assert (await bob.get(back, headers=HTML)).status_code == 403
        assert back not in (await bob.get("/lab", headers=HTML)).text, "a maintainer does not manage it"
    made = await send(alice, "webhook", owner="lab", url="https://example.org/hook", events=["run.posted"])
    assert "It is shown only once" in made.text
    await see_to_a_webhook(alice, f"{back}/webhooks")
    assert "https://example.org/hook" in html.unescape((await alice.get(f"{back}/webhooks")).text)
    log = html.unescape((await alice.get(f"{back}/audit")).text)
    assert ("invitation.accept" in log, "role: maintainer" in log) == (True, True), "details in words"
    log = html.unescape((await alice.get(f"{back}/audit?action=invitation")).text)
    assert ("invitation.accept" in log, "owner.settings" in log) == (True, False)
    assert "No entries match." in (await alice.get(f"{back}/audit?before=1")).text


async def see_to_a_webhook(alice: Any, settings: str) -> None:
    """Change an owner's webhook, renew its secret, and have it told again."""
    here = re.search(r'href="(/account/webhooks/\d+)"', (await alice.get(settings)).text)[1]
    at = {"at_webhook": here.rpartition("/")[2], "back": here}
    changed = await send(
        alice, "change-webhook", **at, url="https://example.org/hook?<i>", events="run.level"
    )
    assert changed.headers["location"] == f"{here}?done=change-webhook"
    renewed = await send(alice, "renew-webhook", **at)
    assert "new secret" in renewed.text
    assert "It is shown only once" in renewed.text
    assert (await send(alice, "try-webhook", **at)).status_code == 303
    page = (await alice.get(here)).text
    assert "https://example.org/hook?&lt;i&gt;" in page
    assert "webhook.test" in page
    assert re.search(r'value="run.level" checked', page)
    assert (await send(alice, "redeliver", **at, at_delivery="1")).status_code == 303
    sent = html.unescape((await alice.get(f"{here}/deliveries/1")).text)
    assert '"type":"webhook.test"' in sent, "what is sent, byte by byte"
    assert (await alice.get(f"{here}/deliveries/7")).status_code == 404
    async with alice.__class__(transport=alice._transport, base_url=alice.base_url) as nobody:
        assert (await nobody.get(here, headers=HTML)).headers["location"].startswith("/login?next=")


async def test_an_environment_is_managed_on_its_page(hub, alice):
    await hub.publish()
    back, at = "/alice/reverse-text/settings", {"at_owner": "alice", "at_name": "reverse-text"}
    page = await alice.get(back)
    assert page.status_code == 200, page.text
    own = {"owner": "alice", "environment": "reverse-text", "url": "https://example.org/one"}
    assert "It is shown only once" in (await send(alice, "webhook", **own, back=back)).text
    assert "https://example.org/one" in (await alice.get(f"{back}/webhooks")).text
    member = "/api/v1/environments/alice/reverse-text/members/bob"
    assert (await hub.client.put(member, json={"role": "owner"}, headers=hub.auth())).status_code == 200
    (offered,) = (await hub.get("/api/v1/account/invitations", headers=hub.auth("bob"))).json()["data"]
    accept = f"/api/v1/account/invitations/{offered['id']}/accept"
    assert (await hub.client.post(accept, headers=hub.auth("bob"))).status_code == 200
    seen = (await hub.get(f"{back}/members", headers=hub.auth("bob") | HTML)).text
    assert "bob</td><td>owner</td>" in re.sub(r"\s", "", seen)
    listed = (await hub.get("/account", headers=hub.auth("bob") | HTML)).text
    assert f'>alice/reverse-text</a> <span class="muted">owner</span> · <a href="{back}">' in listed
    there = {"at_owner": "alice", "at_name": "reverse-text", "back": back}
    assert (
        await send(alice, "environment-member", **there, at_user="nobody-yet", role="reader")
    ).status_code == 303
    assert "Withdraw" in (await alice.get(f"{back}/members")).text
    gone = await send(alice, "remove-environment-member", **there, at_user="nobody-yet")
    assert (gone.status_code, "Withdraw" in (await alice.get(f"{back}/members")).text) == (303, False)
    assert ("Visibility" in seen, "Webhooks" in seen) == (True, False), "those are for the owner's owners"
    assert (await hub.get(f"{back}/webhooks", headers=hub.auth("bob") | HTML)).status_code == 404
    api = "/api/v1/environments/alice/reverse-text"
    await send(alice, "yank", **at, at_version="0.1.0", reason="wrong <b>", back=back)
    assert "yanked: wrong &lt;b&gt;" in (await alice.get(f"{back}/versions")).text
    assert (await hub.get(api)).json()["latest"]["yanked_reason"] == "wrong <b>"
    assert (await send(alice, "unyank", **at, at_version="0.1.0", back=back)).status_code == 303
    assert (await send(alice, "status", **at, status="archived", reason="done")).status_code == 303
    assert (await send(alice, "status", **at, status="active")).status_code == 303
    assert (await send(alice, "visibility", **at, visibility="private")).status_code == 303
    assert (await hub.get(api)).status_code == 404
    assert 'value="private" checked' in (await alice.get(f"{back}/visibility")).text
    assert (await send(alice, "visibility", **at, visibility="public")).status_code == 303
    assert (await send(alice, "transfer", **at, owner="alice", name="other-name")).status_code == 303
    assert (await hub.get("/api/v1/environments/alice/other-name")).status_code == 200
    stale = await send(alice, "status", **at, status="archived")
    assert (stale.status_code, "was renamed" in stale.text) == (409, True)


async def test_settings_are_sections_next_to_a_menu(hub, alice):
    await hub.publish()
    for here in ("/account", "/alice/settings", "/alice/reverse-text/settings"):
        menu = (await alice.get(here)).text.partition('class="side-menu"')[2].partition("</nav>")[0]
        links = re.findall(r'href="([^"]+)"', menu)
        assert (links[0], len(links) > 5) == (here, True)
        for link in links:
            section = await alice.get(link)
            assert section.status_code == 200, link
            assert f'<a href="{link}" aria-current="page">' in section.text
            assert section.text.count("<h1>") == 1
            assert section.text.count('class="primary"') <= 1, "one button is what the section is for"
        assert (await alice.get(f"{here}/no-such")).status_code == 404
    asked = await alice.get("/alice/reverse-text/settings/members", headers=hub.auth("bob"))
    assert asked.status_code == 403


async def test_keys_and_publishers_are_added_and_removed(hub, alice):
    public = base64.b64encode(bytes(range(32))).decode()
    assert "No signing keys yet" in (await alice.get("/account/keys")).text
    assert (await send(alice, "key", name="laptop <b>", public_key="short")).status_code == 422
    assert (await send(alice, "key", name="laptop <b>", public_key=public)).status_code == 303
    page = (await alice.get("/account/keys")).text
    assert "laptop &lt;b&gt;" in page
    fingerprint = re.search(r'name="at_fingerprint" value="(\w+)"', page)[1]
    assert (await send(alice, "revoke-key", at_fingerprint=fingerprint)).status_code == 303
    assert fingerprint not in re.findall(r'value="(\w+)"', (await alice.get("/account/keys")).text)
    back = "/alice/settings/publishers"
    typed = {
        "at_owner": "alice",
        "kind": "github",
        "subject": "acme/<b>",
        "name": "reverse-text",
        "back": back,
    }
    wrong = await send(alice, "publisher", **typed)
    assert "the file name of the workflow is missing" in wrong.text
    assert 'value="acme/&lt;b&gt;"' in wrong.text
    right = {**typed, "subject": "acme/environments", "workflow": "release.yml"}
    assert (await send(alice, "publisher", **right)).status_code == 303
    number = re.search(r'name="at_publisher" value="(\d+)"', (await alice.get(back)).text)[1]
    at = {"at_owner": "alice", "at_publisher": number}
    assert (await send(alice, "remove-publisher", **at)).status_code == 303
    assert "at_publisher" not in (await alice.get(back)).text


async def test_a_run_is_hidden_shown_and_withdrawn_on_its_page(hub, alice, run_of):
    manifest, rollouts = run_of(await hub.publish(), reward=0.5)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    page, at = (
        f"/runs/{manifest['run_id']}",
        {"at_run": manifest["run_id"], "back": f"/runs/{manifest['run_id']}"},
    )
    nobody = (await hub.get(page, headers=hub.auth("bob") | HTML)).text
    assert not any(word in nobody for word in ("Hide from leaderboard", "at_reason", "Rename"))
    assert (await send(alice, "rename-run", **at, name="x" * 101)).status_code == 422
    assert (await send(alice, "rename-run", **at, name="a longer <b>")).status_code == 303
    assert '<span class="called">a longer &lt;b&gt;</span>' in (await alice.get(page)).text
    assert "at least 3 characters" in (await send(alice, "hide-run", **at, reason="x")).text
    assert (await send(alice, "hide-run", **at, reason="made by <b>")).status_code == 303
    hidden = (await alice.get(page)).text
    assert "Hidden from its leaderboard by alice" in hidden
    assert "made by &lt;b&gt;" in hidden
    assert (await send(alice, "show-run", **at)).status_code == 303
    assert "Hidden from" not in (await alice.get(page)).text
    assert (await send(alice, "withdraw-run", **at, at_reason="wrong & <b>?")).status_code == 303
    gone = (await alice.get(page)).text
    assert "wrong &amp; &lt;b&gt;?" in gone
    assert "at_reason" not in gone
    log = (await alice.get("/alice/settings/audit")).text
    assert f'<a href="{page}">' in log


async def test_password_and_second_factor_are_changed_only_on_the_page(hub, alice):
    back, new = "/account/password", "eight red bottles fell"
    stolen, other = browser(hub), browser(hub)
    stolen.cookies.update(alice.cookies)
    await form(other, "/login", name="alice", password=PASSWORD)
    assert (await send(alice, "password", old=PASSWORD, new=new, again="x")).status_code == 422
    wrong = await send(alice, "password", old="x", new=new, again=new, back=back)
    assert (wrong.status_code, "Nothing was changed" in wrong.text) == (403, True)
    weak = await send(alice, "password", old=PASSWORD, new="password12", again="password12")
    assert (weak.status_code, "is easy to guess" in weak.text) == (422, True)
    changed = await send(alice, "password", old=PASSWORD, new=new, again=new, back=back)
    assert changed.headers["location"] == "/account/password?done=password"
    assert "signed out in all other browsers" in (await alice.get(f"{back}?done=password")).text
    for one in (stolen, other):
        assert (await one.get("/account", headers=HTML)).status_code == 303, "a copied cookie ends too"
    begun = await send(alice, "second-factor", password=new, back="/account")
    uri = html.unescape(re.search(r"otpauth://[^<]+", begun.text)[0])
    assert 'src="data:image/svg+xml' in begun.text
    assert 'action="/account/forms/confirm"' in begun.text, "the code is typed beside it"
    stolen.cookies.update(alice.cookies)
    codes = await send(alice, "confirm", code=parse_uri(uri).now(), back="/account")
    assert "recovery codes" in codes.text
    assert (await stolen.get("/account", headers=HTML)).status_code == 303
    recovery = re.search(r'id="secret">([0-9a-f]{20})', codes.text)[1]
    stolen.cookies.update(alice.cookies)
    for _ in range(5):  # who took the cookie and knows the password lacks the factor
        taken = await send(stolen, "password", old=new, new=PASSWORD, again=PASSWORD)
        assert taken.status_code == 403
    late = await send(alice, "password", old=new, new=PASSWORD, again=PASSWORD, code=recovery)
    assert late.status_code == 429, "guesses take longer and longer"
    hub.database.commit(lambda session: session.execute(delete(SignInAttempts)))
    assert (
        await send(alice, "password", old=new, new=PASSWORD, again=PASSWORD, code=recovery)
    ).status_code == 303
    for one in (stolen, other):
        await one.aclose()


async def test_administrators_manage_the_hub_on_its_pages(hub, run_of):
    give_password(hub, "admin", "bob")
    manifest, rollouts = run_of(await hub.publish(), reward=0.5)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    pages = [f"/system{one}" for one in ("", "/jobs", "/users", "/organizations", "/audit")]
    async with browser(hub) as admin, browser(hub) as bob:
        await form(admin, "/login", name="admin", password=PASSWORD)
        await form(bob, "/login", name="bob", password=PASSWORD)
        shown = [await admin.get(one, headers=HTML) for one in pages]
        assert [one.status_code for one in shown] == [200] * 5, [one.text for one in shown]
        assert {(await bob.get(one, headers=HTML)).status_code for one in pages} == {403}
        state, jobs, users, organizations, log = (one.text for one in shown)
        assert "database" in state
        assert "SQLite in the data folder" in state
        assert re.search(r"<dd>[\d.]+ k?B of packages, [\d.]+ k?B of runs</dd>", state)
        assert "1 queued" in state
        run_page = f"/runs/{manifest['run_id']}#verification"
        assert f'<a href="{run_page}">run {manifest["run_id"][-10:]} on alice/reverse-text</a>' in jobs
        number = re.search(r"<td>replay</td>", jobs) and re.search(r'name="at_job" value="(\d+)"', jobs)[1]
        back = "/system/jobs?state=canceled"
        assert (await send(admin, "cancel-job", at_job=number, back=back)).status_code == 303
        assert ">Retry</button>" in (await admin.get(back, headers=HTML)).text
        run = (await hub.get(f"/api/v1/runs/{manifest['run_id']}")).json()
        assert run["level"] == "complete", "what is called off lowers nothing"
        assert (await send(admin, "cancel-job", at_job=number)).status_code == 409
        assert (await send(admin, "retry-job", at_job=number, back=back)).status_code == 303
        assert (await send(admin, "retry-job", at_job=number)).status_code == 409
        waiting = (await hub.get("/api/v1/jobs?state=queued&kind=replay", headers=hub.auth("admin"))).json()
        assert [(one["id"], one["attempt"]) for one in waiting["data"]] == [(int(number), 0)]
        assert "Disable" in users
        assert "No users match." in (await admin.get("/system/users?q=no-such", headers=HTML)).text
        some = (await admin.get("/system/users?q=BO", headers=HTML)).text
        assert (">bob</a>" in some, ">alice</a>" in some) == (True, False)
        assert "Remove second factor" not in users, "nobody has one"
        assert (await send(admin, "disable-user", at_user="bob", back="/system/users")).status_code == 303
        assert (await bob.get("/account", headers=HTML)).status_code == 303, "signed out at once"
        assert (await send(admin, "enable-user", at_user="bob", back="/system/users")).status_code == 303
        added = await send(admin, "add-user", name="carol", back="/system/users")
        assert "/login/password#" in added.text or "/login/password?" in added.text
        assert "No organizations yet." in organizations
        assert (
            await send(admin, "quota", at_owner="alice", runs="7", versions="unlimited")
        ).status_code == 303
        assert "1 of 7" in (await admin.get("/system/organizations", headers=HTML)).text
        assert "version.publish" in log or "upload" in log
        found = (
            await admin.get("/system/audit?action=user.disable&actor=admin&since=2020-01-01", headers=HTML)
        ).text
        assert found.count("<tbody><tr>") == 1
        assert 'href="/system/users?q=bob">bob</a>' in found
