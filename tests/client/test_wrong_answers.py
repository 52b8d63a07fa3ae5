"""What a hub answers is compared with what was asked: no other name, file or digest takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from lying_hub import LyingHub


def files_of(home: Path) -> dict[Path, bytes]:
    """Return what lies in a user's folders, without the hub's own and what may change."""
    found = [path for path in home.rglob("*") if path.is_file() and "hub" not in path.relative_to(home).parts]
    return {path: path.read_bytes() for path in found if path.suffix != ".log" and ".locks" not in path.parts}


WRONG_NAMES = [
    {"owner": ".."}, {"owner": "other"}, {"name": "../../../.bashrc"}, {"name": "other"}, {"version": "9.9"},
    {"version": "../../x"}, {"version": "1/../../x"}, {"name": "/etc/passwd"}, {"owner": "", "name": ""},
    {"name": "say-env/../x"}, {"owner": "admin\n"}, {"version": None}, {"owner": ["admin"]},
]  # fmt: skip
ASKING = (
    ["install", "admin/say-env@0.1.0"],
    ["env", "info", "admin/say-env@0.1.0"],
    ["env", "fork", "admin/say-env@0.1.0", "--name", "mine"],
    ["eval", "admin/say-env@0.1.0", "-m", "scripted:say_env:solver"],
)


def test_a_response_about_another_object_is_rejected(behind: LyingHub, wander: Wander, home: Path) -> None:
    before = files_of(home)
    for change in WRONG_NAMES:

        def edit(data: Any, change: dict[str, Any] = change) -> None:
            for part in (data, data.get("latest", {})):
                part.update({name: value for name, value in change.items() if name in part})

        behind.be_honest()
        behind.edit("/api/v1/environments/admin/say-env", edit)
        for words in (*ASKING, ["install", "admin/say-env"]):
            result = wander(*words, "--json")
            assert result.status == 5, (change, words, result.out, result.err)
            assert result.json["error"]["code"] in ("wrong_answer", "unexpected_answer")
    assert files_of(home) == before


WRONG_FILES: list[dict[str, Any]] = [
    {"filename": "../../../.bashrc"}, {"filename": ".bashrc"}, {"filename": "/etc/x.whl"}, {"size": -1},
    {"sha256": "../.."}, {"sha256": ""}, {"sha256": None}, {"sha256": "0" * 64}, {"url": None}, {"url": 3},
    {"size": None}, {"size": "big"}, {"size": 3}, {"filename": "not-a-wheel.whl"}, {"kind": "other"},
    {"filename": "say_env-0.1.0-py3-none-any.whl/../x"}, {"filename": "other_env-0.1.0-py3-none-any.whl"},
    {"filename": "say_env-" + "9" * 5000 + "-py3-none-any.whl"}, {"url": "http://["}, {"url": "file:///etc"},
]  # fmt: skip


@pytest.mark.parametrize("missing", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_wrong_file_of_a_version_is_a_hub_error(
    behind: LyingHub, wander: Wander, home: Path, missing: bool
) -> None:
    before = files_of(home)
    for change in WRONG_FILES:

        def edit(data: Any, change: dict[str, Any] = change) -> None:
            for file in (*data["files"], *data.get("latest", {}).get("files", [])):
                for name, value in change.items():
                    if missing:
                        file.pop(name)
                    else:
                        file[name] = value

        behind.be_honest()
        behind.edit("/versions/0.1.0$", edit)
        for words in (ASKING[0], ASKING[2]):
            result = wander(*words, "--json")
            assert result.status in (1, 3, 5), (change, words, result.out, result.err)
            assert result.json["error"]["code"] != "internal", (change, words)
    after = files_of(home)
    assert {path: after[path] for path in before} == before
    assert all((home / "cache") in path.parents for path in after.keys() - before.keys())
