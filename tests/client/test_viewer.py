"""`wander view` on a terminal: what keys do, and the real command on a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from command_line import Wander
from rich.cells import cell_len
from saved_runs import write_run
from textual.pilot import Pilot
from textual.widgets import DataTable
from wander.evals.store.folder import RunFolder
from wander.types import Failure, Rollout
from wander_client.runs import viewer
from wander_client.runs.found import LocalRun
from wander_client.runs.viewer import RunViewer

PATIENCE = 60.0
"""Seconds to wait for what must come; a loaded machine is slow."""


@pytest.fixture
def run(home: Path) -> Path:
    """Twelve rollouts: 4 and 9 failed, the others with rewards of n / 10, and each with a call of a tool."""
    place = write_run(home / "runs" / "shown", rewards=[n / 10 for n in range(12)], said="hello")
    folder = RunFolder.open(place)
    rollouts = list(folder.rollouts())
    folder.resume()
    (place / "rollouts.jsonl").write_bytes(b"")
    for number, one in enumerate(rollouts):
        folder.append(_changed(number, one))
    folder.close()
    return place


def _changed(number: int, one: Rollout) -> Rollout:
    if number in (4, 9):
        failure = Failure(boundary="tool", type="ToolError", message=f"broke at {number}")
        return one.model_copy(update={"failure": failure, "reward": None, "metrics": {}})
    call = {"function": {"name": "look_up", "arguments": f'{{"number": {number}}}'}}
    text = f"hidden-{number} \x1b[2J 日本語 " + "word " * 60
    said = [{"role": "assistant", "content": text, "tool_calls": [call]}]
    said.append({"role": "assistant", "content": f"answer {number}"})
    return one.model_copy(update={"completion": said})


@contextlib.asynccontextmanager
async def opened(
    run: Path, size: tuple[int, int] = (100, 14), **options: object
) -> AsyncIterator[Pilot[bool]]:
    app = RunViewer(LocalRun(RunFolder.open(run)), **options)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield pilot


def screen(pilot: Pilot[bool]) -> str:
    """Return what the terminal shows; no line is wider than it, and none moves the cursor."""
    width, height = pilot.app.size
    lines = pilot.app.screen._compositor.render_strips()
    texts = ["".join(segment.text for segment in line) for line in lines]
    assert len(texts) == height
    assert max(cell_len(text) for text in texts) <= width
    assert "\x1b" not in "".join(texts)
    return "\n".join(texts)


def chosen(pilot: Pilot[bool]) -> str:
    table = pilot.app.query_one(DataTable)
    assert table.display
    return str(table.get_row_at(table.cursor_row)[0])


async def typed(pilot: Pilot[bool], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause()
    return screen(pilot)


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ("", "0"),
        ("jj", "2"),
        ("jjk", "1"),
        ("k", "0"),
        ("G", "11"),
        ("Gg", "0"),
        ("f", "4"),
        ("ff", "9"),
        ("fff", "4"),
        ("F", "9"),
        ("x", "0"),
        ("GG  j", "11"),
    ],
)
async def test_keys_move_the_cursor(run: Path, keys: str, number: str) -> None:
    async with opened(run) as pilot:
        await typed(pilot, *keys)
        assert chosen(pilot) == number


async def test_only_the_first_rows_of_a_long_run_are_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "MOST", 5)
    async with opened(run) as pilot:
        assert "5 of 5 (the first of 12)" in await typed(pilot, "G")
        assert "2 of 2" in await typed(pilot, "e", "G")
        assert "(the first" not in screen(pilot)
        await typed(pilot, "e")
        assert "4 with `answer`" in await typed(pilot, "/", *"answer", "enter"), "of those alone"
        assert "no rollout with `hidden-7` on this list" in await typed(pilot, "/", *"hidden-7", "enter")
        assert "by reward" in await typed(pilot, "e", "s")


async def test_a_rollout_opens_and_keys_move_to_its_neighbors(run: Path) -> None:
    async with opened(run, (100, 30)) as pilot:
        shown = await typed(pilot, "j", "enter")
        assert "rollout 1: example 1, index 0, reward 0.1000" in shown
        assert '[calls] look_up({"number": 1})' in shown
        assert "\\x1b[2J" in shown, "what a model said cannot move the cursor"
        assert "rollout 2:" in await typed(pilot, "]")
        assert "rollout 1:" in await typed(pilot, "[")
        assert "rollout 4:" in await typed(pilot, "f")
        assert "failed at the tool: ToolError: broke at 4" in screen(pilot)
        await typed(pilot, "escape")
        assert chosen(pilot) == "4"
        assert "no more rollouts in this direction" in await typed(pilot, "G", "enter", "]")


async def test_a_long_rollout_scrolls_and_is_searched(run: Path) -> None:
    async with opened(run, (40, 8)) as pilot:
        assert "answer 0" not in await typed(pilot, "enter")
        assert "right" in await typed(pilot, "G")
        found = await typed(pilot, "g", "/", *"ANSWER 0", "enter")
        assert "answer 0" in found
        assert "no `nowhere` here" in await typed(pilot, "/", *"nowhere", "enter")
        found = await typed(pilot, "g", "/", *"hidden-0", "enter")
        assert "hidden-0" in found


async def test_the_search_of_the_list_reads_every_message(run: Path) -> None:
    async with opened(run) as pilot:
        assert "1 with `hidden-7`" in await typed(pilot, "/", *"hidden-7", "enter")
        assert chosen(pilot) == "7"
        await typed(pilot, "/", *"hidden", "enter", "n")
        assert chosen(pilot) == "8"
        await typed(pilot, "n")
        assert chosen(pilot) == "10", "9 failed and said nothing hidden"
        await typed(pilot, "N", "N")
        assert chosen(pilot) == "7"
        assert "no rollout with `zzz`" in await typed(pilot, "/", *"zzx", "backspace", "z", "enter")
        assert "search" not in await typed(pilot, "/", "a", "escape")
    async with opened(run) as pilot:
        assert "to search first" in await typed(pilot, "n")


async def test_filters_by_failure_and_reward_and_orders(run: Path) -> None:
    async with opened(run) as pilot:
        assert "1 of 2" in await typed(pilot, "e")
        assert "1 of 12" in await typed(pilot, "e", "g")
        shown = await typed(pilot, "r", *">=0.7", "enter")
        assert "1 of 4" in shown
        assert "reward >=0.7" in shown
        assert "1 of 2" in await typed(pilot, "r", *"none", "enter")
        assert "is not a valid bound" in await typed(pilot, "r", *"luck", "enter")
        await typed(pilot, "e", "r", *">9", "enter", "enter", "f")
        assert "no rollout matches" in await typed(pilot, "g")
        assert "by reward" in await typed(pilot, "r", "enter", "e", "s", "g")
    async with opened(run, order="-reward") as pilot:
        assert chosen(pilot) == "11"
    async with opened(run, failed=True) as pilot:
        assert chosen(pilot) == "4"


async def test_help_and_narrow_screens(run: Path) -> None:
    async with opened(run, (80, 20)) as pilot:
        assert "next, previous failure" in await typed(pilot, "?")
    for size in ((20, 4), (1, 3), (300, 60)):
        async with opened(run, size) as pilot:
            screen(pilot)
            await typed(pilot, "enter")
    async with opened(run) as pilot:
        await typed(pilot, "enter")
        await pilot.resize_terminal(60, 10)
        await pilot.pause()
        assert "rollout 0:" in screen(pilot), "an open rollout is folded anew"
        await pilot.press("q")
        await pilot.pause()
        assert not pilot.app.is_running


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        places = {
            f"WANDER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE", "RUNS")
        }
        environ = {**kept, **places, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
        command = [sys.executable, "-m", "wander_client", *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=folder, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until a text has come since the last key."""
        until = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < until, f"no {text!r} in {self.seen[-3000:]!r}"
            if select.select([self._master], [], [], 0.5)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode("utf-8", "replace")
                except OSError:  # the other end is closed
                    assert text in self.seen, self.seen[-3000:]

    def press(self, keys: str) -> None:
        self.seen = ""
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self.seen = ""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(run: Path, home: Path) -> Iterator[Terminal]:
    opened = Terminal(home, "view", str(run))
    yield opened
    opened.close()


