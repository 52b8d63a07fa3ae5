"""`wander view` on a terminal: what keys do, and the real command on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander.types import Failure, Rollout
from wander_client.runs.found import LocalRun
from wander_client.runs.viewer import Viewer

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


def opened(run: Path, **options: object) -> Viewer:
    return Viewer(LocalRun(RunFolder.open(run)), **options)  # type: ignore[arg-type]


def screen(viewer: Viewer, width: int = 100, height: int = 14) -> str:
    lines = viewer.lines(width, height)
    assert len(lines) == height
    assert max(cell_len(text) for text, _ in lines) <= width
    assert "\x1b" not in "".join(text for text, _ in lines)
    return "\n".join(text for text, _ in lines)


def chosen(viewer: Viewer) -> str:
    return next(text for text, style in viewer.lines(100, 30) if style == "cursor").split()[0]


def typed(viewer: Viewer, *keys: str) -> Viewer:
    for key in keys:
        viewer.press(key)
    return viewer


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
def test_keys_move_the_cursor(run: Path, keys: str, number: str) -> None:
    assert chosen(typed(opened(run), *keys)) == number


def test_a_rollout_opens_with_its_calls_and_its_neighbours_follow(run: Path) -> None:
    viewer = typed(opened(run), "j", "enter")
    shown = screen(viewer, height=30)
    assert "rollout 1: example 1, index 0, reward 0.1000" in shown
    assert '[calls] look_up({"number": 1})' in shown
    assert "\\x1b[2J" in shown, "what a model said cannot move the cursor"
    assert "rollout 2:" in screen(typed(viewer, "]"))
    assert "rollout 1:" in screen(typed(viewer, "["))
    assert "rollout 4:" in screen(typed(viewer, "f"))
    assert "failed at the tool: ToolError: broke at 4" in screen(viewer, height=30)
    assert chosen(typed(viewer, "escape")) == "4"
    assert "no other rollout that way" in screen(typed(viewer, "G", "enter", "]"))


def test_a_long_rollout_scrolls_and_is_searched(run: Path) -> None:
    viewer = typed(opened(run), "enter")
    assert "answer 0" not in screen(viewer, 40, 8)
    typed(viewer, "G")
    assert "right" in screen(viewer, 40, 8)
    typed(viewer, "g", "/", *"ANSWER 0", "enter")
    assert screen(viewer, 40, 8).startswith("answer 0")
    assert "no `nowhere` here" in screen(typed(viewer, "/", *"nowhere", "enter"))


def test_the_search_of_the_list_reads_every_message(run: Path) -> None:
    viewer = typed(opened(run), "/", *"hidden-7", "enter")
    assert chosen(viewer) == "7"
    assert "1 with `hidden-7`" in screen(viewer)
    typed(viewer, "/", *"hidden", "enter", "n")
    assert chosen(viewer) == "8"
    assert chosen(typed(viewer, "n")) == "10", "9 failed and said nothing hidden"
    assert chosen(typed(viewer, "N", "N")) == "7"
    assert "no rollout with `zzz`" in screen(typed(viewer, "/", *"zzx", "backspace", "z", "enter"))
    assert "nothing was searched for" in screen(typed(opened(run), "n"))
    assert "search" not in screen(typed(viewer, "/", "a", "escape"))


def test_filters_by_failure_and_reward_and_orders(run: Path) -> None:
    viewer = typed(opened(run), "e")
    assert "1 of 2" in screen(viewer)
    assert "1 of 12" in screen(typed(viewer, "e", "g"))
    typed(viewer, "r", *">=0.7", "enter")
    assert "1 of 4" in screen(viewer)
    assert "reward >=0.7" in screen(viewer)
    typed(viewer, "r", *"none", "enter")
    assert "1 of 2" in screen(viewer)
    assert "is no bound" in screen(typed(viewer, "r", *"luck", "enter"))
    assert "no rollout is like that" in screen(typed(viewer, "e", "r", *">9", "enter", "enter", "f"))
    typed(viewer, "r", "enter", "e", "s", "g")
    assert "by reward" in screen(viewer)
    assert chosen(opened(run, order="-reward")) == "11"
    assert chosen(opened(run, failed=True)) == "4"


def test_help_and_narrow_screens(run: Path) -> None:
    assert "next, previous failure" in screen(typed(opened(run), "?"), 80, 20)
    for width, height in ((20, 4), (1, 3), (300, 60)):
        viewer = opened(run)
        screen(viewer, width, height)
        screen(typed(viewer, "enter"), width, height)
    assert typed(opened(run), "q").done


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        places = {f"WANDER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNS")}
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


def test_an_interrupt_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.wait_for("1 of 12")
    before = terminal.process
    terminal.press("")
    os.kill(before.pid, 2)
    terminal.wait_for("\x1b[?1049l")
    assert before.wait(PATIENCE) == 130


def test_the_list_is_printed_where_it_is_asked_for(run: Path, home: Path) -> None:
    opened = Terminal(home, "view", str(run), "--list")
    try:
        opened.wait_for(" wander view /")
        assert "\x1b[?1049h" not in opened.seen
        assert opened.process.wait(PATIENCE) == 0
    finally:
        opened.close()
