"""Build the documentation as a site: `make docs-site` writes `site/`, and fails on a broken link.

The pages are those of the repository as they are. They are copied into `build/pages` first, since the README
and its neighbours lie outside of `docs/`: links between pages are turned, and of a link to a file that is no
page only the text stays. Diagrams are drawn here, so that no page loads a script from elsewhere. Commands,
settings and the hub's addresses are listed from code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from wander_hub.app import create_app
from wander_hub.settings import Settings
from wander_hub.web.docs import reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
"""Pages of the root; the others are all of `docs/`."""
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^()\s]+)\)")
FENCED = re.compile(r"(?ms)^(?P<fence>`{3,})(?P<language>\w*)(?: (?P<file>\S+))?\n.*?^(?P=fence)$")


def places() -> dict[str, str]:
    """Return where on the site each page of the repository lies, both as relative paths."""
    pages = {name: name for name in BESIDE}
    docs = ROOT / "docs"
    for page in sorted(docs.rglob("*.md")):
        pages[page.relative_to(ROOT).as_posix()] = page.relative_to(docs).as_posix()
    return {page: re.sub(r"README\.md$", "index.md", place) for page, place in pages.items()}


def turn(text: str, page: str, pages: dict[str, str]) -> str:
    """Make a page fit its place on the site: where its links lead, and how a block says its file's name."""
    turned, done = [], 0
    for block in FENCED.finditer(text):
        turned += [turn_links(text[done : block.start()], page, pages), turn_block(block)]
        done = block.end()
    return "".join([*turned, turn_links(text[done:], page, pages)])


def turn_block(block: re.Match[str]) -> str:
    """Return a fenced block with the name of its file as its title; of a diagram, its drawing."""
    if block["language"] == "mermaid":
        return draw(block[0].partition("\n")[2].rpartition("\n")[0])
    if block["file"] is None:
        return block[0]
    _, _, rest = block[0].partition("\n")
    return f'{block["fence"]}{block["language"]} title="{block["file"]}"\n{rest}'


def draw(diagram: str) -> str:
    """Return a diagram as SVG, on the light ground that its colours are made for in both themes."""
    import mermaidx

    return f'<div style="background: white; padding: 0.6rem">{mermaidx.render(diagram).svg()}</div>'


def turn_links(text: str, page: str, pages: dict[str, str]) -> str:
    """Return prose with its links turned."""

    def turn_link(link: re.Match[str]) -> str:
        shown, address = link.groups()
        path, _, anchor = address.partition("#")
        if not path or "://" in path:
            return link[0]
        target = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if target not in pages:
            return shown if (ROOT / target).exists() else link[0]
        place = os.path.relpath(pages[target], os.path.dirname(pages[page]) or ".")
        return f"[{shown}]({place}{'#' if anchor else ''}{anchor})"

    return LINK.sub(turn_link, text)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a hub."""
    with tempfile.TemporaryDirectory() as folder:
        document: dict[str, Any] = create_app(Settings(data=Path(folder))).openapi()
    return document


def stage() -> None:
    """Copy all pages to where the generator reads them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages, document = places(), openapi()
    generated = {
        "api/http.md": reference.list_operations(document),
        "api/commands.md": reference.list_commands(),
        "hub-settings.md": reference.list_settings(),
    }
    for page, place in pages.items():
        file = PAGES / place
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / page).read_text().replace("](docs/images/", "](images/")
        file.write_text(turn(text, page, pages) + generated.get(place, ""))
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images")
    (PAGES / "api/openapi.json").write_text(json.dumps(document, indent=1))


def find_unlisted() -> list[str]:
    """Return the pages that no menu leads to."""
    menu = json.dumps(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    return [place for place in places().values() if f'"{place}"' not in menu]


def main() -> int:
    """Build the site; return the exit status."""
    if missing := find_unlisted():
        print(f"error: `nav` in `zensical.toml` lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
