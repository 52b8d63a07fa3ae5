"""The benchmark runs: every contender that needs nothing installed, and the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "evaluator.py"


@pytest.mark.full
def test_the_evaluator_benchmark_prints_its_table() -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--n", "40", "--concurrency", "8", "--turns", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    shown = ("bare aiohttp", "wander", "wander, saving", "wander, worker", "share of bare aiohttp")
    for name in (*shown, "1 turn: rollouts a second", "most memory at 40 rollouts, c=256", "import wander"):
        assert name in rows
