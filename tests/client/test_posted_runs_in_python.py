"""Posted runs as values of Python: fetched on demand, derived again and compared; boards by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import wander as library
from command_line import HubRoom, Wander, make_wheel
from received_folders import change_manifest
from saved_runs import write_run
from wander_client import ClientError, Hub, NotFound, Run, Unavailable, UsageError


@pytest.fixture
def room(hub: HubRoom, tmp_path: Path) -> HubRoom:
    hub.publish(make_wheel(tmp_path, version="0.1.0"))
    return hub


@pytest.fixture
def mine(room: HubRoom) -> Hub:
    return Hub(token=room.token, transport=room.transport, progress=False)


@pytest.fixture
def asked(room: HubRoom, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the hub is asked for."""
    return room.note_requests(monkeypatch)


def test_a_posted_run_is_read_like_a_local_run(mine: Hub, home: Path, asked: list[str]) -> None:
    local = Run(write_run(home / "runs" / "one", rewards=[1.0, 0.0, 1.0]))
    posted = mine.post(local)
    run = mine.run(posted.run_id[:10])
    asked.clear()
    assert (run.id, run.reward, run.interval) == (local.id, local.reward, local.interval)
    assert (run.model, run.environment, run.failed) == (local.model, local.environment, 0)
    assert posted.url in f"{run!r}"
    assert posted.url in run._repr_html_()
    assert asked == [], "nothing is fetched for what the hub has said"
    assert [one.model_dump() for one in run.rollouts] == [one.model_dump() for one in local.rollouts]
    fetched = len(asked)
    assert fetched > 0
    assert run.rollouts[1].reward == 0.0
    assert run.path.is_dir()
    assert run.path != local.path
    again = mine.run(posted.run_id)
    asked.clear()
    assert list(again.rollouts) == list(local.rollouts)
    assert asked == [], "the cache has it"
    assert again.compare(local).difference == 0.0
    assert local.compare(again).difference == 0.0
    assert Run(again.save(home / "copy")).reward == local.reward


