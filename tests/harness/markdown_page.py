"""Runs the code blocks of a Markdown page, in order, in one folder and one shell environment.

`console` blocks are typed into bash line by line; a command must print the output shown under it, in
that order (`...` stands for anything). `python` blocks run unchanged. A second word after the language is
a file name: the block is saved there for later blocks. `toml` and `json` blocks must parse.
`sh`, `text`, `nginx` and `mermaid` blocks are not run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import httpx
from live_hub import request
from markdown_it import MarkdownIt

LANGUAGES = {"console", "python", "toml", "json", "sh", "text", "nginx", "mermaid"}
SECONDS_PER_COMMAND = 400


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    file: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language})"


@dataclass(frozen=True)
class Step:
    """One `$ command` of a console block with the output shown under it."""

    command: str
    shown: list[str]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence":
            language, file, *_ = [*token.info.split(), "", ""]
            found.append(Block(page.name, token.map[0] + 1, language, file or None, token.content))
    return found


def steps(text: str) -> list[Step]:
    """Split a console block; a backslash at the end of a line continues the command."""
    found: list[Step] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            found.append(Step(command, []))
        elif line.strip():
            assert found, f"a console block starts with `$ `, not with {line!r}"
            found[-1].shown.append(line)
    return found


def unmatched(shown: list[str], output: str) -> str | None:
    """Return the first shown line that the output lacks, in order; `...` stands for anything."""
    printed = iter(output.splitlines())
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        if line.strip() != "..." and not any(re.fullmatch(rf"\s*{pattern}\s*", row) for row in printed):
            return line
    return None


def parse(block: Block, text: str) -> None:
    """Fail unless the text parses in the block's language; commands and plain output always pass."""
    assert block.language in LANGUAGES, f"{block}: name the language, one of {sorted(LANGUAGES)}"
    if block.language == "python":
        compile(text, block.file or str(block), "exec")
    elif block.language == "toml":
        assert tomllib.loads(text), f"{block}: empty"
    elif block.language == "json":
        assert json.loads(text) is not None, f"{block}: empty"


class PageRun:
    """The state of one running page: its folder, shell environment and background processes."""

    def __init__(self, folder: Path, environment: dict[str, str], replaced: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.replaced = replaced
        """What stands for each address or option that the page shows."""
        self.saved = folder.with_name(f"{folder.name}.env")
        self.groups: list[int] = []

    def run(self, block: Block) -> None:
        """Run, save or parse one block, by its language."""
        text = block.text
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if block.language == "console":
            for step in steps(text):
                self.type(block, step)
        elif block.language == "python" and not block.file:
            self.type(block, Step(f"python - <<'END_OF_BLOCK'\n{text}\nEND_OF_BLOCK", []))
        else:
            parse(block, text)

    def type(self, block: Block, step: Step) -> None:
        """Run one command; the folder and exported variables carry over to the next."""
        script = "\n".join(
            [
                "set -eu",
                f"if [ -f '{self.saved}' ]; then . '{self.saved}'; fi",
                step.command,
                f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > '{self.saved}'",
            ]
        )
        place = self.folder.with_name(f"{self.folder.name}.{len(self.groups)}.log")
        with place.open("w") as log:
            # a file, not a pipe: a process left in the background would hold a pipe open
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.append(process.pid)
            status = process.wait(timeout=SECONDS_PER_COMMAND)
        printed = place.read_text()
        assert status == 0, f"{block}: `{step.command}` exited with {status}\n{printed}"
        if step.command.split("#")[0].rstrip().endswith("&"):
            self.wait_for_hub(place)
        missing = unmatched(step.shown, printed)
        assert missing is None, f"{block}: `{step.command}` does not print {missing!r}\n{printed}"

    def wait_for_hub(self, log: Path) -> None:
        """Wait until the hub that the page started in the background answers."""
        give_up = time.monotonic() + 120
        while time.monotonic() < give_up:
            try:
                if request("GET", f"{self.environment['WANDER_HUB']}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"the hub of the page does not respond:\n{log.read_text()}")

    def close(self) -> None:
        """Stop the page's background processes."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                continue
