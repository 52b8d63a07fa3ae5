"""Shards whose model plays in the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Wander
from shard_records import aggregates_of, records_of

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")


@pytest.mark.full
def test_merged_shards_with_a_local_model_equal_a_run_without_shards(wander: Wander, home: Path) -> None:
    """Alone in its batch, each completion has the same log-probabilities to the last bit."""
    small = ("--environment", TICTACTOE, "--episodes", "12", "--hidden", "32", "--layers", "1")
    made = wander("model", "new", "tiny", *small, "--out", "tiny")
    assert made.status == 0, made.err
    words = ("eval", TICTACTOE, "-m", "./tiny", "-n", "3", "-r", "2", "-c", "1", "--max-tokens", "8")
    words += ("--set", "in_process=true", "--json")
    assert wander(*words, "--out", "at-once").status == 0
    parts = [f"part-{number}" for number in range(2)]
    for number, part in enumerate(parts):
        assert wander(*words, "--set", f"shard={number}/2", "--out", part).status == 0
    assert wander("runs", "merge", *parts, "--out", "whole", "--json").status == 0
    records = records_of(Path("whole"))
    assert len(records) == 6
    assert all(b"logprobs" in record for record in records)
    assert records == records_of(Path("at-once"))
    assert aggregates_of(Path("whole")) == aggregates_of(Path("at-once"))
