"""The run folder: what is written, what survives a crash, what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from wander.errors import RunError
from wander.evals.stats.summary import summarize
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.types import EnvironmentInfo, Failure, Rollout
from wander.wire import EnvironmentPin, ModelPin, Platform, RunManifest


def manifest(examples: int = 3) -> RunManifest:
    return RunManifest(
        run_id="0" * 26,
        environment=EnvironmentPin(name="echo", info=EnvironmentInfo(name="echo", kind="single_turn")),
        model=ModelPin(name="m", kind="ScriptedClient"),
        example_ids=[str(i) for i in range(examples)],
        rollouts_per_example=2,
        task_set_sha256="0" * 64,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        platform=Platform(wander="0", python="3", system="s", machine="m"),
    )


def rollout(example: str = "0", index: int = 0, reward: float | None = 1.0, **fields: object) -> Rollout:
    base: dict[str, object] = {
        "example_id": example,
        "index": index,
        "seed": 1,
        "prompt": [{"role": "user", "content": "é\n\u2028"}],
        "completion": [{"role": "assistant", "content": "ok"}],
        "reward": reward,
    }
    return Rollout.model_validate(base | fields)


def failed(example: str = "0", index: int = 0) -> Rollout:
    return rollout(example, index, None, failure=Failure(boundary="model", type="RateLimited", message="429"))


def test_a_run_is_read_back_unchanged(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", manifest())
    written = [rollout("0"), rollout("0", 1, 0.5), failed("1")]
    for one in written:
        folder.append(one)
    folder.close()
    again = RunFolder.open(tmp_path / "run")
    assert list(again.rollouts()) == written
    assert again.keys_done() == {("0", 0), ("0", 1)}
    assert again.torn is None
    assert again.manifest == manifest()


def test_finish_compresses_and_keeps_the_rollouts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for i in range(50):
        folder.append(rollout(str(i)))
    folder.sync()
    summary = summarize(folder.rollouts(), expected=6)
    kept = list(RunFolder.open(tmp_path).rollouts())
    folder.finish(summary, ended_at=datetime(2026, 1, 2, tzinfo=UTC))
    packed = RunFolder.open(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rollouts.jsonl.zst",
        "run.json",
        "summary.json",
    ]
    assert packed.summary() == summary
    assert packed.manifest.ended_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert list(packed.rollouts()) == kept
    assert len(kept) == 50


def test_a_finished_run_can_be_resumed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    folder.append(failed("0"))
    folder.finish(summarize(folder.rollouts(), expected=6))
    again = RunFolder.open(tmp_path)
    again.resume()
    again.append(rollout("0"))
    again.close()
    assert not (tmp_path / "rollouts.jsonl.zst").exists()
    assert [one.reward for one in RunFolder.open(tmp_path).rollouts()] == [1.0]


def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for one in (failed("0"), rollout("1"), rollout("0", 0, 0.25), rollout("1", 1)):
        folder.append(one)
    folder.close()
    read = list(RunFolder.open(tmp_path).rollouts())
    assert [one.key for one in read] == [("1", 0), ("0", 0), ("1", 1)]
    assert read[1].reward == 0.25
    ordered = [one.key for one in RunFolder.open(tmp_path).rollouts_in_order()]
    assert ordered == [("0", 0), ("1", 0), ("1", 1)]


@pytest.mark.parametrize("finished", [False, True])
def test_rollouts_that_the_manifest_does_not_name_come_last_in_its_order(
    tmp_path: Path, finished: bool
) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for one in (rollout("b", 1), rollout("2"), failed("x"), rollout("a", 0), rollout("x"), rollout("1", 1)):
        folder.append(one)
    if finished:
        folder.finish(summarize(folder.rollouts(), expected=6))
    folder.close()
    with RunFolder.open(tmp_path).in_order() as lines:
        keys = [("1", 1), ("2", 0), ("a", 0), ("x", 0), ("b", 1)]
        assert [one.key for one in lines] == keys
        assert (lines[3].reward, len(lines)) == (1.0, 5)


@pytest.mark.parametrize("cut", [1, 2, 40, -2, -1])
def test_an_incomplete_line_is_reported_saved_and_removed(tmp_path: Path, cut: int) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    folder.append(rollout("0"))
    folder.close()
    torn = rollout("1").model_dump_json().encode()[:cut]
    with (tmp_path / "rollouts.jsonl").open("ab") as out:
        out.write(torn)
    reader = RunFolder.open(tmp_path)
    assert reader.torn is not None
    assert f"{len(torn)} bytes" in reader.torn
    assert [one.example_id for one in reader.rollouts()] == ["0"]
    reader.resume()
    reader.append(rollout("2"))
    reader.close()
    assert reader.torn is not None
    assert (tmp_path / "rollouts.torn").read_bytes() == torn + b"\n"
    assert [one.example_id for one in RunFolder.open(tmp_path).rollouts()] == ["0", "2"]
    assert RunFolder.open(tmp_path).torn is None


def test_a_whole_line_that_lost_only_its_newline_is_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    folder.append(rollout("0"))
    folder.close()
    file = tmp_path / "rollouts.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    reader = RunFolder.open(tmp_path)
    assert reader.torn is None
    assert reader.keys_done() == {("0", 0)}
    reader.append(rollout("1"))
    reader.close()
    assert RunFolder.open(tmp_path).keys_done() == {("0", 0), ("1", 0)}


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for i in range(3):
        folder.append(rollout(str(i)))
    folder.close()
    file = tmp_path / "rollouts.jsonl"
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(rows[0] + b"{oops\n" + rows[2])
    with pytest.raises(RunError, match="line 2 of") as caught:
        list(RunFolder.open(tmp_path).rollouts())
    assert caught.value.hint


def with_extra_line(path: Path, line: bytes) -> RunFolder:
    folder = RunFolder.create(path, manifest())
    for name in ("a", "b"):
        folder.append(rollout(name))
    folder.close()
    with (path / "rollouts.jsonl").open("ab") as out:
        out.write(line)
    return RunFolder.open(path)


def test_a_line_with_a_duplicate_key_is_rejected(tmp_path: Path) -> None:
    line = b'{"example_id":"a","index":0,"seed":1,"prompt":[],"completion":[],"example_id":"b"}\n'
    folder = with_extra_line(tmp_path, line)
    for read in (folder.rollouts, folder.rollouts_in_order):
        with pytest.raises(RunError, match="twice"):
            list(read())


def test_an_escaped_key_is_the_same_key(tmp_path: Path) -> None:
    line = b'{"example_id":"\\u0061","index":0,"seed":7,"prompt":[],"completion":[]}\n'
    folder = with_extra_line(tmp_path, line)
    for read in (folder.rollouts, folder.rollouts_in_order):
        with pytest.raises(RunError, match=r"line 3 .* repeats a rollout that had not failed"):
            list(read())


def test_an_error_in_a_line_names_the_existing_file(tmp_path: Path) -> None:
    folder = with_extra_line(tmp_path, b"{}\n")
    with pytest.raises(RunError, match=r"line 3 of `.*/rollouts\.jsonl` is not a rollout"):
        list(folder.rollouts())
    jsonl.compress(tmp_path / "rollouts.jsonl", tmp_path / "rollouts.jsonl.zst")
    (tmp_path / "rollouts.jsonl").unlink()
    with pytest.raises(RunError, match=r"line 3 of `.*/rollouts\.jsonl\.zst` is not a rollout"):
        list(RunFolder.open(tmp_path).rollouts())


@pytest.mark.parametrize("keep", [4, 0.3, 0.9, -1])
def test_a_truncated_compressed_file_is_an_error(tmp_path: Path, keep: float) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for i in range(200):
        folder.append(rollout(str(i), completion=[{"role": "assistant", "content": os.urandom(50).hex()}]))
    folder.finish(summarize(folder.rollouts(), expected=200))
    file = tmp_path / "rollouts.jsonl.zst"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else int(keep)])
    with pytest.raises(RunError, match=r"cut short|damaged"):
        list(RunFolder.open(tmp_path).rollouts())


def test_every_frame_of_a_compressed_file_is_read(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, manifest()).close()
    (tmp_path / "rollouts.jsonl").unlink()
    frames = [zstandard.compress(rollout(str(i)).model_dump_json().encode() + b"\n") for i in range(3)]
    (tmp_path / "rollouts.jsonl.zst").write_bytes(b"".join(frames))
    assert len(list(RunFolder.open(tmp_path).rollouts())) == 3


def test_a_rollout_that_cannot_be_json_becomes_a_failure(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    for i, broken in enumerate(
        [
            rollout("0", info={"x": object()}),
            rollout("0", metrics={"m": float("nan")}),
            rollout("0", reward=float("inf")),
            rollout("0", completion=[{"role": "assistant", "content": "\ud800"}]),
        ]
    ):
        recorded = folder.append(broken.model_copy(update={"index": i}))
        assert recorded.failure is not None
        assert recorded.failure.type == "UnrecordableRollout"
    folder.close()
    assert len(list(RunFolder.open(tmp_path).rollouts())) == 4


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, manifest()).close()
    with pytest.raises(RunError, match="already contains a run"):
        RunFolder.create(tmp_path, manifest())


@pytest.mark.parametrize("text", [None, "", "{}", '{"schema": "wander.run/9"}'])
def test_a_folder_without_a_run_is_rejected(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match="is not a run"):
        RunFolder.open(tmp_path)


def test_a_second_writer_is_rejected(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    with pytest.raises(RunError, match="another process is writing"):
        RunFolder.open(tmp_path).resume()
    folder.close()
    RunFolder.open(tmp_path).resume()


def test_a_file_system_without_locks_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    folder = RunFolder.create(tmp_path, manifest())
    folder.append(rollout("0"))
    folder.close()
    assert len(list(RunFolder.open(tmp_path).rollouts())) == 1


def test_a_full_disk_keeps_every_line_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path, manifest())
    folder.append(rollout("0"))
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 20:
            return real(file, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match="disk is full") as caught:
        folder.append(rollout("1"))
    monkeypatch.undo()
    assert "kept" in (caught.value.hint or "")
    folder.append(rollout("2"))
    folder.close()
    assert [one.example_id for one in RunFolder.open(tmp_path).rollouts()] == ["0", "2"]


WRITER = """
import sys
from pathlib import Path
from wander.evals.store.folder import RunFolder
from wander.types import Rollout
folder = RunFolder.open(Path(sys.argv[1]))
number = 0
while True:
    folder.append(Rollout(example_id=str(number), index=0, seed=0, prompt=[], completion=[], reward=1.0))
    number += 1
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_reported(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, manifest()).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    reported = 0
    for line in writer.stdout:
        reported = int(line)
        if reported >= 200:
            break
    writer.send_signal(signal.SIGKILL)
    writer.stdout.close()
    writer.wait()
    folder = RunFolder.open(tmp_path)
    folder.resume()
    assert len(list(folder.rollouts())) >= reported
    folder.close()


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(0, 2), st.booleans(), st.text(max_size=20)), max_size=12
    )
)
def test_in_any_sequence_the_last_lines_win(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, bool, str]]
) -> None:
    path = tmp_path_factory.mktemp("run")
    folder = RunFolder.create(path, manifest())
    expected: dict[tuple[str, int], Rollout] = {}
    for example, index, ok, text in rows:
        if (example, index) in expected and expected[example, index].failure is None:
            continue  # only what failed may be played again
        one = rollout(example, index, answer=text) if ok else failed(example, index)
        recorded = folder.append(one)
        expected.pop(recorded.key, None)
        expected[recorded.key] = recorded
    folder.close()
    assert {one.key: one for one in RunFolder.open(path).rollouts()} == expected


def test_the_manifest_is_plain_readable_json(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, manifest()).close()
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["schema"] == "wander.run/1"
    assert data["ended_at"] is None
