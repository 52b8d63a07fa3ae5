"""What exists is documented, and short pages stay short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_page import blocks
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.phases import read_phases
from wander.train.settings.toml_file import read_settings
from wander.types import Rollout
from wander.wire import RunManifest, RunSummary
from wander_client.commands import COMMANDS
from wander_client.errors import EXIT_CODES
from wander_client.packages.scaffold import KINDS
from wander_client.settings import load_settings
from wander_hub.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [ROOT / name for name in ROOT_PAGES] + sorted((ROOT / "docs").rglob("*.md"))
DECISIONS = sorted((ROOT / "docs/decisions").glob("[!R]*.md"))


def words(page: str) -> set[str]:
    return set(re.findall(r"[A-Za-z0-9_]+(?:-[a-z]+)*", (ROOT / page).read_text()))


def test_every_command_is_documented():
    text = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"`wander {name}" not in text] == []


def test_every_kind_of_environment_is_in_the_guide():
    text = (ROOT / "docs/authoring.md").read_text()
    assert [kind for kind in KINDS if f"\n**{kind}** " not in text] == []


def test_every_exit_status_is_documented():
    rows = re.findall(r"(?m)^\| `(\d+)` \|", (ROOT / "docs/cli.md").read_text())
    assert [int(row) for row in rows] == list(EXIT_CODES)


def test_every_setting_of_the_hub_is_documented():
    known = words("docs/self-hosting.md")
    assert [name for name in Settings.model_fields if f"WANDER_HUB_{name.upper()}" not in known] == []


@pytest.mark.parametrize("record", [RunManifest, RunSummary, Rollout])
def test_every_field_of_the_run_record_is_documented(record):
    known = words("docs/run-record.md")
    fields = {field.alias or name for name, field in record.model_fields.items()}
    assert sorted(fields - known) == []


def test_the_documented_settings_file_is_valid(tmp_path):
    shown = next(block for block in blocks(ROOT / "docs/cli.md") if block.file == "settings.toml")
    (tmp_path / "settings.toml").write_text(shown.text)
    settings = load_settings(environ={"WANDER_CONFIG_DIR": str(tmp_path)})
    assert settings.hub == "https://wander.example.org"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda file: file.stem)
def test_documented_training_settings_are_valid(file):
    if (phases := read_phases(file)) is not None:
        assert [phase.kind for phase in phases] == ["rollouts", "model", "sft", "grpo"]
        return
    kind = SFTSettings if "sft" in file.stem else GRPOSettings
    assert read_settings(kind, file, model={"path": "any"}).model.path == "any"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_resolve(page):
    links = [
        child.attrs["href"]
        for token in MarkdownIt().parse(page.read_text())
        for child in token.children or []
        if child.type == "link_open"
    ]
    local = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_agents_md_is_short():
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_short_and_names_what_would_change_it(page):
    text = page.read_text()
    assert len(text.splitlines()) <= 40
    headings = re.findall(r"(?m)^## (.*)$", text)
    kept = [heading for heading in headings if not heading.startswith("Alternatives")]
    assert kept == ["Context", "Decision", "Consequences", "What would change our mind"]
    assert f"({page.name})" in (ROOT / "docs/decisions/README.md").read_text(), "list it"


def test_the_readme_starts_with_the_complete_loop():
    text = (ROOT / "README.md").read_text()
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    loop = next(token for token in fences if token.info.startswith("console"))
    assert len(re.findall(r"(?m)^\$ ", loop.content)) <= 15
    assert loop.map[1] <= 50, "the loop ends on the first screen"
    for verb in ("publish", "install", "eval", "post", "leaderboard", "train"):
        assert f"wander {verb}" in loop.content


def test_the_settings_in_examples_are_those_of_the_demo():
    demo = (ROOT / "scripts/demo.py").read_text()
    for file in (ROOT / "examples").rglob("*.toml"):
        place = file.relative_to(ROOT).as_posix()
        (line,) = (line for line in demo.splitlines() if place in line)
        assert "--steps" not in line
        assert "--set" not in line
    teacher = "tictactoe.players:careless"
    assert f"scripted:{teacher}" in demo
    assert teacher in (ROOT / "examples/tictactoe/sft.toml").read_text()


def test_messages_on_the_troubleshooting_page_exist_in_the_code():
    """Every quoted message, with `...` for what changes, stands in one text of the sources."""
    texts = [text for room in ("sdk", "client", "hub") for text in texts_of(ROOT / room)]
    messages = list(quoted_messages(ROOT / "docs/troubleshooting.md"))
    assert len(messages) > 40
    patterns = {message: ".*".join(map(re.escape, message.split("..."))) for message in messages}
    gone = [message for message, pattern in patterns.items() if not any(re.search(pattern, t) for t in texts)]
    assert gone == []


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the texts of a folder's Python files; a hole of an f-string becomes a null character."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                yield "".join(str(part) for part in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def quoted_messages(page: Path) -> Iterator[str]:
    """Yield what the first column of a page's tables quotes, single words left out."""
    tokens = MarkdownIt().enable("table").parse(page.read_text())
    for opening, cell, text in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (opening.type, cell.type) == ("tr_open", "td_open"):
            quoted = (child.content.strip() for child in text.children or [] if child.type == "code_inline")
            yield from (quote for quote in quoted if " " in quote)
