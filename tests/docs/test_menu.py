"""The menu of the documentation, as a hub shows it."""

from __future__ import annotations

from pathlib import Path

from wander_hub.web.docs.library import list_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_menu_links_to_every_page():
    files = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    assert set(list_pages()) == {file.removesuffix(".md").removesuffix("/README") for file in files}


def test_the_first_level_of_the_menu_has_at_most_half_of_the_guides():
    first = {page.path for page in list_pages().values() if not page.deeper}
    guides = {page.stem for page in DOCS.glob("*.md")}
    assert len(first & guides) <= len(guides) / 2