def test_the_command_on_a_terminal(terminal: Terminal) -> None:
    terminal.wait_for("1 of 12")
    assert "\x1b[?1049h" in terminal.seen
    terminal.press("j")
    terminal.wait_for("2 of 12")
    terminal.press("\x1b[B")
    terminal.wait_for("3 of 12")
    terminal.press("\r")
    terminal.wait_for("rollout 2: example 2")
    terminal.press("f")
    terminal.wait_for("rollout 4: example 4")
    terminal.press("h/hidden-8\r")
    terminal.wait_for("1 with `hidden-8`")
    terminal.press("r<0.3\r")
    terminal.wait_for("of 3")
    terminal.resize(60, 12)
    terminal.wait_for("of 3")
    terminal.press("q")
    terminal.wait_for("\x1b[?1049l")
    assert terminal.process.wait(PATIENCE) == 0


def test_an_interrupt_restores_the_terminal(terminal: Terminal) -> None:
    terminal.wait_for("1 of 12")
    before = terminal.process
    terminal.press("")
    os.kill(before.pid, 2)
    terminal.wait_for("\x1b[?1049l")
    assert before.wait(PATIENCE) == 130


def test_the_list_is_printed_if_requested(run: Path, home: Path) -> None:
    opened = Terminal(home, "view", str(run), "--list")
    try:
        opened.wait_for(" wander view /")
        assert "\x1b[?1049h" not in opened.seen
        assert opened.process.wait(PATIENCE) == 0
    finally:
        opened.close()


def test_the_list_is_printed_if_the_viewer_is_not_installed(
    run: Path, wander: Wander, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wander_client.commands.run import view

    monkeypatch.setenv("WANDER_OUTPUT", "human")
    monkeypatch.setattr(view, "_on_a_terminal", lambda: True)
    monkeypatch.setattr(view, "find_spec", lambda name: None)
    printed = wander("view", str(run))
    assert (printed.status, "failed: tool" in printed.out) == (0, True)
    assert "wander-client[tui]" in printed.err
