"""Posting again, or posting runs that fail first, moves no row: the simulation behind docs/statistics.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "repeated_posting.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repeated_posting", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_failed_runs_before_the_first_success_do_not_move_a_row(simulation: ModuleType) -> None:
    for held, better in simulation.measure("0 or 1", "first, half fail", 300):
        assert held >= 0.9
        assert better <= 0.01


def test_choosing_the_best_of_many_runs_would_move_a_row(simulation: ModuleType) -> None:
    *_, (held, better) = simulation.measure("0 or 1", "best", 40)
    assert held < 0.4
    assert better > 0.0
