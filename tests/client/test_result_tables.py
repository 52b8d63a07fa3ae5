"""What a person reads of results: which board, which version, on a terminal of 80 columns."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from board_rows import make_board_row
from command_line import HubRoom, Result, Wander, make_wheel
from saved_runs import write_run
from wander.wire.boards import BOARD_COLUMNS
from wander_client.names import EnvironmentName
from wander_client.packages.store import RECORD, EnvironmentStore, InstalledRecord
from wander_client.runs.board_text import cell_of
from wander_client.runs.lookup import short_ids

LONG_MODEL = "acme-research/a-model-with-a-name-that-goes-on-and-on-7B-instruct-2026"


@pytest.fixture
def posted(hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    """A hub with three boards of one version: two runs, one run of fewer examples, one of other arguments."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.publish(make_wheel(home))
    runs = [
        ("best", [1.0, 1.0, 1.0, 0.0], LONG_MODEL, {}),
        ("other", [1.0, 0.0, 0.0, 0.0], "small", {}),
        ("fewer", [1.0, 1.0], "small", {}),
        ("sized", [1.0, 1.0, 0.0, 0.0], "small", {"size": 4}),
    ]
    for name, rewards, model, arguments in runs:
        run = write_run(home / "runs" / name, rewards=rewards, model=model, arguments=arguments, split_size=4)
        assert hub.wander("post", str(run)).status == 0
    return hub


