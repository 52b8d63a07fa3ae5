"""The live panel of a training run: what it says, that it fits, and what is left when the run ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from wander.train.records.files import Alert, CellEvaluation, write_alerts, write_evaluations
from wander_client.terminal.output import Output
from wander_client.training.panel import (
    BLOCKS,
    PlainSteps,
    TrainingPanel,
    TrainingState,
    evaluation_text,
    open_display,
    panel_lines,
    sparkline,
)


def entry(step: int, **fields: Any) -> dict[str, Any]:
    return {
        "step": step,
        "steps": 40,
        "reward": step / 40,
        "rewards/won": step / 50,
        "rewards/format": 1.0,
        "entropy": 1.5,
        "tokens": 23.25,
        "groups_without_variance": 0.25,
        "truncated": 0.5,
        "failed": 8,
        "rollouts": 32,
        "seconds/step": 10.0,
        "seconds/generation": 6.0,
        "seconds/environment": 1.0,
        "seconds/update": 3.0,
        **fields,
    }


def evaluation(step: int, cell: str, reward: float) -> CellEvaluation:
    return CellEvaluation(
        step=step,
        cell=cell,
        split="eval",
        task_set_sha256="0" * 64,
        examples=50,
        reward=reward,
        interval=(reward - 0.1, reward + 0.1),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_alerts(tmp_path, [Alert(step=3, rule="truncated", message="50% of the rollouts were cut short")])
    write_evaluations(
        tmp_path, [evaluation(s, c, r) for s, c, r in ((0, "a", 0.3), (0, "b", 0.9), (4, "a", 0.2))]
    )
    (tmp_path / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    return tmp_path


def record(folder: Path, step: int, **fields: Any) -> dict[str, Any]:
    """Write the metrics of a step as the trainer does."""
    made = entry(step, **fields)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(made) + "\n")
    return made


def state_of(folder: Path, steps: int = 5) -> TrainingState:
    state = TrainingState("training on me/games", folder)
    for step in range(1, steps + 1):
        record(folder, step)
        state.read_steps()
    return state


def text_of(state: TrainingState, width: int = 100, height: int = 40, *, plain: bool = False) -> str:
    return "\n".join(line.plain for line in panel_lines(state, width, height, plain=plain))


def test_the_panel_shows_progress_reward_and_time_left(folder: Path) -> None:
    text = text_of(state_of(folder))
    assert "training on me/games  step 5/40  0:00  5:50 left" in text
    for said in ("reward  ", "0.125", "won ", "0.100", "entropy", "tokens ", "23.2", "no variance", "25%"):
        assert said in text
    assert "best 0.125 at step 5" in text
    assert "generation 60%" in text
    assert "update 30%" in text
    assert "evaluation at step 4  a 0.200 [0.10, 0.30]" in text
    assert "best a 0.300 at step 0" in text
    assert "checkpoint of step 4" in text
    assert "! step 3: 50% of the rollouts were cut short" in text
    assert "▁▃▄▆█" in text


def test_exhaustive_evaluations_show_line_counts() -> None:
    every = evaluation(4, "every", 0.9).model_copy(update={"lines": 533, "metrics": {"bad": 3.0}})
    assert evaluation_text(every) == "every 3 of 533 lines bad"


def test_the_time_left_includes_evaluations(folder: Path) -> None:
    state = state_of(folder)
    record(folder, 6, **{"seconds/evaluation": 60.0})
    state.read_steps()
    assert state.seconds_left == pytest.approx(34 * 20.0)


def test_before_the_first_step_the_panel_says_that_it_waits(tmp_path: Path) -> None:
    state = TrainingState("training", tmp_path)
    assert "waiting for the first step" in text_of(state)
    state.ended = True
    assert "ended before the first step" in text_of(state)


def test_without_unicode_only_ascii_is_drawn(folder: Path) -> None:
    assert text_of(state_of(folder), plain=True).isascii()


@given(st.integers(1, 130), st.integers(1, 50), st.integers(0, 12))
def test_the_panel_fits_every_terminal(width: int, height: int, functions: int) -> None:
    state = TrainingState("training on owner/a-long-name-of-an-environment", Path("/nowhere"))
    more = {f"rewards/function_{number}": 0.5 for number in range(functions)}
    state.entries = [entry(step, **more) for step in range(1, 30)]
    state.evaluations = [evaluation(20, "eval", 0.5)]
    state.alerts = [Alert(step=3, rule="truncated", message="50% of the rollouts were cut short by a limit")]
    lines = panel_lines(state, width, height)
    assert len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)
    if height > 12 and width > 40:
        text = "\n".join(line.plain for line in lines)
        assert "reward" in text
        assert "! step 3" in text


def test_reward_functions_without_room_are_counted(folder: Path) -> None:
    state = state_of(folder)
    state.entries[-1] |= {f"rewards/f{number}": 0.5 for number in range(9)}
    text = text_of(state, height=20)
    assert "no variance" in text
    assert "reward functions" in text


def test_the_panel_follows_the_size_of_the_terminal(folder: Path) -> None:
    panel = TrainingPanel("training on me/games", folder)
    panel.show(record(folder, 1))
    console = Console(width=120, height=30)
    for width, height in ((120, 30), (50, 12), (24, 6)):
        console.size = (width, height)
        lines = console.render_lines(panel, pad=False)
        assert len(lines) < height
        assert max(sum(segment.cell_length for segment in line) for line in lines) <= width


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([0, 1], "▁█"), ([None, 1.0, None], " ▁ "), ([2, 2, 2], "▁▁▁"), ([], ""), ([None], "")],
)
def test_a_sparkline_runs_from_lowest_to_highest(values: list[float | None], drawn: str) -> None:
    assert sparkline(values, 8) == drawn


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=100), st.integers(1, 40))
def test_a_sparkline_fits_its_cells(values: list[float | None], cells: int) -> None:
    drawn = sparkline(values, cells)
    assert len(drawn) <= cells
    assert set(drawn) <= set(BLOCKS)


def test_a_resumed_run_shows_its_earlier_steps(tmp_path: Path) -> None:
    for step in range(1, 7):
        record(tmp_path, step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7')  # a line that is being written
    state = TrainingState("training", tmp_path)
    state.read_steps()
    assert [one["step"] for one in state.entries] == [1, 2, 3, 4, 5, 6]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(', "steps": 40}\n')
    state.read_steps()
    assert (len(state.entries), state.step, state.steps) == (7, 7, 40)


def test_the_last_panel_stays_after_an_interrupt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    panel = TrainingPanel("training on me/games", folder)

    def interrupted() -> None:
        with panel:
            panel.show(record(folder, 7))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    told = capsys.readouterr()
    assert "step 7/40" in told.err
    assert told.out == ""


def test_without_a_terminal_progress_is_printed_as_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_display("training on me/games", folder, Output("human", color="never")) as display:
        assert isinstance(display, PlainSteps)
        for step in range(1, 6):
            display.show(record(folder, step))
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert "step 4: evaluation a 0.200 [0.10, 0.30]" in lines
    assert "warning: step 3: 50% of the rollouts were cut short" in lines
    (line,) = [line for line in lines if line.startswith("training  4/40 steps (10%)")]
    assert line.startswith("training  4/40 steps (10%)  mean reward 0.100, entropy ")
    assert line.endswith("25% of the groups taught nothing (equal rewards), about 6:00 left")


def test_in_json_and_quiet_mode_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("json", "quiet"):
        with open_display("training", tmp_path, Output(mode)) as display:
            display.show(record(tmp_path, 1))
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


CHILD = """
import json
import sys
from pathlib import Path
from wander_client.terminal.output import Output
from wander_client.training.panel import open_display
folder = Path(sys.argv[1])
def show(**entry):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\\n")
    display.show(entry)