def test_an_interrupted_download_starts_again(mine: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posted = mine.post(write_run(home / "runs" / "one", rewards=[1.0, 0.0, 1.0]))
    from wander_client.hub.api import HubApi

    whole = HubApi.rollouts

    def cut(api: HubApi, *run: str) -> object:
        rollouts = whole(api, *run)
        yield next(rollouts)
        raise ConnectionResetError("cut")

    run = mine.run(posted.run_id)
    with monkeypatch.context() as patch:
        patch.setattr(HubApi, "rollouts", cut)
        with pytest.raises(ConnectionResetError):
            run.rollouts  # noqa: B018 - fetches
        patch.setattr(HubApi, "rollouts", lambda api, *run: list(whole(api, *run))[:2])
        with pytest.raises(Unavailable):
            run.rollouts  # noqa: B018
    assert len(run.rollouts) == 3
    (kept,) = (home / "cache" / "posted-runs").iterdir()
    assert kept == run.path


def test_the_evidence_of_a_posted_run_comes_from_the_hub(mine: Hub, home: Path) -> None:
    local = Run(write_run(home / "runs" / "one", rewards=[1.0]))
    posted = mine.post(local)
    evidence = mine.run(posted.run_id).evidence()
    assert (evidence.run_id, evidence.level) == (posted.run_id, posted.level)
    with pytest.raises(NotFound):
        mine.run("0" * 26)


@pytest.mark.full
def test_a_posted_run_is_replayed_and_rerun(wander: Wander, mine: Hub, home: Path, folder: Path) -> None:
    done = wander("eval", str(folder), "-m", "scripted:say_env:solver", "-a", "size=40", "-n", "40", "--json")
    run = Run(done.data["run_dir"])
    report = run.replay()
    assert (report.level, report.replayed, report.differing) == ("replayed", 40, 0)
    assert run.replay(level="rescored", sample=5).replayed == 5
    repeated = run.rerun(out=home / "again")
    assert repeated.agrees
    assert repeated.run.path == home / "again"
    assert repeated.run.manifest.rerun_of == run.id
    assert not run.rerun("scripted:say_env:wrong").agrees
    with pytest.raises(UsageError):
        run.rerun(out=home / "again")
    posted = mine.post(write_run(home / "runs" / "one", rewards=[1.0, 0.0]))
    of_posted = mine.run(posted.run_id).replay(folder=folder)
    assert (of_posted.recorded, of_posted.contradicted) == (2, True)


@pytest.mark.parametrize(
    ("call", "fields", "code"),
    [
        ("rerun", {"model__name": "m", "model__base_url": "https://example.org/v1"}, "endpoint_of_another"),
        ("rerun", {"model__name": "scripted:say_env:solver"}, "model_of_another"),
        ("rerun", {"model__name": "./weights"}, "model_of_another"),
        ("rerun", {"environment__arguments": {"path": "../x"}}, "arguments_of_another"),
        ("replay", {"environment__arguments": {"judge_base_url": "https://x"}}, "arguments_of_another"),
    ],
)
def test_a_received_run_controls_no_more_than_for_the_command(
    call: str, fields: dict[str, Any], code: str, wander: Wander, mine: Hub, room: HubRoom, home: Path
) -> None:
    """Also after its download, and when its downloaded folder is opened or copied."""
    place = write_run(home / "posted" / "one", rewards=[1.0, 0.0], model="m")
    change_manifest(place, **fields)
    run = mine.run(mine.post(place).run_id)
    command = room.wander("runs", call, run.id, "--no-sandbox", "--json")
    assert command.json["error"]["code"] == code
    with pytest.raises(UsageError) as refused:
        getattr(run, call)(sandbox=False)
    assert refused.value.code == code
    for downloaded in (run, Run(run.path), Run(run.save(home / "copy"))):
        with pytest.raises(UsageError) as refused:
            getattr(downloaded, call)(sandbox=False)
        assert refused.value.code == code


def test_a_received_folder_cannot_name_code(wander: Wander, folder: Path, home: Path) -> None:
    done = wander("eval", str(folder), "-m", "scripted:say_env:solver", "-n", "4", "--json")
    own = Run(done.data["run_dir"])
    (home / "received").mkdir()
    for name in ("run.json", "rollouts.jsonl.zst"):
        shutil.copy(own.path / name, home / "received")
    assert own.replay().same == 4
    received = Run(home / "received")
    with pytest.raises(ClientError) as refused:
        received.replay()
    assert refused.value.code == "folder_of_another"
    assert received.replay(folder=folder).same == 4


def test_a_posted_run_is_sandboxed_like_in_the_command(
    mine: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wander_client.evaluate.repeating as repeating
    from wander.sandbox import SandboxPolicy

    monkeypatch.setattr("wander_client.environments.sandbox._has_sandbox", lambda settings: True)
    ready: list[repeating.ReadyReplay] = []
    prepare = repeating.prepare_replay

    class Stopped(Exception):
        """Before anything is installed and played."""

    def stop(*given: Any, **options: Any) -> None:
        ready.append(prepare(*given, **options))
        raise Stopped

    monkeypatch.setattr(repeating, "prepare_replay", stop)
    monkeypatch.setattr(repeating, "locate_pinned", lambda *given, **options: None)
    monkeypatch.setattr(repeating, "require_confined", lambda *given, **options: None)
    run = mine.run(mine.post(write_run(home / "runs" / "one", rewards=[1.0, 0.0])).run_id)
    for asked, policy in (
        ({}, SandboxPolicy()),
        ({"sandbox": {}}, SandboxPolicy()),
        ({"sandbox": {"memory": "1G"}}, SandboxPolicy(memory=1 << 30)),
        ({"sandbox": False}, None),
        ({"folder": home}, None),
        ({"folder": home, "sandbox": True}, SandboxPolicy()),
    ):
        with pytest.raises(Stopped):
            run.replay(**asked)
        assert ready.pop().sandbox == policy
    for wrong in ("yes", 1.5, ["memory=1G"]):
        with pytest.raises(UsageError):
            run.replay(sandbox=wrong)
    for wrong in ({"level": "best"}, {"sample": 0}):
        with pytest.raises(UsageError):
            run.replay(**wrong)


def test_downloads_of_different_hubs_are_separate(room: HubRoom, mine: Hub, home: Path) -> None:
    posted = mine.post(write_run(home / "runs" / "one", rewards=[1.0, 0.0]))
    first = mine.run(posted.run_id).path
    other = Hub("https://other.example", token=room.token, transport=room.transport, progress=False)
    assert other.run(posted.run_id).path != first


def test_a_board_names_itself_and_the_other_boards(mine: Hub, home: Path) -> None:
    for number, rewards in enumerate(([1.0, 0.0], [1.0, 0.0, 1.0], [1.0])):
        mine.post(write_run(home / "runs" / f"r{number}", rewards=rewards, model=f"m{number}"))
    board = mine.leaderboard("admin/say-env@0.1.0")
    assert board.name
    assert board.name in f"{board!r}"
    assert board.name in board._repr_html_()
    assert f"{board.leaderboard.examples} example" in board.protocol
    assert {other.board for other in board.others} | {board.name} == {
        mine.leaderboard("admin/say-env@0.1.0", board=each).name for each in (board, *board.others)
    }
    assert len(board.others) == 2
    other = board.others[0]
    assert mine.leaderboard("admin/say-env@0.1.0", board=other.board)[0].model != board[0].model
    empty = mine.leaderboard("admin/say-env@0.1.0", board=board, model="nobody's")
    assert (len(empty), empty.name) == (0, board.name)


@pytest.mark.full
def test_new_model_creates_the_same_model_as_the_command(wander: Wander, folder: Path, home: Path) -> None:
    done = wander("eval", str(folder), "-m", "scripted:say_env:solver", "-n", "8", "--json")
    words = ("--hidden", "32", "--layers", "1", "--vocabulary", "330")
    made = wander(
        "model", "new", "tiny", "--transcripts", done.data["run_dir"], "-o", "typed", *words, "--json"
    )
    size = {"hidden": 32, "layers": 1, "vocabulary": 330}
    run = Run(done.data["run_dir"])
    assert library.new_model(home / "called", transcripts=run, progress=False, **size) == home / "called"
    from wander.models.loading import weights_digest

    assert weights_digest(home / "called") == made.data["weights_sha256"]
    played = library.new_model(
        home / "played", environment=folder, episodes=5, arguments={"size": 3}, progress=False, **size
    )
    assert (played / "config.json").is_file()
    for given in ({}, {"environment": folder, "transcripts": run}):
        with pytest.raises(UsageError):
            library.new_model(home / "none", progress=False, **given)