@pytest.fixture
def narrow(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns with a person before it."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    monkeypatch.setenv("NO_COLOR", "1")


def too_wide(result: Result) -> list[str]:
    assert result.status == 0, result.err
    assert result.out
    titles = (f"{LONG_MODEL} on ",)
    return [line for line in result.out.splitlines() if len(line) > 80 and not line.startswith(titles)]


def test_a_board_shows_its_protocol_and_the_other_boards(posted: HubRoom) -> None:
    result = posted.wander("leaderboard", "admin/say-env")
    assert result.out.splitlines()[0].split("\t")[0] == "rank_low"
    said = result.err.splitlines()
    assert said[0].startswith("admin/say-env 0.1.0, board ")
    assert "eval split, 4 examples x 1 rollout, task set " in said[0]
    assert "other boards of admin/say-env 0.1.0, shown with `--board NAME`:" in said
    others = {line.split()[0]: line for line in said if line.startswith("  ")}
    assert len(others) == 2
    (fewer,) = (name for name, line in others.items() if "2 examples" in line)
    (sized,) = (name for name, line in others.items() if '{"size": 4}' in line)
    for name, model_rows in ((fewer, 1), (sized, 1)):
        shown = posted.wander("leaderboard", "admin/say-env", "--board", name, "--json").data
        assert (shown["board"], len(shown["rows"])) == (name, model_rows)
        assert len(shown["others"]) == 2
    missing = posted.wander("leaderboard", "admin/say-env", "--board", "zzz")
    assert missing.status == 3
    assert "has no board `zzz`" in missing.err


def test_the_score_in_a_search_belongs_to_the_listed_version(posted: HubRoom, home: Path) -> None:
    (row,) = posted.wander("search", "--json").data
    assert (row["latest_version"], row["best_reward"]) == ("0.1.0", 0.75)
    posted.publish(make_wheel(home, version="0.2.0"))
    (row,) = posted.wander("search", "--json").data
    assert (row["latest_version"], row["best_reward"], row["best_model"]) == ("0.2.0", None, None)
    run = write_run(home / "runs" / "newer", rewards=[0.0, 1.0], version="0.2.0", split_size=2)
    assert posted.wander("post", str(run)).status == 0
    (row,) = posted.wander("search", "--json").data
    assert (row["latest_version"], row["best_reward"]) == ("0.2.0", 0.5)


@pytest.mark.usefixtures("narrow")
def test_tables_fit_into_80_columns(posted: HubRoom, home: Path) -> None:
    record = InstalledRecord(
        hub="https://environments.hub.of-acme-research.example.org", owner="acme", name="a-longer-name-of-1",
        version="1.10.0", wheel="w.whl", wheel_sha256="a" * 64, wheel_url="http://h/w.whl",
        lock_sha256="b" * 64, packages_sha256="c" * 64, virtualenv="none", sdk="0.1.0", python="3.11",
        installed_at=datetime.now(UTC),
    )  # fmt: skip
    place = EnvironmentStore(home / "data").folder_for(
        record.hub, EnvironmentName(record.owner, record.name, "1.10.0"), "a" * 64
    )
    place.mkdir(parents=True)
    record.write(place / RECORD)
    for words in (["runs"], ["leaderboard", "admin/say-env"], ["search"], ["env", "list"], ["view", "best"]):
        assert too_wide(posted.wander(*words)) == [], words


@pytest.mark.usefixtures("narrow")
def test_a_narrow_terminal_keeps_run_and_model_readable(posted: HubRoom) -> None:
    for words, rows in ((["runs"], 4), (["leaderboard", "admin/say-env"], 2)):
        lines = [line for line in posted.wander(*words).out.splitlines() if "acme" in line or "small" in line]
        assert len(lines) == rows
        best = next(line for line in lines if "acme" in line)
        assert "acme-rese" in best
        assert "2026" in best


@pytest.mark.usefixtures("narrow")
def test_shortened_run_ids_work_locally_and_on_the_hub(posted: HubRoom, home: Path) -> None:
    line = next(
        one for one in posted.wander("leaderboard", "admin/say-env").out.splitlines() if "acme" in one
    )
    short = line.split()[-1]
    here = posted.wander("view", short, "--json").data
    assert here["manifest"]["model"]["name"] == LONG_MODEL
    (home / "runs").rename(home / "gone")
    there = posted.wander("view", short, "--json").data
    assert there["run_id"] == here["run_id"]
    assert posted.wander("view", short, "--rollout", "0").status == 0
    assert "6 characters of an ID are enough" in posted.wander("view", short[:5]).err


def test_an_ambiguous_run_id_is_rejected(wander: Wander, home: Path) -> None:
    names = [write_run(home / "runs" / name, rewards=[1.0]) for name in ("one", "two")]
    ids = [row["run_id"] for row in wander("runs", "--json").data]
    assert len(names) == len(ids)
    shared = ids[0][:6]
    assert ids[1].startswith(shared), "the first characters of an id are its time"
    refused = wander("view", shared)
    assert refused.status == 2
    assert all(one in refused.err for one in ids)
    assert wander("view", ids[1].upper(), "--json").data["run_id"] == ids[1]
    assert wander("view", ids[1][-10:], "--json").data["run_id"] == ids[1], "as pages show it"


def test_short_ids_are_long_enough_to_be_unique() -> None:
    assert short_ids(["0123456789ab", "1123456789ab"]) == ["01234567", "11234567"]
    assert short_ids(["0123456789ab", "0123456788ab"]) == ["0123456789", "0123456788"]
    assert short_ids(["same", "same"]) == ["same", "same"]
    assert short_ids([]) == []


def test_metrics_are_shown_with_their_intervals(posted: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = posted.wander("leaderboard", "admin/say-env", "--metrics").out.splitlines()
    titles, first = (line.split("\t") for line in lines[:2])
    row = dict(zip(titles, first, strict=True))
    mean, low, high = (float(row[f"metric:right_{part}"]) for part in ("mean", "low_95", "high_95"))
    shown_of_reward = (float(row[name]) for name in ("reward_mean", "reward_low_95", "reward_high_95"))
    assert (mean, low, high) == tuple(shown_of_reward)
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    shown = posted.wander("leaderboard", "admin/say-env", "--metrics").out
    assert f"{mean:.4f} ({low:.2f} to {high:.2f})" in shown


def test_the_command_describes_each_column() -> None:
    with pytest.raises(KeyError):
        cell_of(make_board_row(), "color")
    for column in (*BOARD_COLUMNS, "metric:right", "pass:2"):
        assert str(cell_of(make_board_row(), column)), column


def test_a_board_shows_the_score_on_a_stratum(
    posted: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(
        home / "runs" / "hard",
        rewards=[1.0, 1.0, 0.0, 1.0],
        arguments={"size": 9},
        strata=[0, 0, 1, 1],
    )
    assert posted.wander("post", str(run)).status == 0
    others = posted.wander("leaderboard", "admin/say-env", "--json").data["others"]
    (name,) = (one["board"] for one in others if one["arguments"] == {"size": 9})
    words = ["leaderboard", "admin/say-env", "--board", name]
    assert "strata of the examples: 0, 1; show one with `--stratum N`" in posted.wander(*words).err
    titles, row = (line.split("\t") for line in posted.wander(*words, "--stratum", "1").out.splitlines())
    assert dict(zip(titles, row, strict=True))["stratum:1_mean"] == "0.5"
    (line,) = csv.DictReader(io.StringIO(posted.wander(*words, "--stratum", "1", "--csv", "-").out))
    assert (line["stratum:1_mean"], line["stratum:1_rollouts"]) == ("0.5", "2")
    refused = posted.wander(*words, "--stratum", "7")
    assert (refused.status, "hint: its strata are 0, 1" in refused.err) == (3, True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    shown = posted.wander(*words, "--stratum", "0").out
    assert "stratum 0" in shown
    assert "1.0000" in shown