with open_display("training on me/games", folder, Output("human")) as display:
    show(**{"step": 1, "steps": 3, "reward": 0.25, "seconds/step": 1.0})
    print(type(display).__name__)
    show(**{"step": 2, "steps": 3, "reward": 0.75, "seconds/step": 1.0})
"""


def test_on_a_terminal_the_panel_is_shown(tmp_path: Path) -> None:
    """A real terminal: the panel on stderr, the answer on stdout, and the last state stays."""
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    for name in ("CLAUDECODE", "AI_AGENT", "NO_COLOR"):
        environ.pop(name, None)
    terminal, slave = pty.openpty()
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=slave) as child:
        os.close(slave)
        shown = b""
        while part := _read(terminal):
            shown += part
        assert child.stdout is not None
        assert child.stdout.read() == b"TrainingPanel\n"
        assert child.wait(240) == 0, shown.decode()
    os.close(terminal)
    last = shown.decode().rpartition("training on me/games")[2]
    assert "step 2/3" in last
    assert "0.750" in last


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side is gone
        return b""


def test_an_unfinished_step_shows_its_progress(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of(folder, 0)
    assert "waiting for the first step" in str(panel_lines(state, 80, 24)[-1])
    state.playing = (12, 64)
    assert str(panel_lines(state, 80, 24)[-1]) == "step 1: 12/64 rollouts"
    state.playing = (64, 64)
    assert state.doing == "step 1: learning from 64 rollouts"
    record(folder, 1)
    state.read_steps()
    assert state.doing is None
    state.playing = (1, 64)
    assert "step 2: 1/64 rollouts" in map(str, panel_lines(state, 80, 40))
    state.ended = True
    assert state.doing is None


def test_lines_report_a_slow_step(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PlainSteps("training", folder, Output("plain", environ={})) as shown:
        shown.played(1, 64)
        assert "rollouts" not in capsys.readouterr().err
        monkeypatch.setattr("wander_client.training.panel.STEP_SECONDS", 0.0)
        shown.played(2, 64)
        assert capsys.readouterr().err == "step 1: 2/64 rollouts\n"
