"""Everything that writes a file by renaming it keeps devices, FIFOs and the streams of processes in place.

Otherwise, an administrator who exports to `/dev/null` replaces it with a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wander.evals.store.jsonl import replace_file
from wander_hub.operation.archive import written
from wander_hub.server.first_token import _write_secret


def write(opened: Any) -> None:
    with opened as file:
        file.write(b"x")


WRITERS: dict[str, Callable[[Path], None]] = {
    "runs export": lambda path: write(replace_file(path)),
    "wander-hub export": lambda path: write(written(path)),
    "wander-hub serve --token-file": lambda path: _write_secret(path, "x"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_only_files_are_replaced(tmp_path: Path, writer: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    for name, is_kind in (("fifo", stat.S_ISFIFO), ("to-fifo", stat.S_ISLNK), ("stdout", stat.S_ISLNK)):
        with pytest.raises(OSError, match="not a plain file"):
            WRITERS[writer](tmp_path / name)
        assert is_kind((tmp_path / name).lstat().st_mode), name
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    for name in ("new", "old", "link"):
        WRITERS[writer](tmp_path / name)
        assert (tmp_path / name).read_text().strip() == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("fifo", "link", "new", "old", "stdout", "to-fifo")
    ]
