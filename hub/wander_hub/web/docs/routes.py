"""The pages of the documentation. Everyone can read them, even on a hub with only private environments."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import PlainTextResponse, Response

from wander_hub.http.boundary import optional_identity
from wander_hub.http.problems import HubProblem
from wander_hub.http.responses import REVALIDATE
from wander_hub.http.routing import HubRouter
from wander_hub.web.docs.library import DocPage, Library, list_pages
from wander_hub.web.templates import page

router = HubRouter(prefix="/docs", include_in_schema=False, dependencies=[Depends(optional_identity)])

_MARKDOWN = ".md"


@router.get("")
def show_contents(request: Request) -> Response:
    """The table of contents."""
    _library(request).prepare_search()
    return page(request, "docs/contents.html", shared=True, menu=_menu(), q="", found=None)


@router.get("/search")
def search_docs(request: Request, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """The sections that match a search."""
    found = _library(request).index.find(q) if q.strip() else None
    return page(request, "docs/contents.html", shared=True, menu=_menu(), q=q, found=found)


@router.get("/{path:path}")
def show_page(request: Request, path: str) -> Response:
    """One page, as Markdown if its address ends in `.md`."""
    pages = list(list_pages().values())
    names = [one.path for one in pages]
    wanted = path.removesuffix(_MARKDOWN)
    if wanted not in names:
        hint = "`/docs` lists all pages and searches them"
        raise HubProblem(404, "no_such_page", f"the documentation has no page `{path[:100]}`", hint=hint)
    if path.endswith(_MARKDOWN):
        headers = {"Cache-Control": REVALIDATE}
        return PlainTextResponse(_library(request).read(wanted), media_type="text/markdown", headers=headers)
    place = names.index(wanted)
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
