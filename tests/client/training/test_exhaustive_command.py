"""Exhaustive evaluations: counts, lost lines on the screen and as JSON, viewing, replaying, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Wander

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")


@pytest.fixture
def walk_words() -> tuple[str, ...]:
    return (
        "eval",
        TICTACTOE,
        "--set",
        "exhaustive=true",
        "--set",
        "in_process=true",
        "-a",
        "max_random_move_prob=0",
    )


def test_exhaustive_play_counts_and_shows_lost_lines(
    wander: Wander, home: Path, walk_words: tuple[str, ...]
) -> None:
    words = (*walk_words, "-m", "scripted:tictactoe.players:random", "--out", "run")
    result = wander(*words)
    assert result.status == 0, result.err
    first, *_ = result.out.splitlines()
    assert " lost; 0 with an invalid move" in first
    assert "You lose." in result.out
    assert "o-first-8" in result.out

    listed = wander("view", "run", "--where", "lost==1", "--limit", "1", "--json")
    rows = listed.data
    assert f"{rows['matching']:,} lost" in first
    number = rows["rollouts"][0]["number"]
    assert "You lose." in wander("view", "run", "--rollout", str(number)).out

    replayed = wander("runs", "replay", "run", "--json")
    assert replayed.status == 0, replayed.err
    assert replayed.data["differing"] == 0

    again = wander("eval", "--resume", "run", "--json")
    assert again.status == 0, again.err
    assert again.data["lost"] == rows["matching"]


def test_every_bad_line_is_in_the_json(wander: Wander, home: Path, walk_words: tuple[str, ...]) -> None:
    result = wander(*walk_words, "-m", "scripted:tictactoe.players:random", "--json")
    assert result.status == 0, result.err
    data = result.data
    assert data["lost"] == len(data["bad_lines"]) > 0
    assert not data["clean"]
    line = data["bad_lines"][0]
    assert line["outcome"] == "lost"
    assert line["messages"][-1]["content"].startswith("You lose.")
    assert len(line["replies"]) == len(line["completions"])
    best = wander(*walk_words, "-m", "scripted:tictactoe.players:optimal", "--json")
    assert best.data["clean"]


def test_a_local_model_is_played_exhaustively(
    wander: Wander, home: Path, walk_words: tuple[str, ...]
) -> None:
    made = wander(
        *("model", "new", "tiny", "--environment", TICTACTOE, "--out", "tiny", "--episodes", "12"),
        *("--hidden", "32", "--layers", "1"),
    )
    assert made.status == 0, made.err
    result = wander(*walk_words, "-m", "./tiny", "-a", "max_turns=1", "--max-tokens", "4", "--json")
    assert result.status == 0, result.err
    data = result.data
    assert data["unfinished"] == data["lines"] == 10
    assert data["model"]["kind"] == "TransformersClient"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-t", "0.5"), "`sampling.temperature` has no effect"),
        (("-n", "3"), "`num_examples` has no effect"),
        (("--set", "shuffle=true"), "`shuffle` has no effect"),
    ],
)
def test_sampling_options_are_rejected_for_exhaustive_play(
    wander: Wander, walk_words: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    result = wander(*walk_words, "-m", "scripted:tictactoe.players:random", *words)
    assert result.status == 2
    assert said in result.err


def test_an_environment_without_declared_replies_is_rejected(
    wander: Wander, folder: Path, home: Path
) -> None:
    result = wander(
        "eval", str(folder), "-m", "scripted:say_env:solver", "--set", "exhaustive=true", "--out", "run"
    )
    assert result.status == 2
    assert "declares no openings" in result.err
    assert "docs/authoring.md" in result.err
    assert not (home / "run").exists()
    alone = wander("eval", str(folder), "-m", "scripted:say_env:solver", "--set", "max_lines=5")
    assert alone.status == 2
    assert "`max_lines` requires `exhaustive`" in alone.err
