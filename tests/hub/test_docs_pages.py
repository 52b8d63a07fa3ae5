"""The documentation as pages of the hub: from the repository's Markdown, with links and search."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import pytest
from wander.wire.verification import LEVEL_FACTS
from wander_hub import app as hub_app
from wander_hub import web
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.settings import Settings
from wander_hub.web.addresses import TERMS
from wander_hub.web.docs import library as docs
from wander_hub.web.docs.library import Library, list_pages

TEMPLATES = Path(web.__file__).parent / "templates"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    """The documentation of a hub that nobody asks, and each page of it once drawn."""
    return create_app(Settings(data=tmp_path_factory.mktemp("docs"))).state.library


def anchors(body: str) -> set[str]:
    return {unescape(one) for one in re.findall(r'\bid="([^"]+)"', body)}


def test_every_link_between_docs_pages_resolves(library):
    pages = {path: str(library.draw(path).body) for path in list_pages()}
    dead = []
    for path, body in pages.items():
        for link in re.findall(r'href="([^"]+)"', body):
            target, _, anchor = unescape(link).removeprefix("/docs/").partition("#")
            target = path if link.startswith("#") else target
            if "://" in link or link.startswith("mailto:"):
                continue
            if target not in pages or (anchor and anchor not in anchors(pages[target])):
                dead.append(f"{path}: {link}")
    assert dead == []
    assert not any("readme-" in body or ":::" in body for body in pages.values())


def test_every_term_on_a_page_links_to_an_existing_heading(library):
    places = [target.partition("#")[::2] for target in TERMS.values()]
    assert [one for one in places if one[1] and one[1] not in anchors(library.draw(one[0]).body)] == []
    told = "".join(file.read_text() for file in TEMPLATES.rglob("*.html"))
    used = set(re.findall(r'(?:term|about|term_address)\("([^"]+)"', told))
    assert used <= {*TERMS}
    assert {*LEVEL_FACTS} <= {*TERMS}


def test_simultaneous_first_requests_render_a_page_once(library, monkeypatch):
    drawing, real = [], docs.render
    monkeypatch.setattr(docs, "render", lambda *given: (drawing.append(1), time.sleep(0.05), real(*given))[2])
    fresh = Library(library._openapi)
    with ThreadPoolExecutor(4) as threads:
        pages = list(threads.map(fresh.draw, ["cli"] * 4))
    assert (len(drawing), len({id(one) for one in pages})) == (1, 1)


async def test_the_docs_search_is_built_without_blocking_pages(tmp_path, monkeypatch):
    begun = asyncio.Event()
    monkeypatch.setattr(hub_app, "_SEARCH_SECONDS", 0)
    monkeypatch.setattr(Library, "prepare_search", lambda library: begun.set())
    database = Database(f"sqlite:///{tmp_path / 'hub.db'}")
    database.migrate()
    app = create_app(Settings(data=tmp_path, bundled_packages=False), database=database)
    async with app.router.lifespan_context(app):
        await begun.wait()
    with app.state.library._index_lock:
        assert app.state.library.draw("cli").title


def test_reference_pages_are_generated_from_code(library):
    commands = library.draw("api/commands").body
    assert "--num-examples" in commands
    assert "WANDER_HUB_READS_PER_MINUTE" in library.draw("self-hosting").body.partition("every-setting")[2]
    assert "GET /api/v1/runs/{run_id}/evidence" in library.draw("api/http").body
    python = library.draw("api").body
    assert "class</span> <span" in python
    assert {"singleturnenv", "scriptedclient"} <= anchors(python)
    assert "examples" in anchors(library.draw("api/hub").body)


def test_docs_search_finds_misspelled_words(library):
    def first(query: str) -> str:
        return library.index.find(query)[0].address

    assert first("interval of the mean") == "/docs/statistics#the-interval-of-the-mean"
    assert first("tokens counted") == "/docs/verification#token-counts"
    assert first("interval".replace("e", "")) == first("interval")
    settings = {one.address for one in library.index.find("WANDER_HUB_FEATURED")}
    assert "/docs/self-hosting#every-setting" in settings
    guides = [one.address for one in library.index.find("interval")[:3]]
    assert not any("/api/" in one for one in guides), "a guide stands before what is looked up"
    assert library.index.find("no-such-thing-anywhere-xyzzy") == []
    assert library.index.find('" OR * NEAR( xyzzy <script>') == []
    assert "<mark>" in library.index.find("withdraw")[0].excerpt
    assert not any("<code>" in one.excerpt for one in library.index.find("code"))


async def test_a_docs_page_has_breadcrumbs_contents_and_neighbors(hub):
    answer = await hub.get("/docs/verification", headers=HTML)
    assert answer.status_code == 200
    page = answer.text
    assert "<h1>Verification</h1>" in page
    assert 'href="/docs/verification" aria-current="page"' in page
    assert '<a href="#token-counts">Token counts</a>' in page
    assert 'rel="prev"' in page
    assert 'rel="next"' in page
    assert '<a href="/docs/statistics">' in page
    assert "script-src http://hub.test/static/" in answer.headers["content-security-policy"]
    markdown = await hub.get("/docs/verification.md")
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert markdown.text.startswith("# Verification\n")


async def test_the_docs_search_works_without_javascript(hub):
    page = (await hub.get("/docs", headers=HTML)).text
    assert '<form action="/docs/search"' in page
    missing = [path for path in list_pages() if f'href="/docs/{path}"' not in page]
    assert missing == []
    found = (await hub.get("/docs/search", params={"q": "<b>pass@k"}, headers=HTML)).text
    assert "/docs/statistics#" in found
    assert "<b>pass" not in found
    nothing = await hub.get("/docs/search?q=no-such-thing-anywhere-xyzzy", headers=HTML)
    assert "No pages match" in nothing.text


async def test_missing_docs_pages_are_404_and_the_user_is_shown(hub):
    for path in ("/docs/no-such-page", "/docs/../settings.py", "/docs/decisions/../../pyproject"):
        answer = await hub.get(path, headers=HTML)
        assert answer.status_code == 404, path
    assert (await hub.get("/docs/", headers=HTML, follow_redirects=False)).status_code in (200, 301)
    assert (await hub.client.head("/docs/authoring")).status_code == 200
    signed_in = await hub.get("/docs/authoring", headers=HTML | hub.auth())
    assert '<a href="/account">alice</a>' in signed_in.text
