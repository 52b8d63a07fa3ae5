"""The processes that fork commands for tests: what a fork that fails may not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from warm_programs import WarmCommands


def test_the_exit_status_of_a_failed_fork_is_not_taken_for_its_number(tmp_path: Path) -> None:
    """Its status is 1, and to kill the group of process 1 kills every process of the machine."""
    programs = WarmCommands()
    program = programs.warm("wander_client.main", dict(os.environ))
    with pytest.raises(RuntimeError, match="ended before it started"):
        program.start(["wander"], dict(os.environ), {}, tmp_path / "missing")
    programs.close()
