"""Every code block of the README and of docs/ runs against a real hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bundled_environments import needs_reasoning_gym
from chat_endpoint import chat_endpoint
from live_hub import clean_environment, free_port, live_hub
from markdown_page import PageRun, Step, blocks, parse, steps, unmatched
from package_mirror import build_mirror
from warm_programs import warm_training
from written_commands import commands, unknown_parts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INSTALL_LINES = ("git clone", "cd wander", "make ", "source .venv/bin/activate", "pip install", "uv tool")
"""What a `sh` block may hold: the install lines, which CI has carried out before any test runs."""


@pytest.fixture(scope="session")
def mirror(tmp_path_factory) -> str:
    return build_mirror(tmp_path_factory.mktemp("mirror"), ["wander-sdk", "wander-client", "hatchling"])


def starts_its_own_hub(page: Path) -> bool:
    return any("wander-hub serve" in block.text for block in blocks(page) if block.language == "console")


def trains(page: Path) -> bool:
    commands = [
        step.command for block in blocks(page) if block.language == "console" for step in steps(block.text)
    ]
    return any(command.startswith(("wander train", "wander model")) for command in commands)


def answering(messages: list[dict]) -> str:
    """Solve the task of the page about Harbor, and reverse any other text."""
    if "/app/hello.txt" in messages[-1]["content"]:
        return "echo 'Hello, world!' > hello.txt"
    return f"<reversed_text>{messages[-1]['content'][::-1]}</reversed_text>"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """What answers at the endpoint that the pages show."""
    with chat_endpoint(answering) as running:
        yield running.base_url


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory) -> Path:
    """The packages that the pages install, unpacked once for all of them."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def page_run(request, tmp_path, mirror, endpoint, uv_cache, warm_commands) -> Iterator[PageRun]:
    """A copy of the checkout's environments, a private home, and a hub where the page expects one."""
    folder, home = tmp_path / "page", tmp_path / "home"
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    shutil.copytree(ROOT / "environments", folder / "environments", ignore=ignored)
    environment = {
        **clean_environment(),
        "HOME": str(home),
        "WANDER_CONFIG_DIR": str(home / "config"),
        "WANDER_DATA_DIR": str(home / "data"),
        "UV_DEFAULT_INDEX": mirror,
        "UV_CACHE_DIR": str(uv_cache),
    }
    with ExitStack() as stack:
        if starts_its_own_hub(request.param):
            port = str(free_port())
        else:
            hub = stack.enter_context(live_hub(tmp_path / "hub"))
            environment["WANDER_TOKEN"], port = hub.token, str(hub.port)
            (folder / "hub").symlink_to(hub.data)
        environment["WANDER_HUB"] = f"http://127.0.0.1:{port}"
        addresses = {
            "127.0.0.1:8600": f"127.0.0.1:{port}",
            "--port 8600": f"--port {port}",
            "http://127.0.0.1:8000/v1": endpoint,
        }
        warm_commands.write_scripts(tmp_path / "bin", environment)
        if trains(request.param):
            stack.enter_context(warm_training(tmp_path / "bin", environment))
        environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
        run = PageRun(folder, environment, addresses)
        stack.callback(run.close)
        yield run


WITHOUT_BLOCKS = {"threat-model", "glossary"}
"""Pages without commands and code."""


def param(page: Path):
    more = [needs_reasoning_gym] if page.stem == "other-libraries" else []
    return pytest.param(page, marks=[pytest.mark.full, *more], id=page.stem)


@pytest.mark.timeout(900)  # the README's page trains, on however few cores there are
@pytest.mark.parametrize(
    "page_run", [param(page) for page in PAGES if page.stem not in WITHOUT_BLOCKS], indirect=True
)
def test_every_block_of_the_page_runs(page_run, request):
    for block in blocks(request.node.callspec.params["page_run"]):
        page_run.run(block)


def test_every_page_except_tables_has_code_to_run():
    assert {page.stem for page in PAGES if not blocks(page)} == WITHOUT_BLOCKS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_the_page_parses_and_names_commands_and_options_that_exist(page):
    lines = []
    for block in blocks(page):
        parse(block, block.text)
        lines += steps(block.text) if block.language == "console" else []
    words = [words for step in lines for words in commands(step.command)]
    assert [command for command in words if unknown_parts(command)] == []


def test_commands_and_options_that_do_not_exist_are_found():
    line = "X=1 wander eval env --paint\\\n red && (wander-hub user add ada) | wander nope > out"
    assert list(commands(line)) == [
        ["wander", "eval", "env", "--paint", "red"],
        ["wander-hub", "user", "add", "ada"],
        ["wander", "nope"],
    ]
    assert [unknown_parts(words) for words in commands(line)] == [["--paint"], [], ["wander", "nope"]]


def test_blocks_that_are_not_run_contain_only_installation_commands():
    lines = [
        (str(block), line)
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert [row for row in lines if not row[1].startswith(INSTALL_LINES)] == []


def test_commands_and_their_output_are_distinguished():
    text = "$ wander one \\\n    --two\n  shown\n\n$ wander three\n"
    assert steps(text) == [Step("wander one \\\n    --two", ["  shown"]), Step("wander three", [])]


def test_shown_output_is_compared_in_order():
    printed = "published admin/x 0.1.0\nat http://127.0.0.1:1/x\ndone\n"
    assert unmatched(["published ... 0.1.0", "...", "done"], printed) is None
    assert unmatched(["done", "published ... 0.1.0"], printed) == "published ... 0.1.0"
    assert unmatched(["published"], printed) == "published"
