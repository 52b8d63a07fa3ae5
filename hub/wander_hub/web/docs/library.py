"""The pages of the documentation: where they lie, their order, and each as HTML, drawn at first use."""

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
from wander_hub.web.docs.search import SearchIndex, Section
from wander_hub.web.source.files import colour_blocks

_HERE = Path(__file__).parent
_SHIPPED = _HERE / "pages"
_CHECKOUT = _HERE.parents[3]
_FENCED = re.compile(r"(?ms)^(?P<fence>`{3,})(?P<language>\w*)(?: (?P<file>\S+))?\n.*?^(?P=fence)$")
_LINK = re.compile(r'<a href="([^"#:]*\.md|[^":]*/)?(#[^"]*)?"( rel="[^"]*")?>(.*?)</a>', re.DOTALL)
_OTHER_FILE = re.compile(r'<a href="(?!/|#|https?:|mailto:)[^"]*"[^>]*>(.*?)</a>', re.DOTALL)
_SECTION = re.compile(r'<h[23] id="([^"]+)">(.*?)</h[23]>', re.DOTALL)
_ROW = re.compile(r"<tr>\s*<td><code>([\w.@-]+)</code>")
_ID = re.compile(r'\bid="([^"]+)"')
_OWN_ID = re.compile(rf'(id="|href="#){PREFIX}')


@dataclass(frozen=True)
class Page:
    """One page of the documentation."""

    path: str
    """Below `/docs/`, without an ending."""
    title: str
    """In menus."""
    section: str
    deeper: str
    """The part of its section that is folded; empty for what is always seen."""


@dataclass(frozen=True)
class DrawnPage:
    """A page as HTML."""

    title: str
    plain: str
    """HTML whose blocks of code have no colors: the search needs none, and they take a third of the time."""
    headings: list[Heading]

    @cached_property
    def body(self) -> Markup:
        """What is shown."""
        return Markup(colour_blocks(self.plain))  # noqa: S704 - cleaned by `render`

    @property
    def summary(self) -> str:
        """Its first paragraph as text."""
        first = self.plain.partition("<p>")[2].partition("</p>")[0]
        return Markup(first).striptags()  # noqa: S704 - tags are taken off


@cache
def list_pages() -> dict[str, Page]:
    """Return every page by its path, in the order of the menu."""
    menu = tomllib.loads((_folder() / "menu.toml").read_text())["nav"]
    pages = (Page(_address(file), *rest) for file, *rest in _walk(menu))
    return {page.path: page for page in pages}


class Library:
    """The documentation of one hub, whose addresses it lists."""

    def __init__(self, openapi: Callable[[], dict[str, Any]]) -> None:
        self._openapi = openapi
        # What is drawn once is not drawn by all who ask at once, and a page does not wait for the index.
        self._lock, self._index_lock = threading.RLock(), threading.Lock()
        self._drawn: dict[str, DrawnPage] = {}
        self._is_preparing = False

    def read(self, path: str) -> str:
        """Return the Markdown of a page, with what is generated where it belongs."""
        with self._lock:  # of many who ask first for what takes seconds, one works
            return reference.fill(path, _source(path).read_text(), self._openapi)

    def draw(self, path: str) -> DrawnPage:
        """Return a page as HTML; its links lead to pages."""
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
        """Begin to draw all pages, which a search needs, before somebody asks for one."""
        if not self._is_preparing:
            self._is_preparing = True
            threading.Thread(target=lambda: self.index, daemon=True).start()

    @property
    def index(self) -> SearchIndex:
        """All of it, to be searched."""
        with self._index_lock:
            return self._index

    @cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex(section for path in list_pages() for section in self._sections(path))

    def _sections(self, path: str) -> Iterator[Section]:
        """Yield a page in parts, each with the heading above it."""
        page = self.draw(path)
        first, *parts = _SECTION.split(page.plain)
        yield Section(path, "", page.title, "", _plain(first))
        for anchor, heading, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            yield Section(path, anchor, page.title, _plain(heading), _plain(text))


def _plain(drawn: str) -> str:
    return " ".join(Markup(drawn.replace("<", " <")).striptags().split())  # noqa: S704 - tags are taken off


def _folder() -> Path:
    return _SHIPPED if _SHIPPED.is_dir() else _CHECKOUT / "docs"


def _source(path: str) -> Path:
    file = _folder() / f"{path}.md"
    return file if file.is_file() else _folder() / path / "README.md"


def _walk(menu: list[dict[str, Any]], section: str = "", deeper: str = "") -> Iterator[tuple[str, ...]]:
    """Yield of each entry of a menu its file, its title, its section and the part of that."""
    for entry in menu:
        for title, value in entry.items():
            if isinstance(value, list):
                yield from _walk(value, section or title, title if section else "")
            else:
                yield value, title, section, deeper


def _address(file: str) -> str:
    return file.removesuffix(".md").removesuffix("/README")


def _name_files(text: str) -> str:
    """Put the name of a block's file above it."""
    return _FENCED.sub(lambda block: f"`{block['file']}`\n\n{block[0]}" if block["file"] else block[0], text)


def _name_rows(drawn: str) -> str:
    """Let a row of a table be linked to by the code that it begins with, where no heading has that name."""
    taken = set(_ID.findall(drawn))

    def name(row: re.Match[str]) -> str:
        word = row[1].lower()
        if word in taken:
            return row[0]
        taken.add(word)
        return f'<tr id="{word}">{row[0].removeprefix("<tr>")}'

    return _ROW.sub(name, drawn)


def _turn_links(drawn: str, path: str) -> str:
    """Let links between files lead to pages; of those to other files of the repository the text stays."""
    pages = list_pages()
    folder = _source(path).parent.relative_to(_folder()).as_posix()

    def turn(link: re.Match[str]) -> str:
        file, anchor, _, shown = link.groups()
        if not file:
            return f'<a href="{anchor or "#"}">{shown}</a>'
        target = _address(posixpath.normpath(posixpath.join(folder, file)))
        return f'<a href="/docs/{target}{anchor or ""}">{shown}</a>' if target in pages else shown

    return _OTHER_FILE.sub(r"\1", _LINK.sub(turn, drawn))
