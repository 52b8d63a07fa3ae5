"""What people do on pages, in a real browser: sign in, tokens, yanking, webhooks, replays."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from browsers import PASSWORD, give_password
from chromium import CHROMIUM, browser_page
from page_faults import find_faults
from served_app import served
from wander.wire.verification import ReplayReport
from wander_hub.jobs import Lease, TableQueue
from wander_hub.verification import service

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

RUN = "01JRUN0000000000000000000A"
ENVIRONMENT = "/alice/reverse-text"
ACTS = "<img src=x onerror=\"document.title = 'taken'\">"


@contextmanager
def signed_in(url: str, user: str, width: int = 1280, **context: Any) -> Iterator[Any]:
    """Open a browser and sign somebody in, as they would; any error of a page fails."""
    faults: list[str] = []
    with browser_page(width, **context) as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        refused = re.compile("/account/forms/")  # a browser's console tells of each
        page.on(
            "console",
            lambda message: (
                faults.append(message.text)
                if message.type == "error" and not refused.search(message.location["url"])
                else None
            ),
        )
        page.goto(f"{url}/login?next=/account")
        page.fill('input[name="name"]', user)
        page.fill('input[name="password"]', PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/account")
        yield page
    assert faults == []


def see(page: Any, address: str) -> None:
    """Open a page that must have no fault."""
    assert page.goto(address).status == 200, address
    assert page.title() != "taken", address
    assert find_faults(page) == [], address


def press(page: Any, name: str, within: str = "main") -> None:
    page.locator(within).get_by_role("button", name=name, exact=True).first.click()


def see_to_an_account(url: str) -> None:
    """Make a token and revoke it, mark an environment, yank a version, and see to a webhook."""
    with signed_in(url, "alice") as page:
        page.get_by_role("link", name="Tokens").click()
        page.fill('form[action$="/token"] input[name="name"]', f"ci {ACTS}")
        page.fill('form[action$="/token"] input[name="target"]', "nobody/nothing/here")
        press(page, "Create token")
        page.wait_for_function("document.activeElement.innerText.startsWith('Nothing was changed:')")
        assert find_faults(page) == []
        page.fill('form[action$="/token"] input[name="target"]', "")
        press(page, "Create token")
        assert page.locator("#secret").inner_text().startswith("wnd_")
        page.get_by_role("link", name="Continue").click()
        page.get_by_text("ci <img").wait_for()
        page.locator("tr", has_text="ci <img").get_by_text("Revoke…").click()
        page.locator("tr", has_text="ci <img").get_by_role("button", name="Revoke").click()
        page.locator("tr", has_text="ci <img").get_by_text("revoked").wait_for()
        see(page, f"{url}{ENVIRONMENT}")
        see(page, f"{url}{ENVIRONMENT}/settings/versions")
        page.fill('td input[name="reason"]', "wrong")
        press(page, "Yank")
        page.get_by_text("yanked: wrong").wait_for()
        press(page, "Un-yank")
        page.get_by_role("link", name="Webhooks").click()
        page.fill('input[name="url"]', "https://example.org/?<script>alert(1)</script>")
        press(page, "Create webhook")
        page.get_by_text("It is shown only once").wait_for()
        page.get_by_role("link", name="Continue").click()
        page.locator('a[href^="/account/webhooks/"]').click()
        press(page, "Send test event")
        page.locator("tr", has_text="webhook.test").wait_for()
        press(page, "Renew secret")
        page.locator("#secret").wait_for()
        page.get_by_role("link", name="Continue").click()
        page.get_by_text("Choose events").click()
        page.get_by_label("run.level").check()
        press(page, "Save")
        page.get_by_text("Receives run.level").wait_for()
        assert find_faults(page) == []
        assert not page.get_by_role("button", name="Remove webhook").is_visible(), "no stray click removes it"
        page.get_by_text("Remove webhook…").click()
        press(page, "Remove webhook")
        page.wait_for_url("**/settings/webhooks?done=remove-webhook")
        assert page.locator('a[href^="/account/webhooks/"]').count() == 0


class Replay:
    """A replay that another process works on: the rows of its job are what that one would write."""

    def __init__(self, hub: Any) -> None:
        self.queue = TableQueue(hub.database)
        self.lease: Lease | None = None

    def tell(self, **progress: int) -> None:
        self.lease = self.lease or self.queue.claim("another process", [service.KIND])
        assert self.lease is not None
        self.queue.beat(self.lease, progress)

    def end(self) -> None:
        lease, counts = self.lease, {"expected": 6, "recorded": 6, "replayed": 6, "same": 6}
        assert lease is not None
        report = ReplayReport(run_id=RUN, differing=0, failed=0, **counts)
        self.queue.finish(lease, lambda session: service.store_report(session, lease.job_id, report, None))
        self.lease = None


def follow_a_replay(url: str, replay: Replay) -> None:
    """See a replay move and end, and ask for another one."""
    with signed_in(url, "bob") as page:
        see(page, f"{url}/runs/{RUN}?limit=2")
        box = page.locator("#replays")
        box.get_by_text("queued").wait_for()
        replay.tell(done=2, total=6, differing=0)
        page.reload()
        box.get_by_text("2 of 6 rollouts").wait_for()
        assert box.locator("progress").get_attribute("value") == "2"
        replay.end()
        page.reload()
        page.locator("#standing .badge", has_text="replayed").wait_for()
        box.get_by_text("6 of 6 rollouts matched").wait_for()
        page.locator("#proofs").get_by_text("Does not prove").wait_for()
        assert page.locator(".explorer.all tbody a").count() == 6, "all rows, in one list that scrolls"
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "0"
        box.get_by_label("Up to level").select_option("replayed")
        press(page, "Replay", "#replays")
        page.wait_for_url("**done=verify*")
        replay.tell(done=5, total=6, differing=0)
        page.reload()
        box.get_by_text("5 of 6 rollouts").wait_for()
        box.get_by_text("requested by bob").wait_for()
        replay.end()
        page.reload()
        page.locator("#replays progress").wait_for(state="detached")


def read_without_a_script(url: str) -> None:
    """Ask for a replay by forms alone; the page says how to look again."""
    with signed_in(url, "bob", java_script_enabled=False) as page:
        page.goto(f"{url}/runs/{RUN}")
        press(page, "Replay", "#replays")
        page.get_by_role("link", name="Reload this page").click()
        page.locator("#replays").get_by_text("queued").wait_for()
        press(page, "Cancel", "#replays")
        page.get_by_role("link", name="Reload this page").wait_for(state="detached")


def administer(url: str) -> None:
    """See the hub as its administrator, on a phone in the dark too."""
    for width, scheme in ((1280, "light"), (390, "dark")):
        with signed_in(url, "admin", width, color_scheme=scheme, bypass_csp=True) as page:
            for path in ("", "/jobs", "/users", "/organizations", "/audit"):
                see(page, f"{url}/system{path}")
            page.goto(f"{url}/system/jobs?state=canceled")
            press(page, "Retry")
            page.goto(f"{url}/system/jobs?state=queued&kind=replay")
            press(page, "Cancel")
            page.get_by_text("No jobs.").wait_for()


def wait_for_rows(url: str) -> None:
    """Look at a run while the rows of its table do not arrive, and when they do."""
    held: list[Any] = []
    with browser_page(1280) as page:
        page.route("**/rows?*", lambda route: held.append(route))
        page.goto(f"{url}/runs/{RUN}?limit=2")
        rows = page.locator(".explorer.all tbody a")
        page.locator(".explorer-state", has_text="Loading").wait_for()
        assert rows.count() == 2, "the page's own rows stay"
        (request,) = held
        request.continue_()
        page.locator(".explorer.all tbody a").nth(5).wait_for()
        assert rows.count() == 6
        assert page.locator(".explorer-state").text_content() == ""


async def test_the_rows_of_a_run_stay_while_the_others_are_loaded(hub, run_of):
    assert (await hub.post_run(*run_of(await hub.publish()))).status_code == 201
    async with served(hub.client._transport.app) as door:
        await asyncio.to_thread(wait_for_rows, door.url)


async def test_the_main_tasks_work_on_pages(hub, run_of):
    give_password(hub, "admin", "alice", "bob")
    manifest, rollouts = run_of(await hub.publish(), reward=0.5, model=ACTS)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    async with served(hub.client._transport.app) as door:
        await asyncio.to_thread(see_to_an_account, door.url)
        await asyncio.to_thread(follow_a_replay, door.url, Replay(hub))
        await asyncio.to_thread(read_without_a_script, door.url)
        await asyncio.to_thread(administer, door.url)
