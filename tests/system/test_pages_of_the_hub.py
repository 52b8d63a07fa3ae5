"""The hub's pages as readers get them: every link answers, and a real browser shows no fault."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

import httpx
import pytest
from chat_endpoint import chat_endpoint
from chromium import CHROMIUM, browser_page
from hostile_package import ACTS, publish
from page_faults import find_faults

MOST_PAGES = 60
LEFT = re.compile(r"\?file=|/docs/")
"""Pages that are left out: files of a package, and the documentation, which has a test of its own."""


class Links(HTMLParser):
    """Collects what a page points to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images_without_text = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [value for name in ("href", "src") if (value := given.get(name))]
        self.images_without_text += tag == "img" and "alt" not in given


@pytest.fixture(scope="module")
def posted(bundled) -> str:
    """A hub with a posted run; returns the run's id."""
    bundled.wander("install", "admin/reverse-text")
    with chat_endpoint(lambda messages: f"<reversed_text>{ACTS}</reversed_text>") as endpoint:
        run = bundled.home / "runs" / "for-pages"
        model = ["-m", "hostile<script>document.title='taken'", "-b", endpoint.base_url]
        bundled.wander("eval", "admin/reverse-text", *model, "-n", 4, "--out", run)
    return bundled.wander("post", run)["run_id"]


def pages_to_look_at(run_id: str) -> list[str]:
    environment, run = "/admin/reverse-text", f"/runs/{run_id}"
    return ["/", environment, f"{environment}/leaderboard", run, f"{run}/rollouts/0"]


def test_every_link_on_the_pages_works(hub, posted):
    seen, waiting = set(), [f"{hub.url}/"]
    linked = {f"{hub.url}/"}
    with httpx.Client(follow_redirects=True, timeout=30) as browser:
        while waiting and len(seen) < MOST_PAGES:
            address = waiting.pop(0)
            if address in seen:
                continue
            seen.add(address)
            answer = browser.get(address)
            assert answer.status_code == 200, address
            if answer.headers["content-type"].startswith("text/html"):
                links = Links()
                links.feed(answer.text)
                assert links.images_without_text == 0, address
                targets = [urldefrag(urljoin(address, link)).url for link in links.found]
                linked.update(targets)
                waiting += [
                    one
                    for one in targets
                    if one.startswith(hub.url) and one not in seen and not LEFT.search(one)
                ]
    # The hub is that of all tests: there may be more pages than are opened here.
    missing = [page for page in pages_to_look_at(posted) if f"{hub.url}{page}" not in linked]
    assert missing == [], "every page is reached from the first"


NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine; the links are tested without one"
)


@NEEDS_CHROMIUM
@pytest.mark.parametrize(
    ("width", "scheme"),
    [(1280, "light"), pytest.param(390, "dark", marks=pytest.mark.full)],
    ids=["desk", "phone"],
)
def test_a_browser_shows_the_pages_without_errors(hub, posted, width, scheme):
    with browser_page(width, color_scheme=scheme, bypass_csp=width == 390) as page:
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("requestfailed", lambda request: faults.append(f"{request.url} failed"))
        for path in pages_to_look_at(posted):
            answer = page.goto(f"{hub.url}{path}")
            assert answer.status == 200
            assert page.locator("h1").count() == 1, path
            assert page.title() != "taken", f"{path} runs what others wrote"
            assert find_faults(page) == [], path  # the other page kinds: `make screenshots`
        page.goto(f"{hub.url}/runs/{posted}")
        assert page.get_by_text("hostile<script>").count() >= 1, "names are shown, not run"
        page.goto(f"{hub.url}/admin/reverse-text/versions/latest/source#L2-L4")
        assert page.locator(".source .marked").count() == 3, "an address names lines"
        page.locator("#L6 a").click(modifiers=["Shift"])
        assert page.evaluate("location.hash") == "#L2-L6"
        assert faults == []


@NEEDS_CHROMIUM
@pytest.mark.full
def test_text_of_users_cannot_run_or_break_the_layout(hub):
    label, runs = publish(hub.url, hub.token)
    at = f"{hub.url}/{label}/versions/latest/source"
    found = re.search(r'[?&;]file=([^"&]*onerror[^"&]*)', httpx.get(at, timeout=30).text)
    assert found is not None
    odd = html.unescape(found[1])
    paths = ["/?q=evil", f"/{label}", f"/{label}/leaderboard", f"/{label}/versions/latest/source?file={odd}"]
    paths += [f"/runs?environment={label}", f"/runs/{runs[0]}", f"/runs/{runs[0]}/rollouts/0"]
    paths += [f"/runs/{runs[0]}/rollouts/3", f"/runs/compare?run={runs[0]}&run={runs[1]}"]
    faults = []
    with browser_page(1280, bypass_csp=True) as page:
        for path in paths:
            assert page.goto(f"{hub.url}{path}").status == 200, path
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 800})
                faults += [(path, width, one) for one in find_faults(page, axe=False)]
            assert page.title() != "taken", f"{path} runs what others wrote"
    assert faults == []


