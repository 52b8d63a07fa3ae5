"""`wander runs replay` on a folder's environment: real worker processes, real run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Wander
from wander.evals.store.jsonl import blocks


@pytest.fixture
def run(wander: Wander, folder: Path) -> Path:
    done = wander("eval", str(folder), "-m", "scripted:say_env:wrong", "-n", "6", "-r", "2", "--json")
    assert done.status == 0, done.out
    return Path(done.data["run_dir"])


def changed(run: Path, **fields: object) -> tuple[str, int]:
    """Change the first rollout on record; return its key."""
    packed = run / "rollouts.jsonl.zst"
    lines = b"".join(blocks(packed)).splitlines()
    first = {**json.loads(lines[0]), **fields}
    packed.unlink()
    (run / "rollouts.jsonl").write_bytes(b"\n".join([json.dumps(first).encode(), *lines[1:], b""]))
    return first["example_id"], first["index"]


def test_replaying_a_run_gives_the_same_rewards(wander: Wander, run: Path) -> None:
    done = wander("runs", "replay", str(run), "--json")
    assert done.status == 0, done.out
    assert done.json["schema"] == "wander.runs-replay/1"
    assert done.data["level"] == "replayed"
    assert (done.data["same"], done.data["differing"], done.data["expected"]) == (12, 0, 12)
    newest = wander("runs", "replay")
    assert newest.status == 0
    assert newest.out.startswith("replayed  12 of 12 rollouts in ")
    assert "differ    0" in newest.out


def test_a_forged_reward_is_named(wander: Wander, run: Path) -> None:
    example, index = changed(run, reward=1.0)
    done = wander("runs", "replay", str(run))
    assert done.status == 1
    assert f"{example}/{index}: the reward is `0.0`, not `1.0`" in done.out
    assert "same      11" in done.out
    assert f"next: wander view {run} --rollout {example}/{index}" in done.err


def test_replaying_a_sample_is_reported_as_a_sample(wander: Wander, run: Path) -> None:
    done = wander("runs", "replay", str(run), "--sample", "3")
    assert done.status == 0
    assert done.out.startswith("replayed  a sample of 3 of 12 rollouts")


def test_a_run_with_a_missing_rollout_does_not_pass_replay(wander: Wander, run: Path) -> None:
    packed = run / "rollouts.jsonl.zst"
    lines = b"".join(blocks(packed)).splitlines()
    packed.unlink()
    (run / "rollouts.jsonl").write_bytes(b"\n".join([*lines[1:], b""]))
    done = wander("runs", "replay", str(run))
    assert done.status == 6
    assert "missing   1" in done.out


@pytest.mark.full
def test_a_changed_environment_diverges_from_recorded_games(
    wander: Wander, run: Path, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (other / path.name).write_text(
                path.read_text().replace("return float(", "return 0.5 + 0.5 * float(")
            )
    done = wander("runs", "replay", str(run), "--env", str(other), "--json")
    assert done.status == 1
    assert done.data["differing"] == 12
    assert wander("runs", "replay", str(run), "--env", str(folder), "--in-process").status == 0


def test_a_missing_folder_and_an_unknown_run_are_reported(wander: Wander, run: Path, folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    lost = wander("runs", "replay", str(run))
    assert lost.status == 3
    assert f"the run used the folder `{folder}`, which does not exist here" in lost.err
    assert "--env FOLDER" in lost.err
    assert wander("runs", "replay", "runs/nowhere").status == 3
