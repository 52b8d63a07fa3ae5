"""The four journeys of docs/api/walks.md enter no more files than `scripts/walks.py` allows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_names_files_that_exist():
    paths = re.findall(r"(?m)^\| `([^`]+\.py)` \|", (ROOT / "docs/api/walks.md").read_text())
    assert len(paths) > 100
    assert [path for path in set(paths) if not (ROOT / path).is_file()] == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_journey_enters_more_files_than_allowed():
    script = [sys.executable, ROOT / "scripts" / "walks.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
