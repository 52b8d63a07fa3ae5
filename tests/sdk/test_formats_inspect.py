"""Runs as `.eval` logs of Inspect and back. In `tests/plugins`, Inspect itself reads and writes them."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from exported_runs import ConversationRun, SummarizedRun
from wander.errors import ConfigError, RunError
from wander.evals.export import export_runs
from wander.evals.foreign_run import import_results, read_results
from wander.types import Rollout

HEADER = {"version": 2, "eval": {"task": "adding", "model": "m/x", "created": "2026-01-02T03:04:05+00:00"}}
SAMPLE: dict[str, Any] = {
    "id": 7,
    "epoch": 1,
    "input": "2 + 2?",
    "target": "4",
    "messages": [
        {"id": "a", "role": "user", "content": "2 + 2?", "source": "input"},
        {"id": "b", "role": "assistant", "content": [{"type": "text", "text": "4"}], "source": "generate"},
    ],
    "scores": {"match": {"value": "C"}, "parts": {"value": {"near": 0.5, "note": "x"}}},
    "events": [
        {
            "event": "model",
            "output": {
                "choices": [{"message": {"id": "b"}, "stop_reason": "max_tokens"}],
                "usage": {"input_tokens": 3, "input_tokens_cache_read": 4, "output_tokens": 2},
                "time": 0.5,
            },
        }
    ],
    "model_usage": {"m/x": {"input_tokens": 3, "input_tokens_cache_read": 4, "output_tokens": 2}},
    "metadata": {"kind": "sum"},
}


def exported(path: Path, *runs: ConversationRun | SummarizedRun) -> Path:
    for _ in export_runs(runs or (ConversationRun(),), path, "inspect"):
        pass
    return path


def log(path: Path, *samples: dict[str, Any], header: Any = HEADER) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps(header))
        for number, sample in enumerate(samples):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
    return path


def common(rollout: Rollout) -> dict[str, Any]:
    """Return what both formats have of a rollout."""
    values = rollout.model_dump(exclude={"scoring_seconds", "usage"})
    for turn in values["turns"]:
        turn["tokens"] = None
    return values | {"usage": (rollout.usage.prompt_tokens, rollout.usage.completion_tokens)}


def test_our_logs_are_read_back_as_the_same_run(tmp_path: Path) -> None:
    run = ConversationRun()
    exported(tmp_path / "log.eval", run)
    again = import_results(tmp_path / "log.eval", tmp_path / "run")
    assert list(map(common, again.rollouts())) == list(map(common, run.rollouts()))
    for name in ("example_ids", "rollouts_per_example", "sampling", "started_at"):
        assert getattr(again.manifest, name) == getattr(run.manifest, name)
    pin, model = again.manifest.environment, again.manifest.model
    assert (pin.full_name, pin.version, pin.arguments) == ("alice/cups", "1.2", {"size": 3})
    assert (model.name, model.base_url, model.kind) == (
        "org/model-1",
        "https://models.example/v1",
        "imported",
    )
    assert "without token ids" in again.manifest.notes
    assert again.summary().reward_mean == run.summary.reward_mean

    exported(tmp_path / "second.eval", SummarizedRun(again))
    twice = read_results(tmp_path / "second.eval")
    assert list(map(common, twice.rollouts)) == list(map(common, run.rollouts()))


def test_several_runs_are_a_folder_of_logs(tmp_path: Path) -> None:
    exported(tmp_path / "logs", ConversationRun(), ConversationRun(1))
    assert [file.suffix for file in (tmp_path / "logs").iterdir()] == [".eval"] * 2
    with pytest.raises(RunError, match="2 files"):
        read_results(tmp_path / "logs")
    with pytest.raises(ConfigError, match="one run"):
        exported(tmp_path / "one.eval", ConversationRun(), ConversationRun())
    assert not (tmp_path / "one.eval").exists()


def test_a_foreign_log_is_read_with_its_grades_and_tokens(tmp_path: Path) -> None:
    image = {"type": "image", "image": "attachment://abc"}
    shown = {**SAMPLE, "id": "b", "messages": [{"role": "user", "content": [image]}]}
    shown |= {"attachments": {"abc": "data:image/png;base64,AAAA"}, "error": {"message": "too big"}}
    unscored = {**SAMPLE, "id": 9, "scores": {"match": {"value": float("nan"), "reason": "no_response"}}}
    foreign = read_results(log(tmp_path / "log.eval", SAMPLE, shown, unscored))
    assert (foreign.environment, foreign.model, foreign.owner) == ("adding", "m/x", None)
    assert "seeds" in foreign.lacks
    first, second, third = foreign.rollouts
    assert (first.example_id, first.reward, first.metrics) == ("7", 1.0, {"match": 1.0, "parts/near": 0.5})
    assert first.completion == [{"role": "assistant", "content": "4"}]
    (turn,) = first.turns
    assert (turn.finish_reason, turn.usage.prompt_tokens, turn.model_seconds) == ("length", 7, 0.5)
    assert (first.answer, first.info) == ("4", {"kind": "sum"})
    assert second.failure is not None
    assert (second.reward, second.failure.message) == (None, "too big")
    assert second.prompt[0]["content"][0]["image_url"] == {"url": "data:image/png;base64,AAAA"}
    assert third.failure is not None
    assert (third.reward, third.failure.boundary, third.failure.message) == (None, "rubric", "no_response")


@pytest.mark.parametrize(
    ("header", "sample"),
    [
        ({}, SAMPLE),
        ({"eval": []}, SAMPLE),
        ({"eval": {"created": "yesterday"}}, SAMPLE),
        ({"eval": {"model_generate_config": {"temperature": "hot"}}}, SAMPLE),
        (HEADER, {}),
        (HEADER, {**SAMPLE, "messages": ["text"]}),
        (HEADER, {**SAMPLE, "scores": [1]}),
        (HEADER, {**SAMPLE, "epoch": "x"}),
        (HEADER, {**SAMPLE, "events": [{"event": "model", "output": 3}]}),
    ],
)
def test_a_log_with_another_shape_is_rejected(tmp_path: Path, header: Any, sample: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"log\.eval"):
        read_results(log(tmp_path / "log.eval", sample, header=header))


def test_a_log_with_a_sample_twice_leaves_no_run(tmp_path: Path) -> None:
    failed = {**SAMPLE, "error": {"message": "lost"}}
    one = import_results(log(tmp_path / "retried.eval", failed, {**SAMPLE, "uuid": "b"}), tmp_path / "one")
    assert [rollout.reward for rollout in one.rollouts()] == [1.0]
    with pytest.raises(RunError, match=r"log\.eval.*twice"):
        import_results(log(tmp_path / "log.eval", SAMPLE, SAMPLE), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_or_huge_log_is_rejected(tmp_path: Path) -> None:
    whole = log(tmp_path / "log.eval", SAMPLE).read_bytes()
    for text in (b"", b"PK", whole[:-30], whole.replace(b"2 + 2", b"2 + 3")):
        (tmp_path / "log.eval").write_bytes(text)
        with pytest.raises(RunError, match=r"log\.eval"):
            read_results(tmp_path / "log.eval")
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * (65 << 20))
    with pytest.raises(RunError, match="64 MiB"):
        read_results(tmp_path / "log.eval")
    (tmp_path / "log.eval").unlink()
    (tmp_path / "log.eval").symlink_to("/etc/passwd")
    with pytest.raises(RunError):
        read_results(tmp_path / "log.eval")


@pytest.mark.parametrize("size", [None, 10])
def test_zstd_members_are_limited_and_checked(tmp_path: Path, size: int | None) -> None:
    """Inspect packs with zstd, which Python's `zipfile` does not know before 3.14."""
    text = json.dumps(HEADER).encode()
    packed = zstandard.compress(text)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("header.json", packed)
    archive_bytes = stored.getvalue()
    # Declare the method, the checksum and the size in both headers of the stored member.
    sizes = len(packed).to_bytes(4, "little") + (size or len(text)).to_bytes(4, "little")
    old = zlib.crc32(packed).to_bytes(4, "little") + len(packed).to_bytes(4, "little") * 2
    new = zlib.crc32(text).to_bytes(4, "little") + sizes
    archive_bytes = archive_bytes.replace(old, new)
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = archive_bytes.index(start) + at
        archive_bytes = archive_bytes[:place] + b"\x5d\x00" + archive_bytes[place + 2 :]
    (tmp_path / "log.eval").write_bytes(archive_bytes)
    with pytest.raises(RunError, match="is damaged" if size else "contains no rollouts"):
        read_results(tmp_path / "log.eval")
    (tmp_path / "log.eval").write_bytes(archive_bytes.replace(packed, packed[:-1] + b"\x00"))
    with pytest.raises(RunError, match="damaged"):
        read_results(tmp_path / "log.eval")
