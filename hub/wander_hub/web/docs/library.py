"""The pages of the documentation: their files, their order, and their HTML, which is drawn at first use."""

from __future__ import annotations

import posixpath
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from wander_hub.environments.readme import PREFIX, Heading, list_headings, place, render
from wander_hub.web.docs import reference
from wander_hub.web.docs.search import DocSection, SearchIndex
from wander_hub.web.source import color_blocks

_HERE = Path(__file__).parent
_SHIPPED = _HERE / "pages"
_CHECKOUT = _HERE.parents[3]
_FENCED = re.compile(r"(?ms)^(?P<fence>`{3,})(?P<language>\w*)(?: (?P<file>\S+))?\n.*?^(?P=fence)$")
_LINK = re.compile(r'<a href="([^"#:]*\.md|[^":]*/)?(#[^"]*)?"( rel="[^"]*")?>(.*?)</a>', re.DOTALL)
_OTHER_FILE = re.compile(r'<a href="(?!/|#|https?:|mailto:)[^"]*"[^>]*>(.*?)</a>', re.DOTALL)
_SECTION = re.compile(r'<h[23] id="([^"]+)">(.*?)</h[23]>', re.DOTALL)
_CELLS = re.compile(r"</t[dh]>\s*<t[dh]>")
_ROW = re.compile(r"<tr>\s*<td><code>([\w.@-]+)</code>")
_ID = re.compile(r'\bid="([^"]+)"')
_OWN_ID = re.compile(rf'(id="|href="#){PREFIX}')


@dataclass(frozen=True)
class DocPage:
    """One page of the documentation."""

    path: str
    """Path below `/docs/`, without a suffix."""
    title: str
    """Title in menus."""
    section: str
    deeper: str
    """Folded part of the section that contains the page. Empty if the page is always visible."""


@dataclass(frozen=True)
class DrawnPage:
    """A page as HTML."""

    title: str
    plain: str
    """HTML without syntax colors. The search does not need them, and they take a third of the time."""
    headings: list[Heading]

    @cached_property
    def body(self) -> Markup:
        """The HTML that is shown, with syntax colors."""
        return Markup(color_blocks(self.plain))  # noqa: S704 - cleaned by `render`

    @property
    def summary(self) -> str:
        """The first paragraph as text."""
        first = self.plain.partition("<p>")[2].partition("</p>")[0]
        return Markup(first).striptags()  # noqa: S704 - tags are taken off


@cache
def list_pages() -> dict[str, DocPage]:
    """Return every page by its path, in the order of the menu."""
    menu = tomllib.loads((_folder() / "menu.toml").read_text())["nav"]
    pages = (DocPage(_address(file), *rest) for file, *rest in _walk(menu))
    return {page.path: page for page in pages}


class Library:
    """The documentation of one hub, with a list of the hub's HTTP routes."""

    def __init__(self, openapi: Callable[[], dict[str, Any]]) -> None:
        self._openapi = openapi
        # Readers who ask at the same time share one drawing. Pages do not wait for the index, which has its
        # own lock.
        self._lock, self._index_lock = threading.RLock(), threading.Lock()
        self._drawn: dict[str, DrawnPage] = {}
        self._is_preparing = False

    def read(self, path: str) -> str:
        """Return the Markdown of a page, with its generated parts."""
        with self._lock:  # generating takes seconds, so only one reader does it
            return reference.fill(path, _source(path).read_text(), self._openapi)

    def draw(self, path: str) -> DrawnPage:
        """Return a page as HTML. Links to files become links to pages."""
        if path not in self._drawn:
            with self._lock:
                self._drawn[path] = self._drawn.get(path) or self._draw(path)
        return self._drawn[path]

    def _draw(self, path: str) -> DrawnPage:
        title, _, text = self.read(path).partition("\n")
        drawn = render(_name_files(text), "text/markdown")
        headings = [one._replace(name=one.name.removeprefix(PREFIX)) for one in list_headings(drawn)]
        drawn = _turn_links(_OWN_ID.sub(r"\1", drawn), path)
        return DrawnPage(title.lstrip("# "), _name_rows(place(drawn, None)), headings)

    def prepare_search(self) -> None:
        """Start to draw all pages in the background, because the first search needs them."""
        if not self._is_preparing:
            self._is_preparing = True
            threading.Thread(target=lambda: self.index, daemon=True).start()

    @property
    def index(self) -> SearchIndex:
        """The search index of all pages."""
        with self._index_lock:
            return self._index

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex(section for path in list_pages() for section in self._sections(path))

    def _sections(self, path: str) -> Iterator[DocSection]:
        """Yield the sections of a page, each with its heading."""
        page = self.draw(path)
        first, *parts = _SECTION.split(page.plain)
        yield DocSection(path, "", page.title, "", _plain(first))
        for anchor, heading, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            yield DocSection(path, anchor, page.title, _plain(heading), _plain(text))


def _plain(drawn: str) -> str:
    text = _CELLS.sub(" · ", drawn).replace("<", " <")
    return " ".join(Markup(text).striptags().split())  # noqa: S704 - tags are taken off


def _folder() -> Path:
    return _SHIPPED if _SHIPPED.is_dir() else _CHECKOUT / "docs"


def _source(path: str) -> Path:
    file = _folder() / f"{path}.md"
    return file if file.is_file() else _folder() / path / "README.md"


def _walk(menu: list[dict[str, Any]], section: str = "", deeper: str = "") -> Iterator[tuple[str, ...]]:
    """Yield the file, title, section and folded part of each menu entry."""
    for entry in menu:
        for title, value in entry.items():
            if isinstance(value, list):
                yield from _walk(value, section or title, title if section else "")
            else:
                yield value, title, section, deeper


def _address(file: str) -> str:
    return file.removesuffix(".md").removesuffix("/README")


def _name_files(text: str) -> str:
    """Put the file name of each block of code above the block."""
    return _FENCED.sub(lambda block: f"`{block['file']}`\n\n{block[0]}" if block["file"] else block[0], text)


def _name_rows(drawn: str) -> str:
    """Give table rows an ID from the code in their first cell, unless a heading has the same ID."""
    taken = set(_ID.findall(drawn))

    def name(row: re.Match[str]) -> str:
        word = row[1].lower()
        if word in taken:
            return row[0]
        taken.add(word)
        return f'<tr id="{word}">{row[0].removeprefix("<tr>")}'

    return _ROW.sub(name, drawn)


def _turn_links(drawn: str, path: str) -> str:
    """Turn links between files into links between pages. Links to other files become plain text."""
    pages = list_pages()
    folder = _source(path).parent.relative_to(_folder()).as_posix()

    def turn(link: re.Match[str]) -> str:
        file, anchor, _, shown = link.groups()
        if not file:
            return f'<a href="{anchor or "#"}">{shown}</a>'
        target = _address(posixpath.normpath(posixpath.join(folder, file)))
        return f'<a href="/docs/{target}{anchor or ""}">{shown}</a>' if target in pages else shown

    return _OTHER_FILE.sub(r"\1", _LINK.sub(turn, drawn))
