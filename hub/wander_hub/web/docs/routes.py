"""The pages of the documentation. Everyone can read them, even on a hub with only private environments."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import PlainTextResponse, Response
from wander.types import Record

from wander_hub.database import fill
from wander_hub.http.boundary import optional_identity
from wander_hub.http.problems import HubProblem
from wander_hub.http.responses import REVALIDATE
from wander_hub.http.routing import HubRouter
from wander_hub.web.docs.library import DocPage, Library, list_pages
from wander_hub.web.templates import as_json, page, wants, wants_json

router = HubRouter(prefix="/docs", include_in_schema=False, dependencies=[Depends(optional_identity)])

_MARKDOWN = ".md"
_MARKDOWN_TYPE = "text/markdown"


class DocsEntry(Record):
    """A page of the documentation, or one of its sections."""

    address: str
    title: str
    heading: str = ""
    excerpt: str = ""


class DocsEntries(Record):
    """All pages, or the sections that match a search, best first."""

    data: list[DocsEntry]


class DocsText(Record):
    """One page of the documentation."""

    path: str
    title: str
    text: str
    """The page as Markdown."""


@router.get("")
def show_contents(request: Request) -> Response:
    """The table of contents."""
    if wants_json(request):
        pages = list_pages().values()
        return as_json(
            DocsEntries(data=[DocsEntry(address=f"/docs/{one.path}", title=one.title) for one in pages])
        )
    _library(request).prepare_search()
    return page(request, "docs/contents.html", shared=True, menu=_menu(), q="", found=None)


@router.get("/search")
def search_docs(request: Request, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """The sections that match a search."""
    found = _library(request).index.find(q) if q.strip() else None
    if wants_json(request):
        hits = [fill(DocsEntry, one, excerpt=one.excerpt.striptags()) for one in found or []]
        return as_json(DocsEntries(data=hits))
    return page(request, "docs/contents.html", shared=True, menu=_menu(), q=q, found=found)


@router.get("/{path:path}")
def show_page(request: Request, path: str) -> Response:
    """One page, as Markdown if its address ends in `.md` or the request asks for Markdown."""
    pages = list(list_pages().values())
    names = [one.path for one in pages]
    wanted = path.removesuffix(_MARKDOWN)
    if wanted not in names:
        hint = "`/docs` lists all pages and searches them"
        raise HubProblem(404, "no_such_page", f"the documentation has no page `{path[:100]}`", hint=hint)
    if path.endswith(_MARKDOWN) or wants(request, _MARKDOWN_TYPE):
        headers = {"Cache-Control": REVALIDATE, "Vary": "Accept"}
        return PlainTextResponse(_library(request).read(wanted), media_type=_MARKDOWN_TYPE, headers=headers)
    place = names.index(wanted)
    if wants_json(request):
        text = _library(request).read(wanted)
        return as_json(DocsText(path=wanted, title=pages[place].title, text=text))
    _library(request).prepare_search()
    return page(
        *(request, "docs/page.html"),
        shared=True,
        menu=_menu(),
        shown=pages[place],
        drawn=_library(request).draw(wanted),
        before=pages[place - 1] if place else None,
        after=pages[place + 1] if place + 1 < len(pages) else None,
    )


def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


def _menu() -> list[tuple[str, list[tuple[str, list[DocPage]]]]]:
    """Return the pages by section, then by folded part."""
    return [
        (section, [(deeper, list(some)) for deeper, some in groupby(pages, key=lambda one: one.deeper)])
        for section, pages in groupby(list_pages().values(), key=lambda one: one.section)
    ]