@NEEDS_CHROMIUM
@pytest.mark.full
def test_the_main_path_works_by_keyboard_and_without_javascript(hub, posted):
    with browser_page(1280) as page:
        page.goto(f"{hub.url}/runs")
        page.keyboard.press("/")
        page.keyboard.type("reverse")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=reverse")
        box = page.locator('#filters input[name="q"]')
        box.fill("tictac")
        page.locator("#results a.name", has_text="admin/tictactoe").first.wait_for()
        page.wait_for_url("**/?q=tictac*")
        box.fill("reverse")
        page.locator("#results a.name", has_text="admin/reverse-text").first.wait_for()
        page.locator("#results a.name").first.press("Enter")
        page.wait_for_url("**/admin/reverse-text")
        page.locator(".choice input").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(".way-1 pre").is_visible()
        assert not page.locator(".way-0 pre").is_visible()
        page.goto(f"{hub.url}/admin/reverse-text/leaderboard")
        page.locator("button.opens").first.focus()
        page.keyboard.press("Enter")
        assert page.get_by_text("The submitter reported").first.is_visible()
        page.keyboard.press("Escape")
        assert not page.get_by_text("The submitter reported").first.is_visible()
        page.get_by_role("link", name="Posted").click()
        assert page.locator("th[aria-sort] a").inner_text().startswith("Posted")
    with browser_page(1280, java_script_enabled=False) as page:
        for path in pages_to_look_at(posted):
            page.goto(f"{hub.url}{path}")
            assert len(page.locator("main").inner_text()) > 200, path
        page.goto(f"{hub.url}/")
        page.fill('#filters input[name="q"]', "reverse")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=reverse*")
        assert page.locator("#results a.name").first.inner_text() == "admin/reverse-text"


@pytest.fixture(scope="module")
def compared(bundled, posted) -> str:
    """Another run of the same examples; returns its id."""
    run = bundled.home / "runs" / "to-compare"
    model = ["-m", "scripted:reverse_text.players:careful"]
    bundled.wander("eval", "admin/reverse-text", *model, "-n", 4, "--out", run)
    return bundled.wander("post", run)["run_id"]


@pytest.fixture(scope="module")
def changed(bundled) -> str:
    """An environment with two versions; returns its name."""
    bundled.wander("new", "changing")
    project = bundled.home / "changing" / "pyproject.toml"
    bundled.wander("publish", project.parent, "--no-check")
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.2.0"'))
    module = project.parent / "changing" / "__init__.py"
    module.write_text(module.read_text() + "\n# told <script>document.title = 'taken'</script>\n")
    bundled.wander("publish", project.parent, "--no-check")
    return "admin/changing"


@NEEDS_CHROMIUM
@pytest.mark.full
def test_runs_are_read_compared_and_explained_by_keyboard(hub, posted, compared, changed):
    with browser_page(1280) as page:
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{hub.url}/runs/{posted}#rollouts")
        page.locator(".explorer tbody a").first.focus()
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/runs/{posted}/rollouts/0*")
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.evaluate("location.hash") == f"#{page.evaluate('document.activeElement.id')}"
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#keys").is_visible()
        page.keyboard.press("]")
        page.wait_for_url(f"**/runs/{posted}/rollouts/1*")
        page.keyboard.press("[")
        page.wait_for_url(f"**/runs/{posted}/rollouts/0*")
        page.keyboard.press("h")
        page.wait_for_url(f"**/runs/{posted}*")
        page.goto(f"{hub.url}/runs/compare?run={posted}&run={compared}")
        assert page.get_by_role("heading", level=1).inner_text() == "Compare runs"
        assert page.locator("svg.scatter circle").count() >= 1
        page.locator("thead").get_by_role("link", name="Difference").press("Enter")
        page.wait_for_url("**/docs/statistics#comparing-two-runs")
        page.keyboard.press("/")
        page.keyboard.type("interval of the mean")
        page.keyboard.press("Enter")
        page.wait_for_url("**/docs/search?q=*")
        page.locator("#results .hits a").first.press("Enter")
        page.wait_for_url("**/docs/statistics#the-interval-of-the-mean")
        page.goto(f"{hub.url}/docs/search")
        page.locator("#filters input").fill("tokens counted")
        page.locator('#results a[href="/docs/verification#token-counts"]').wait_for()
        page.goto(f"{hub.url}/{changed}/versions/0.2.0/source")
        page.locator(".source", has_text="told <script>").wait_for()
        assert page.title() != "taken"
        assert faults == []
    with browser_page(1280, java_script_enabled=False) as page:
        page.goto(f"{hub.url}/docs")
        page.fill("#filters input", "rank")
        page.keyboard.press("Enter")
        page.wait_for_url("**/docs/search?q=rank")
        page.locator("#results .hits a").first.click()
        assert len(page.locator("article").inner_text()) > 200
