"""`wander runs list`: which runs, in which order, here and on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import HubRoom, Wander
from saved_runs import write_run


@pytest.fixture
def three(home: Path) -> list[str]:
    """Folders of three runs, the oldest first."""
    runs = home / "runs"
    return [
        str(write_run(runs / "one", rewards=[0.0, 1.0], model="smollm2-135m")),
        str(write_run(runs / "two", rewards=[1.0, 1.0], model="gpt-x", owner="acme")),
        str(write_run(runs / "three", rewards=[0.0, 0.0], model="SmolLM2-360M", owner=None)),
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["three", "two", "one"]),
        (["--sort", "reward"], ["three", "one", "two"]),
        (["--sort", "-reward", "--limit", "1"], ["two"]),
        (["-m", "smollm2"], ["three", "one"]),
        (["-m", "gpt-?"], ["two"]),
        (["-e", "say-env"], ["three", "two", "one"]),
        (["-e", "acme/*"], ["two"]),
        (["-e", "admin/say-env"], ["one"]),
        (["--since", "1h"], ["three", "two", "one"]),
        (["--since", "2200-01-01"], []),
        (["--sort", "started", "--limit", "2"], ["one", "two"]),
    ],
)
def test_runs_are_filtered_and_sorted(
    wander: Wander, three: list[str], words: list[str], expected: list[str]
) -> None:
    for command in (["runs"], ["runs", "list"]):
        if command == ["runs"] and not words:
            assert [Path(row["run_dir"]).name for row in wander("runs", "--json").data] == expected
        result = wander(*command, *words, "--json")
        assert result.status == 0, result.err
        assert [Path(row["run_dir"]).name for row in result.data] == expected


def test_another_folder_is_listed(wander: Wander, three: list[str], home: Path) -> None:
    (home / "runs").rename(home / "elsewhere")
    assert len(wander("runs", "list", "elsewhere", "--json").data) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "luck"], "sort by one of started"),
        (["--since", "yesterday"], "`7d`"),
        (["--level", "sure"], "use `claimed`, `unverifiable`, `complete`"),
        (["list", ".", "--posted"], "remove the folder"),
    ],
)
def test_contradictory_options_are_rejected(wander: Wander, words: list[str], said: str) -> None:
    result = wander("runs", *words)
    assert result.status == 2
    assert said in result.err


def test_runs_on_the_hub_have_levels(hub: HubRoom, three: list[str], home: Path) -> None:
    hub.publish(home / "say_env-0.1.0-py3-none-any.whl")
    (home / "token").write_text(hub.token)
    assert hub.wander("login", "--token-file", str(home / "token")).status == 0
    assert hub.wander("post", three[0]).status == 0
    rows = hub.wander("runs", "--posted", "--json").data
    assert [(row["model"], row["level"], row["posted_by"]) for row in rows] == [
        ("smollm2-135m", "complete", "admin")
    ]
    assert len(hub.wander("runs", "--level", "complete", "-e", "admin/say-env", "--json").data) == 1
    assert hub.wander("runs", "--level", "replayed", "--json").data == []
    assert "\tlevel\n" in hub.wander("runs", "--posted").out
    (found,) = hub.wander("runs", "search", "--only", "scored", "--json").data["runs"]
    reply = found["rollouts"][0]["preview"]
    data = hub.wander("runs", "search", reply[:100], "-m", "smollm2-135m", "--json").data
    assert ([run["run_id"] for run in data["runs"]], data["complete"]) == ([found["run_id"]], True)
    assert hub.wander("runs", "search", reply[:100], "-m", "another", "--json").data["runs"] == []
    assert reply[:10] in hub.wander("runs", "search", reply[:100]).out
    assert hub.wander("runs", "search").status == 2
