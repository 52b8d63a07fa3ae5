"""Shards on Ray whose folders lie in object storage, here a real S3-compatible server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from object_server import ObjectServer, object_server
from shard_records import aggregates_of, records_of
from wander.evals.store.folder import RunFolder
from wander.evals.store.jsonl import blocks
from wander.wire.run_record import Shard
from wander_client.errors import Unavailable, UsageError
from wander_client.ray_engine import engine
from wander_client.ray_engine.coordinator import Coordinator
from wander_client.ray_engine.objects import SharedStore
from wander_client.ray_engine.task import Job, play_shard
from wander_client.runs.shards import SHARDS_FILE, parts_of
from wander_client.suites.file import Suite, name_run
from wander_client.suites.merge import merge_part


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as found:
        yield found


@pytest.fixture
def url(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server.bucket()


class Near:
    """An actor in this process: what is asked of it remotely is called here."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return type("Method", (), {"remote": staticmethod(method)})


def files_below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_store_has_what_a_folder_had_at_the_last_push(url: str, tmp_path: Path) -> None:
    store = SharedStore(url)
    assert not store.has_word("word")
    store.set_word("word")
    assert store.has_word("word")
    first = tmp_path / "first"
    (first / "run").mkdir(parents=True)
    kept = store.begin(7, first)
    lines, manifest = first / "run" / "rollouts.jsonl", first / "run" / "run.json"

    def write(line: bytes) -> None:
        with lines.open("ab") as file:
            file.write(line)

    def replace(text: str) -> None:
        new = manifest.with_name(".new")
        new.write_text(text)
        new.replace(manifest)

    steps: list[Callable[[], Any]] = [
        lambda: write(b"one\n"),
        lambda: write(b"two\nthr"),
        lambda: replace("begun"),
        lambda: write(b"ee\n"),
        lambda: replace("going"),
        lambda: replace("ended"),
        lambda: lines.with_name("rollouts.jsonl.zst").write_bytes(b"packed"),
        lambda: lines.unlink(),
    ]
    for number, step in enumerate(steps):
        step()
        kept.push()
        kept.push()
        SharedStore(url).fetch(7, tmp_path / f"after-{number}")
        wanted = files_below(first)
        for name, content in wanted.items():
            wanted[name] = content[: content.rfind(b"\n") + 1] if name.endswith("jsonl") else content
        assert files_below(tmp_path / f"after-{number}") == wanted

    (second := tmp_path / "second").mkdir()
    again = SharedStore(url).begin(7, second)
    assert files_below(second) == files_below(first)
    replace("played by a node that was given up")
    kept.push()
    (second / "run" / "run.json").write_text("counts")
    again.push()
    store.fetch(7, tmp_path / "last")
    assert (tmp_path / "last" / "run" / "run.json").read_text() == "counts"
    store.fetch(8, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    store.clear()
    assert not store.has_word("word")


def test_a_lost_shard_goes_on_from_the_store_and_the_record_is_that_played_here(
    url: str, wander: Wander, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander_client.ray_engine.objects._PUSH_SECONDS", 0.01)
    words = (str(folder), "-m", "scripted:say_env:breaks_on_three", "-n", "8", "-r", "5", "--in-process")
    assert wander("eval", *words, "--out", "plain").status == 6
    for number in range(2):
        wander("eval", *words, "--shard", f"{number}/2", "--out", f"whole/{number}")
    settings = json.loads(Path("whole/0/command.json").read_text()) | {"shard": None}
    suite = Suite.model_validate(
        {"name": "ray", "concurrency": 4, "evaluations_at_once": 1, "started_at": "2026-11-26T00:00:00Z"}
        | {"runs": [name_run(type(settings_of("whole/0")).model_validate(settings), "here")]}
    )
    (run,) = suite.runs
    place = parts_of(Path("ray")).resolve()
    store = engine._open_store(place, url)
    assert store is not None
    store.set_word("proof")
    place.mkdir()
    (place / engine.STORE_FILE).write_text(store.url)
    (place / SHARDS_FILE).write_text("2")
    # The node of shard 0 was lost when it had half of its rollouts.
    lost = tmp_path / "lost"
    (lost / run.folder).mkdir(parents=True)
    kept = store.begin(0, lost)
    shard = Shard(first=0, end=1, of=2)
    suite.model_copy(update={"shard": shard}).write(lost)
    manifest = json.loads(Path("whole/0/run.json").read_text()) | {"ended_at": None}
    (lost / run.folder / "run.json").write_text(json.dumps(manifest))
    half = b"".join(blocks(Path("whole/0/rollouts.jsonl.zst"))).splitlines(keepends=True)[:10]
    (lost / run.folder / "rollouts.jsonl").write_bytes(b"".join(half) + b'{"torn')
    kept.push()
    for number in range(2):
        job = Job(suite.model_dump_json(by_alias=True), str(place), number, 2, "proof", store=store.url)
        assert play_shard(job, Near(Coordinator(4, None, None))) == []
    wrong = Job("{}", "", 0, 2, "of another driver", store=store.url)
    (problem,) = play_shard(wrong, None)
    assert problem.code == "folder_not_shared"
    engine._fetch_all(store, place, 2)
    folders = [each / run.folder for each in engine.shard_folders(Path("ray"))]
    kept_lines = {line for line in half if b'"failure":null' in line}
    assert kept_lines
    assert kept_lines <= {line for _, line in RunFolder.open(folders[0]).records()}, "none is played twice"
    merge_part(folders, Path("ray"), "ray")
    engine.finish(Path("ray"))
    assert not place.exists()
    assert records_of(Path("ray")) == records_of(Path("plain"))
    assert aggregates_of(Path("ray")) == aggregates_of(Path("plain"))
    assert not store.has_word("proof")


def settings_of(place: str) -> Any:
    from wander_client.evaluate.evaluation import load_settings_of

    return load_settings_of(Path(place))


def test_storage_that_cannot_be_used_is_told_before_anything_begins(
    url: str, wander: Wander, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("eval", str(folder), "-m", "scripted:say_env:solver", "--out", "ray", "--json")
    error = wander(*words, "--shared", url).json["error"]
    assert "`--shared` is of an engine" in error["message"]
    for wrong in ("/shared", "s3:///shared"):
        error = wander(*words, "--engine", "ray", "--shared", wrong).json["error"]
        assert error["message"] == f"`{wrong}` is no object storage"
        assert "--out" in error["hint"]
    error = wander(*words, "--engine", "ray", "--shared", "s3://no-such-bucket/runs").json["error"]
    said = "The specified bucket does not exist (NoSuchBucket)"
    assert error["message"] == f"cannot use the object storage `s3://no-such-bucket/runs`: {said}"
    assert (error["code"], "detail" in error) == ("storage_unavailable", False)
    assert "AWS_ENDPOINT_URL" in error["hint"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    error = wander(*words, "--engine", "ray", "--shared", url).json["error"]
    assert error["code"] == "storage_unavailable"
    assert error["message"].endswith(": HTTP error: error sending request"), error
    assert not parts_of(Path("ray")).exists()
    place = Path("begun.shards")
    place.mkdir()
    (place / SHARDS_FILE).write_text("2")
    with pytest.raises(UsageError, match="was begun in a folder"):
        engine._open_store(place, url)
    (place / engine.STORE_FILE).write_text(f"{url}/begun-1")
    with pytest.raises(UsageError, match="was begun in `s3"):
        engine._open_store(place, "s3://other/runs")
    with pytest.raises(Unavailable):
        engine.finish(Path("begun"))
