"""One lease of a GPU machine: every part gets its time, and what it measured is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import gpu_script

lease = gpu_script("lease")
ROOT = Path(__file__).resolve().parents[2]
REPORT: dict[str, Any] = {
    "rollouts": [{"at_once": 16, "games": 40.0, "tokens": 900.0}],
    "steps": [{"at_once": 16, "seconds": {"step": 2.0}}],
    "bare": [{"at_once": 16, "seconds": {"bare": 4.0}, "ratio": 0.5}],
}
PROGRAM = """
import pathlib, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for report in (word for word in sys.argv if word.startswith("{")):
    (out / "gpu.json").write_text(report)
(out / "started").touch()
time.sleep(60 if "--sleep" in sys.argv else 0)
sys.exit(3 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def part(name: str, program: str, share: float, *words: str) -> Any:
    given = " ".join([*words, json.dumps(REPORT, separators=(",", ":"))])
    return lease.Part(name, program, share, "", given, goal=0.85)


def test_a_failed_or_slow_part_does_not_affect_others(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (
        part("broken", program, 0.1, "--fail"),
        part("endless", program, 0.1, "--sleep"),
        part("last", program, 0.8),
    )
    monkeypatch.setattr(lease, "PARTS", parts)
    monkeypatch.setattr(lease, "LEAVING", 1.0)
    began = time.monotonic()
    assert lease.main(["--device", "cpu", "--limit", "60", "--out", str(tmp_path / "out")]) == 1
    assert time.monotonic() - began < 60
    outcomes = json.loads((tmp_path / "out" / "lease.json").read_text())
    assert [(outcome["name"], outcome["status"]) for outcome in outcomes] == [
        ("broken", 3),
        ("endless", None),
        ("last", 0),
    ]
    assert all(outcome["report"] == REPORT for outcome in outcomes)
    text = (tmp_path / "out" / "lease.md").read_text()
    assert text in capsys.readouterr().out
    assert "| last | 16 | 40.0 | 900 | 2.00 | 4.00 | 0.50 | 0.85 |" in text
    assert "stopped, because its time was over" in text


def test_a_lease_that_is_stopped_leaves_no_program_behind(program: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'scripts/gpu')!r}]; import lease; "
        f"lease.PARTS = (lease.Part('endless', {program!r}, 1.0, '', '--sleep'),); "
        f"sys.exit(lease.main(['--device', 'cpu', '--out', {str(tmp_path / 'out')!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    started = tmp_path / "out" / "endless" / "started"
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    running = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    assert program not in running


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_part_names_options_that_its_program_has(device: str) -> None:
    assert sum(part.share for part in lease.PARTS) == pytest.approx(1.0)
    for each in lease.PARTS:
        source = (ROOT / each.script).read_text(encoding="utf-8")
        words = (each.rehearsal if device == "cpu" else each.options).split()
        for word in (word for word in words if word.startswith("--")):
            assert f'"{word}"' in source, f"{each.script} has no {word}"
