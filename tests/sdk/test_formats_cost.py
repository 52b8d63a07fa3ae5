"""Exports of large runs in the formats of other tools need little time and memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import get_args

import pytest
from exported_runs import ConversationRun
from wander.evals.export import Format, export_runs

FORMATS = [kind for kind in get_args(Format) if kind not in ("parquet", "hf")]


def exported(run: ConversationRun, folder: Path, kind: Format) -> None:
    for _ in export_runs([run], folder / f"{time.monotonic_ns()}.{kind}", kind):
        pass


@pytest.mark.full
@pytest.mark.parametrize("kind", FORMATS)
def test_ten_thousand_rollouts_are_exported_quickly(tmp_path: Path, kind: Format) -> None:
    run = ConversationRun(3334, text="x" * 5000)
    started = time.process_time()
    exported(run, tmp_path, kind)
    assert time.process_time() - started < 20
    small = ConversationRun(100, text="x" * 5000)
    large = ConversationRun(600, text="x" * 5000)
    peaks = []
    tracemalloc.start()
    try:
        for each in (small, large):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[1]
            exported(each, tmp_path, kind)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # 1,500 more rollouts are over 8 MB of text. `zipfile` keeps 1 kB for the entry of each rollout.
    assert peaks[1] - peaks[0] < 1_500_000, peaks
