"""Parts of a run played by themselves, and the run that they make."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wander as wander_package
from chat_endpoint import chat_endpoint
from command_line import Result, Wander
from shard_records import aggregates_of, records_of
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.wire.run_record import Shard
from wander_client.engines import EngineAddress
from wander_client.errors import UsageError
from wander_client.runs.shards import SHARDS_FILE
from wander_ray import engine

SOLVER, WRONG = "scripted:say_env:solver", "scripted:say_env:wrong"
SUITE = """
[defaults]
num_examples = 5
in_process = true
[[eval]]
environment = "./say-env"
model = ["scripted:say_env:solver", "scripted:say_env:wrong"]
seed = [0, 1]
"""


def play_shards(wander: Wander, of: int, *words: str, name: str = "part") -> list[Path]:
    """Play every shard of a command line, and return their folders."""
    places = [Path(f"{name}-{number}") for number in range(of)]
    for number, place in enumerate(places):
        done = wander("eval", *words, "--set", f"shard={number}/{of}", "--out", str(place), "--json")
        assert done.status in (0, 6), done.out
    return places


def merge(wander: Wander, places: list[Path], out: str = "whole") -> Result:
    return wander("runs", "merge", *map(str, places), "--out", out, "--json")


def test_merged_shards_equal_a_run_without_shards(wander: Wander, folder: Path) -> None:
    words = (
        str(folder),
        "-m",
        "scripted:say_env:breaks_on_three",
        "-n",
        "7",
        "-r",
        "3",
        "--set",
        "shuffle=true",
        "--set",
        "in_process=true",
    )
    assert wander("eval", *words, "--out", "at-once").status == 6
    places = play_shards(wander, 4, *words)
    assert [RunFolder.open(place).manifest.expected_rollouts for place in places] == [6, 5, 5, 5]
    assert [len(records_of(place)) for place in places] == [6, 5, 5, 5]
    merged = merge(wander, places[::-1])
    assert merged.status == 6, merged.out
    assert records_of(Path("whole")) == records_of(Path("at-once"))
    assert aggregates_of(Path("whole")) == aggregates_of(Path("at-once"))
    one, other = (RunFolder.open(Path(name)).manifest for name in ("whole", "at-once"))
    clock = {"run_id", "started_at", "ended_at"}
    assert one.model_dump(exclude=clock) == other.model_dump(exclude=clock)
    keys = [rollout.key for rollout in RunFolder.open(Path("whole")).rollouts()]
    assert keys == [(name, index) for name in one.example_ids for index in range(3)]
    assert merge(wander, places, "again").data["runs"][0]["run_id"] == one.run_id
    resumed = wander("eval", "--resume", "whole", "--only-failed", "--json")
    assert (resumed.status, resumed.data["summary"]["rollouts"]) == (6, 21)


def test_a_shard_can_be_resumed_but_not_posted(wander: Wander, folder: Path) -> None:
    (place,) = play_shards(wander, 1, str(folder), "-m", SOLVER, "-n", "2", "--set", "in_process=true")
    with pytest.raises(ValueError, match="a shard cannot range"):
        Shard(first=2, end=2, of=3)
    again = wander("eval", "--resume", str(place), "--json")
    assert (again.status, again.data["resumed"]) == (0, 2)
    other = wander("eval", "--resume", str(place), "--set", "shard=1/2", "--json").json["error"]
    assert other["code"] == "other_settings"
    posted = wander("post", str(place), "--json").json["error"]
    assert (posted["code"], "runs merge" in posted["hint"]) == ("shard_alone", True)


def test_incompatible_shards_are_reported_and_not_merged(wander: Wander, folder: Path) -> None:
    words = (str(folder), "-m", SOLVER, "-n", "4", "--set", "in_process=true")
    places = play_shards(wander, 3, *words)
    (other_seed,) = play_shards(wander, 1, *words, "--seed", "1", name="seed")
    wander("eval", *words, "--out", "unsharded")

    def changed(name: str, change: Callable[[dict[str, Any]], None]) -> Path:
        shutil.copytree(places[1], name)
        manifest = json.loads(Path(name, "run.json").read_text())
        change(manifest)
        Path(name, "run.json").write_text(json.dumps(manifest))
        return Path(name)

    older = changed("older", lambda run: run["platform"].update(wander="0.0.1"))
    stopped = changed("stopped", lambda run: run.update(ended_at=None))
    foreign = changed("foreign", lambda run: run["shard"].update(first=2, end=3))

    def rewritten(name: str, old: bytes, new: bytes) -> Path:
        changed(name, lambda run: None)
        packed = Path(name, "rollouts.jsonl.zst")
        Path(name, "rollouts.jsonl").write_bytes(re.sub(old, new, b"".join(jsonl.blocks(packed)), count=1))
        packed.unlink()
        return Path(name)

    nan = rewritten("nan", rb'"reward":[^,]+', b'"reward":NaN')
    dear = rewritten("dear", rb'"reward":[^,]+', b'"reward":99.0')
    extra = rewritten("extra", rb'"metrics":{', b'"metrics":{"charm":1.0,')
    short = changed("short", lambda run: run["shard"].update(first=0, end=2, of=4))
    edited = changed("edited", lambda run: None)
    settings = json.loads((edited / "command.json").read_text())
    settings["command"]["environment_files"]["say_env.py"] = "0" * 64
    (edited / "command.json").write_text(json.dumps(settings))
    cases = [
        ([places[0], places[2]], "shard 1/3 of the run is missing", "--set shard=1/3"),
        ([places[0]], "shards 1/3, 2/3 of the run are missing", "--set shard=1/3"),
        ([*places, places[1]], "shard 1/3 is in `part-1` and in `part-1`", "leave out one"),
        ([places[0], other_seed], "they differ in the seed", "the same command"),
        ([places[0], older, places[2]], "`older` with 0.0.1", "install the same version"),
        ([places[0], stopped, places[2]], "`stopped` is not complete", "--resume stopped"),
        ([places[0], places[1], foreign], "of another shard", "run this shard again"),
        ([places[0], nan, places[2]], "its reward is nan", "run this shard again"),
        ([places[0], dear, places[2]], "`dear` was changed: its rollouts and its", "run this shard again"),
        ([places[0], extra, places[2]], "disagree about `metrics`", "run this shard again"),
        ([places[0], short], "is one of 3 shards, and `short` is one of 4", "the same number"),
        ([places[0], edited, places[2]], "files differ between the shards: say_env.py", "same copy"),
        ([Path("unsharded")], "is a whole run, not a shard", "leave it out"),
        ([Path("nowhere")], "is not a run folder", ""),
    ]
    for chosen, said, hint in cases:
        error = merge(wander, chosen).json["error"]
        assert said in error["message"], error
        assert hint in (error["hint"] or "")
        assert not Path("whole").exists()
    assert list(Path().glob(".*")) == []
    assert "already exists" in merge(wander, places, "unsharded").json["error"]["message"]
    assert "is inside the shard `part-1`" in merge(wander, places, "part-1/whole").json["error"]["message"]
    older = rewritten("of-older-release", b"", b"")
    summary = json.loads((older / "summary.json").read_text())
    del summary["refused"], summary["stop_reasons"]
    (older / "summary.json").write_text(json.dumps(summary))
    assert merge(wander, [places[0], older, places[2]], "with-older").status == 0
    (extra / "summary.json").unlink()
    assert merge(wander, [places[0], extra, places[2]], "without").status == 0


def test_contradictory_shard_and_engine_options_are_rejected(wander: Wander, folder: Path) -> None:
    words = (str(folder), "-m", SOLVER, "-n", "4", "--set", "in_process=true")
    error = wander("eval", *words, "--engine", "dask", "--json").json["error"]
    assert (error["code"], error["hint"]) == ("usage", "use `ray`")
    (Path("begun") / SHARDS_FILE).parent.mkdir()
    (Path("begun") / SHARDS_FILE).write_text("3")
    assert engine._count_shards(Path("begun"), None, 8) == 3
    with pytest.raises(UsageError, match="with 3 shards, not 4"):
        engine._count_shards(Path("begun"), 4, 8)
    Path("on-ray.shards").mkdir()
    Path("on-ray.shards", SHARDS_FILE).write_text("2")
    error = wander("eval", "--resume", "on-ray", "--seed", "1", "--json").json["error"]
    assert "`seed` cannot change" in error["message"], error
    error = wander("eval", "--resume", "on-ray", "--allow-changed-code", "--json").json["error"]
    assert "`--allow-changed-code` cannot be used with `--engine`" in error["message"], error
    for wrong in ("ray://head:6379/", "ray://head:6379/0", "ray://head:6379/many"):
        with pytest.raises(UsageError):
            EngineAddress.parse(wrong)
    assert EngineAddress.parse("ray://head:6379/32") == EngineAddress("ray", "head:6379", 32)
    assert EngineAddress.parse("ray") == EngineAddress("ray")
    error = wander("eval", "--resume", "nowhere", "--engine", "ray", "--json").json["error"]
    assert "was not begun with `--engine ray`" in error["message"], error
    for wrong in ("3/3", "1", "a/b", "-1/3", "٠/٢"):
        error = wander("eval", *words, f"--set=shard={wrong}", "--json").json["error"]
        assert error["code"] == "usage", error
        assert error["hint"] in ("the 3 shards are `0/3` to `2/3`", "the 8 shards are `0/8` to `7/8`")


def test_a_rollout_whose_seed_differs_from_its_group_is_rejected(wander: Wander, folder: Path) -> None:
    places = play_shards(
        wander, 2, str(folder), "-m", SOLVER, "-n", "1", "-r", "2", "--set", "in_process=true"
    )
    packed = places[1] / "rollouts.jsonl.zst"
    lines = re.sub(rb'"seed":\d+', b'"seed":7', b"".join(jsonl.blocks(packed)))
    (places[1] / "rollouts.jsonl").write_bytes(lines)
    error = merge(wander, places).json["error"]
    assert (
        "`part-1` was changed: rollouts `0/1` and `0/0` of the same example have different seeds"
        in error["message"]
    )


def test_a_suite_is_played_in_shards_that_open_few_models(wander: Wander, folder: Path, home: Path) -> None:
    (home / "suite.toml").write_text(SUITE)
    assert wander("eval", "suite.toml", "--out", "at-once").status == 0
    places = play_shards(wander, 3, "suite.toml")
    models = [
        {json.loads(path.read_text())["model"]["name"] for path in place.glob("*/run.json")}
        for place in places
    ]
    assert sorted(map(len, models)) == [1, 1, 2]
    assert "shard 2/3 of the suite is missing" in merge(wander, places[:2]).json["error"]["message"]

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    left, held, other = (
        Path(f".{name}.{'0' * 15}{end}") for name, end in (("whole", 0), ("whole", 1), ("w", 2))
    )
    for place in (left, held, other):
        place.mkdir(mode=0o700)
        (place / "whole").mkdir()
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for module, name in ((shutil, "copyfileobj"), (jsonl, "write_all")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, full)
            error = merge(wander, places).json["error"]
        assert (error["code"], error["message"]) == ("run_error", "the disk is full: cannot write `whole`")
        assert "nothing was left behind; free space" in error["hint"]
        assert sorted(Path().glob(".*")) == sorted([held, other]), "what a killed merge left is gone"
    os.close(lock)
    merged = merge(wander, places)
    assert merged.status == 0, merged.out
    runs = [each.parent.name for each in sorted(Path("at-once").glob("*/run.json"))]
    assert sorted(Path(each["run_dir"]).name for each in merged.data["runs"]) == runs
    for name in runs:
        assert records_of(Path("whole", name)) == records_of(Path("at-once", name))
        assert aggregates_of(Path("whole", name)) == aggregates_of(Path("at-once", name))
    kept = wander("eval", "--resume", "whole", "--json")
    assert {each["state"] for each in kept.data["runs"]} == {"kept"}
    again = wander("eval", "--resume", str(places[0]), "--json")
    assert {each["state"] for each in again.data["runs"]} == {"kept"}
    mixed = wander("eval", "suite.toml", "--resume", str(places[0]), "--set", "shard=1/3", "--json")
    assert "contains shard 0/3" in mixed.json["error"]["message"]


def test_merged_shards_over_http_equal_a_run_without_shards(wander: Wander, folder: Path) -> None:
    def answer(messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"].removeprefix("say ")

    with chat_endpoint(answer) as endpoint:
        words = (
            str(folder),
            "-m",
            "test-model",
            "-b",
            endpoint.base_url,
            "-n",
            "5",
            "-r",
            "2",
            "--set",
            "in_process=true",
        )
        assert wander("eval", *words, "--out", "at-once").status == 0
        places = play_shards(wander, 3, *words)
    assert merge(wander, places).status == 0
    assert records_of(Path("whole")) == records_of(Path("at-once"))
    assert aggregates_of(Path("whole")) == aggregates_of(Path("at-once"))
    endpoints = RunFolder.open(Path("whole")).manifest.endpoints
    assert endpoints is not None
    assert endpoints.calls == 10


def test_python_plays_shards_and_merges_them(say_env: Any, tmp_path: Path) -> None:
    shards = [
        say_env.evaluate_sync(SOLVER, n=3, shard=f"{number}/2", out=tmp_path / str(number))
        for number in range(2)
    ]
    whole = wander_package.Run.merge(shards, tmp_path / "whole")
    assert (whole.summary.rollouts, whole.reward) == (3, 1.0)
    assert whole.path.stat().st_mode == shards[0].path.stat().st_mode, "no more may read it than its shards"
    on_ray: list[dict[str, Any]] = [
        {"engine": "dask"},
        {"engine": "ray", "shard": "0/2"},
        {"engine": "ray", "resume": whole, "only_failed": True},
        {"engine": "ray", "resume": whole, "concurrency": 2},
    ]
    for asked in on_ray:
        with pytest.raises(UsageError, match=r"engine|cannot change"):
            say_env.evaluate_sync(SOLVER, **asked)
