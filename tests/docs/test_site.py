"""`make docs-site`: the pages of the repository as a site, every link of which leads somewhere."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def docs_site():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts/docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_menu_leads_to_every_page(docs_site):
    assert docs_site.find_unlisted() == []


def test_the_first_level_of_the_menu_has_at_most_half_of_the_guides():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    sections = [entry for section in menu for entry in section.values()]
    first = {entry for entry in sections if isinstance(entry, str)}
    for section in (one for one in sections if isinstance(one, list)):
        first |= {entry for named in section for entry in named.values() if isinstance(entry, str)}
    guides = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert len(first & guides) <= len(guides) / 2


@pytest.mark.parametrize(
    ("page", "text", "turned"),
    [
        ("README.md", "[a](docs/cli.md#exit)", "[a](cli.md#exit)"),
        ("README.md", "[`b`](docs/decisions/README.md)", "[`b`](decisions/index.md)"),
        ("docs/decisions/jobs.md", "[c](../../CHANGELOG.md)", "[c](../CHANGELOG.md)"),
        (
            "docs/training.md",
            "[d](#steps), [e](https://example.org)",
            "[d](#steps), [e](https://example.org)",
        ),
        ("docs/training.md", "[`f`](../examples/distributed)", "`f`"),
        ("docs/cli.md", "[g](nowhere.md)", "[g](nowhere.md)"),
        (
            "docs/cli.md",
            "```toml a.toml\n[h](../LICENSE)\n```\n",
            '```toml title="a.toml"\n[h](../LICENSE)\n```\n',
        ),
        (
            "docs/cli.md",
            "````text\n```\n[i](../LICENSE)\n```\n````\n",
            "````text\n```\n[i](../LICENSE)\n```\n````\n",
        ),
    ],
)
def test_a_page_is_made_to_fit_its_place(docs_site, page, text, turned):
    assert docs_site.turn(text, page, docs_site.places()) == turned


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_site_builds_and_shows_the_public_names():
    for command in (["scripts/set_up.py", "--group", "site"], ["scripts/docs_site.py"]):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    home = (ROOT / "site/index.html").read_text()
    assert "run folder: manifest" in home
    assert 'aria-roledescription="flowchart' in home, "the diagram is drawn"
    assert 'class="mermaid"' not in home, "a script from elsewhere would draw it"
    python = (ROOT / "site/api/index.html").read_text()
    for name in ("wander.SingleTurnEnv", "wander.Client", "wander.ScriptedClient"):
        assert f'id="{name}"' in python
    addresses = (ROOT / "site/api/http/index.html").read_text()
    document = json.loads((ROOT / "site/api/openapi.json").read_text())
    assert [path for path in document["paths"] if path not in addresses] == []
