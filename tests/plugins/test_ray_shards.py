"""Shards as Ray plays them, in this process: a lost one goes on, and the record is that of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import Wander
from shard_records import aggregates_of, records_of
from wander.evals.store.folder import RunFolder
from wander.evals.store.jsonl import blocks
from wander.wire.run_record import Shard
from wander_client.evaluate.evaluation import read_settings_of
from wander_client.runs.shards import SHARDS_FILE, parts_of
from wander_client.suites.file import Suite, name_run
from wander_client.suites.merge import merge_part
from wander_ray import engine
from wander_ray.coordinator import Coordinator
from wander_ray.task import PROOF_FILE, ShardJob, play_shard


class Near:
    """An actor in this process: what is asked of it remotely is called here."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return type("Method", (), {"remote": staticmethod(method)})


def test_a_lost_shard_resumes_and_the_merged_record_equals_a_local_run(wander: Wander, folder: Path) -> None:
    words = (
        str(folder),
        "-m",
        "scripted:say_env:breaks_on_three",
        "-n",
        "8",
        "-r",
        "5",
        "--set",
        "in_process=true",
    )
    assert wander("eval", *words, "--out", "plain").status == 6
    for number in range(2):
        wander("eval", *words, "--set", f"shard={number}/2", "--out", f"whole/{number}")
    settings = read_settings_of(Path("whole/0")).command.model_copy(update={"shard": None})
    suite = Suite.model_validate(
        {"name": "ray", "concurrency": 4, "evaluations_at_once": 1, "started_at": "2026-11-26T00:00:00Z"}
        | {"runs": [name_run(settings, "here")]}
    )
    (run,) = suite.runs
    place = parts_of(Path("ray")).resolve()
    place.mkdir()
    (place / SHARDS_FILE).write_text("2")
    (place / PROOF_FILE).write_text("proof")
    # The node of shard 0 was lost when it had half of its rollouts.
    lost = place / "0"
    (lost / run.folder).mkdir(parents=True)
    suite.model_copy(update={"shard": Shard(first=0, end=1, of=2)}).write(lost)
    manifest = json.loads(Path("whole/0/run.json").read_text()) | {"ended_at": None}
    (lost / run.folder / "run.json").write_text(json.dumps(manifest))
    half = b"".join(blocks(Path("whole/0/rollouts.jsonl.zst"))).splitlines(keepends=True)[:10]
    (lost / run.folder / "rollouts.jsonl").write_bytes(b"".join(half) + b'{"torn')
    for number in range(2):
        job = ShardJob(suite.model_dump_json(by_alias=True), str(place), number, 2, "proof")
        assert play_shard(job, Near(Coordinator(None, None))) == []
    (problem,) = play_shard(ShardJob("{}", str(place), 0, 2, "of another driver"), None)
    assert problem.code == "folder_not_shared"
    folders = [each / run.folder for each in engine.shard_folders(Path("ray"))]
    kept_lines = {line for line in half if b'"failure":null' in line}
    assert kept_lines
    assert kept_lines <= {line for _, line in RunFolder.open(folders[0]).records()}, "none is played twice"
    merge_part(folders, Path("ray"), "ray")
    assert records_of(Path("ray")) == records_of(Path("plain"))
    assert aggregates_of(Path("ray")) == aggregates_of(Path("plain"))
