"""Rows, foreign results and names of folders that somebody sent: read, or refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from received_folders import ALL_USERS_FILE, UNPLAIN
from wander.errors import ConfigError, RunError
from wander.evals.foreign_run import read_results
from wander.train.data import read_rows
from wander_client.commands.shell.suggestions import suggest

ROW = b'{"messages": [{"role": "user", "content": "x"}]}\n'
PUTS: dict[str, Callable[[Path], object]] = {
    **UNPLAIN,
    "deep": lambda path: path.write_text("[" * 100_000 + "\n"),
    "deep messages": lambda path: path.write_text('{"messages": [' * 10_000 + "\n"),
    "digits": lambda path: path.write_text('{"messages": ' + "9" * 100_000 + "}\n"),
    "many values": lambda path: path.write_bytes(b'{"messages": [' + b"[]," * 30_000_000 + b"[]]}\n"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\n"),
    "a lone surrogate": lambda path: path.write_text('{"messages": [{"role": "\\ud800"}]}\n'),
    "a list": lambda path: path.write_text("[1]\n"),
}


@pytest.mark.parametrize("put", PUTS)
def test_training_rows_are_read_or_rejected(put: str, home: Path) -> None:
    PUTS[put](home / "rows.jsonl")
    with pytest.raises(ConfigError) as refused:
        list(read_rows(home / "rows.jsonl"))
    assert "rows.jsonl" in str(refused.value)


def test_ordinary_rows_are_read(home: Path) -> None:
    (home / "rows.jsonl").write_bytes(ROW + b"\n" + ROW.rstrip())
    (home / "link.jsonl").symlink_to("rows.jsonl")  # the user named it
    assert list(read_rows(home / "link.jsonl")) == [json.loads(ROW)] * 2


@pytest.mark.parametrize("put", [*PUTS, "a link"])
@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("results.jsonl", "results.jsonl"),
        pytest.param("results.jsonl", "metadata.json", marks=pytest.mark.full),
        ("traces.jsonl", "traces.jsonl"),
        pytest.param("traces.jsonl", "configs/resolved/eval.json", marks=pytest.mark.full),
    ],
)
def test_foreign_results_are_read_or_rejected(put: str, mark: str, name: str, home: Path) -> None:
    folder = home / "received"
    (folder / name).parent.mkdir(parents=True)
    (folder / mark).write_text('{"nodes": []}\n')
    (folder / name).unlink(missing_ok=True)
    (PUTS | {"a link": lambda path: path.symlink_to(ALL_USERS_FILE)})[put](folder / name)
    with pytest.raises(RunError):
        read_results(folder)


@pytest.mark.parametrize("put", PUTS)
def test_unreadable_settings_are_skipped(put: str, home: Path) -> None:
    folder = home / "received"
    (folder / "configs").mkdir(parents=True)
    (folder / "traces.jsonl").write_text('{"nodes": []}\n')
    PUTS[put](folder / "configs" / "eval.toml")
    assert len(read_results(folder).rollouts) == 1


NAMES = [
    *("plain", "with space", "$(touch owned)", "`touch owned`", "a;b", "a\nb", "-rf", "ü", "a'b"),
    *("\x1b[2J", "\u202e"),
]


def test_only_plain_folder_names_are_completed(home: Path) -> None:
    for name in NAMES:
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "run.json").write_text("{}")
    (home / "runs" / "dangling").mkdir()
    (home / "runs" / "dangling" / "run.json").symlink_to("nowhere")
    (home / "runs" / "fifo").mkdir()
    os.mkfifo(home / "runs" / "fifo" / "run.json")
    shown = {Path(word).name for word in suggest("run")}
    assert shown == {"plain", "-rf", "ü"}
