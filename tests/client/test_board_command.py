"""`wander env board`: how boards are shown, against the real hub application."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import HubRoom, make_wheel
from saved_runs import write_run

NAME = "admin/say-env"


@pytest.fixture
def room(hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    """A hub with two boards of one version, for an administrator who is logged in."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.publish(make_wheel(home))
    posted = [("good", [1.0, 1.0, 1.0, 0.0]), ("bad", [1.0, 0.0, 0.0, 0.0]), ("fewer", [1.0, 1.0])]
    for name, rewards in posted:
        run = write_run(home / "runs" / name, rewards=rewards, model=name)
        assert hub.wander("post", str(run)).status == 0
    return hub


def names(room: HubRoom) -> list[str]:
    shown = room.wander("leaderboard", NAME, "--json")
    assert shown.status == 0, shown.err
    return [shown.data["board"], *(one["board"] for one in shown.data["others"])]


def test_boards_are_changed(room: HubRoom) -> None:
    busy, other = names(room)
    columns = "model,rank,reward,interval,metric:right,level"
    done = room.wander("env", "board", NAME, other, "--title", "Short", "--columns", columns, "--pin")
    assert done.status == 0, done.err
    assert done.out.splitlines()[1:] == ['title      "Short"', "pinned     yes"]
    assert names(room) == [other, busy], "the pinned one comes first"
    more = room.wander("env", "board", NAME, other[:5], "--description", "Two examples.", "--json")
    assert (more.data["title"], more.data["pinned"]) == ("Short", True), "what is not named stays"
    shown = room.wander("leaderboard", NAME, "--json").data
    assert (shown["description"], shown["columns"]) == ("Two examples.", columns.split(","))
    usual = room.wander("env", "board", NAME, other, "--columns", "usual", "--no-pin")
    assert usual.status == 0, usual.err
    assert names(room) == [busy, other]
    assert room.wander("env", "board", NAME, other, "--title", "").status == 0
    assert room.wander("leaderboard", NAME, "--board", other, "--json").data["title"] == ""


def test_boards_show_the_columns_that_the_owner_chose(room: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    board = names(room)[0]
    columns = "level,model,reward,metric:right,interval,rank,examples"
    done = room.wander("env", "board", NAME, board, "--columns", columns, "--description", "Short words.")
    assert done.status == 0, done.err
    plain = room.wander("leaderboard", NAME, "--board", board)
    assert plain.out.startswith("rank_low\trank_high\tmodel\tname\treward_mean\t"), (
        "programs get the same of every board"
    )
    assert "Short words." in plain.err
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    heading = room.wander("leaderboard", NAME, "--board", board).out.splitlines()[0]
    assert " ".join(heading.split()) == "level model mean reward right 95% interval rank examples run"


def test_proofs_of_a_run_are_printed_by_level(room: HubRoom, home: Path) -> None:
    told = room.wander("runs", "evidence", "runs/good")
    assert told.status == 0, told.err
    lines = told.out.splitlines()
    assert lines[0].startswith("complete: all expected rollouts were posted")
    assert [line.split()[:2] for line in lines if line[:1].isalpha()][1:-1] == [
        ["complete", "proved:"],
        ["rescored", "open:"],
        ["replayed", "open:"],
    ]
    assert lines[-1].startswith("self-reported: which model wrote the completions")
    data = room.wander("runs", "evidence", "runs/good", "--json").data
    assert [one["level"] for one in data["proofs"]] == ["complete", "rescored", "replayed"]
    assert room.wander("runs", "evidence", "nothing").status == 3
    changed = write_run(home / "changed", rewards=[1.0] * 4, model="good")
    shutil.copy(home / "runs" / "good" / "run.json", changed)
    refused = room.wander("runs", "evidence", str(changed))
    assert (refused.status, refused.out) == (1, ""), refused.err
    assert "differs from the posted run" in refused.err
    (home / "runs" / "good").rename(home / "aside")  # so that it is read from the hub
    shown = room.wander("runs", "show", data["run_id"])
    (home / "aside").rename(home / "runs" / "good")
    assert "self-reported by the submitter" in shown.out
    board = room.wander("leaderboard", NAME)
    assert "self-reported and not verified" in board.err
    assert "stated_by_the_submitter" in room.wander("leaderboard", NAME, "--csv", "-").out.splitlines()[0]


def test_an_unknown_board_is_not_found(room: HubRoom) -> None:
    board = names(room)[0]
    for words, said in (
        ((), "no change was given"),
        (("--columns", "rank,color"), "`color` is not a column"),
        (("--columns", "rank,model"), "a board always shows"),
        (("--title", "x" * 101), "`title`"),
    ):
        done = room.wander("env", "board", NAME, board, *words)
        assert (done.status, said in done.err) == (2, True), done.err
    missing = room.wander("env", "board", NAME, "zzz", "--pin")
    assert missing.status == 3
    assert "has no board `zzz`" in missing.err
    assert room.wander("env", "board", f"{NAME}@9.9", board, "--pin").status == 3


def test_runs_with_equal_answers_are_folded_unless_the_owner_unfolds_them(room: HubRoom, home: Path) -> None:
    posted = []
    for name in ("first", "renamed"):
        run = write_run(home / "runs" / name, rewards=[1.0, 0.0, 1.0, 1.0], model=name, said="one")
        posted.append(room.wander("post", str(run), "--json").data["run_id"])

    def rows() -> dict[str, int]:
        board = room.wander("leaderboard", NAME, "--board", busy, "--json").data
        return {row["run_id"]: row["folded_runs"] for row in board["rows"] if row["run_id"] in posted}

    busy = names(room)[0]
    assert rows() == {posted[0]: 1}
    shown = room.wander("leaderboard", NAME, "--board", busy)
    assert "`first` also represents `renamed`" in shown.err, "who looks for a model finds it"
    assert room.wander("env", "board", NAME, busy, "--no-fold").status == 0
    assert rows() == dict.fromkeys(posted, 0)


def test_rows_show_truncation_and_similar_names(
    room: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings = ("timeout_reached", "context_overflow", "timeout_reached")
    run = write_run(home / "runs" / "cut", rewards=[1.0, 1.0, 0.0, 0.0], model="g00d", endings=endings)
    assert room.wander("post", str(run)).status == 0
    assert (
        room.wander("post", str(write_run(home / "runs" / "o", rewards=[0.0] * 4, model="gOOd"))).status == 0
    )
    shown = room.wander("leaderboard", NAME)
    columns, *rows = (line.split("\t") for line in shown.out.splitlines())
    counts = {row[columns.index("model")]: row[columns.index("cut_short_rollouts_stated")] for row in rows}
    assert counts == {"good": "0", "bad": "0", "g00d": "3", "gOOd": "0"}
    assert "`g00d` looks like `gOOd`" in shown.err
    assert "`gOOd` looks like `g00d`" in shown.err
    assert "`good` looks like" not in shown.err, "small and capital letters do not look alike"
    header, *lines = room.wander("leaderboard", NAME, "--csv", "-").out.splitlines()
    column = header.split(",").index("cut_short_rollouts_stated")
    assert sorted(line.split(",")[column] for line in lines) == ["0", "0", "0", "3"]
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    assert "cut short" in room.wander("leaderboard", NAME).out.splitlines()[0]
    other = names(room)[1]
    heading = room.wander("leaderboard", NAME, "--board", other).out.splitlines()[0]
    assert "cut short" not in heading, "of a board without such rollouts there is no such column"
