"""Runs as JSON Lines, Parquet and dataset folders, opened again by the libraries that people use."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from wander.errors import ConfigError, MissingExtra, MissingPlugin, install_command
from wander.evals import export as exporting
from wander.evals.export import export_runs, format_of
from wander.evals.stats.summary import summarize
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, Rollout, Turn, TurnTokens
from wander.wire import EnvironmentPin, ModelPin

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
COMPLETION = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cup"},
    {"role": "assistant", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "cup"}]},
]


class Recorded:
    """A run in memory."""

    def __init__(self, rollouts: int = 5, model: str = "m", seed: int = 0) -> None:
        pin = EnvironmentPin(
            owner="alice", name="cups", version="1", info=EnvironmentInfo(name="cups", kind="tool")
        )
        examples = [
            Example(example_id=str(i), index=i, seed=i, prompt=[], stratum=i % 2) for i in range(rollouts)
        ]
        self.manifest = new_manifest(environment=pin, model=ModelPin(name=model, kind="k"), examples=examples)
        self.count = rollouts
        self.seed = seed
        self.summary = summarize(self.rollouts(), expected=rollouts)

    def rollouts(self) -> Iterator[Rollout]:
        tokens = TurnTokens(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5])
        turn = Turn(message=COMPLETION[0], context_messages=1, tokens=tokens)
        for i in range(self.count):
            base = Rollout(
                example_id=str(i),
                index=0,
                seed=self.seed + i,
                prompt=[{"role": "user", "content": f"what is it? {i}"}],
                completion=COMPLETION,
                turns=[turn],
                answer={"any": [i]} if i else "text",
                reward=i / 4,
                metrics={"won": float(i > 2), "of/odd name": 1.0} if i else {"won": 0.0},
                info={"board": [i]},
                stop_reason="done",
            )
            failure = Failure(boundary="tool", type="ToolError", message="no cup")
            last = i == self.count - 1
            yield base.model_copy(update={"failure": failure, "reward": None}) if last else base


def written(path: Path, *runs: Recorded, **options: object) -> list[int]:
    return list(export_runs(runs or (Recorded(),), path, **options))  # type: ignore[arg-type]


def test_json_lines_keep_every_value(tmp_path: Path) -> None:
    assert written(tmp_path / "new" / "run.jsonl") == [5]
    rows = [json.loads(line) for line in (tmp_path / "new" / "run.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.0, 0.25, 0.5, 0.75, None]
    assert rows[1]["completion"] == COMPLETION
    assert rows[1]["messages"] == rows[1]["prompt"] + COMPLETION
    assert rows[1]["answer"] == {"any": [1]}
    assert (rows[1]["environment"], rows[1]["stratum"]) == ("alice/cups", 1)
    assert rows[4]["failure"]["boundary"] == "tool"
    assert "prompt_ids" not in rows[0]


def test_parquet_has_one_schema_for_messages_metrics_and_tokens(tmp_path: Path) -> None:
    written(tmp_path / "run.parquet", Recorded(), Recorded(model="other"), tokens=True)
    rows = pq.read_table(tmp_path / "run.parquet").to_pylist()
    assert [row["model"] for row in rows] == ["m"] * 5 + ["other"] * 5
    assert rows[0]["metrics"] == {"of/odd name": None, "won": 0.0}
    assert rows[1]["completion"][0]["tool_calls"] == [CALL]
    assert rows[1]["completion"][2]["content"] == "a cup"
    assert json.loads(rows[1]["info"]) == {"board": [1]}
    assert [rows[0]["answer"], rows[1]["answer"]] == ["text", '{"any": [1]}']
    assert rows[1]["completion_ids"] == [[3]]


def test_seeds_take_all_of_their_64_bits(tmp_path: Path) -> None:
    largest = 2**64 - 1
    written(tmp_path / "run.parquet", Recorded(2, seed=largest - 1))
    assert pq.read_table(tmp_path / "run.parquet")["seed"].to_pylist() == [largest - 1, largest]
    for seed in (-1, largest):
        with pytest.raises(ConfigError, match="does not fit into 64 bits"):
            written(tmp_path / "other.parquet", Recorded(2, seed=seed))
    assert not (tmp_path / "other.parquet").exists()


def test_a_dataset_folder_opens_by_the_datasets_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(exporting, "_SHARD", 2)
    written(tmp_path / "folder")
    assert len(list((tmp_path / "folder" / "data").iterdir())) == 3
    found = datasets.load_dataset(str(tmp_path / "folder"), cache_dir=str(tmp_path / "cache"), split="train")
    assert found.num_rows == 5
    assert found[1]["messages"][0] == {
        "role": "user",
        "content": "what is it? 1",
        **dict.fromkeys(("name", "tool_call_id", "reasoning_content", "tool_calls")),
    }
    with pytest.raises(ConfigError, match="already exists"):
        written(tmp_path / "folder")


@pytest.mark.full  # loads PyTorch; the columns are checked above
def test_rows_have_the_conversational_format_of_trl(tmp_path: Path) -> None:
    data_utils = pytest.importorskip("trl.data_utils")
    written(tmp_path / "run.parquet")
    row = pq.read_table(tmp_path / "run.parquet").to_pylist()[0]
    for columns in (("messages",), ("prompt", "completion")):
        assert data_utils.is_conversational({name: row[name] for name in columns})


@pytest.mark.full
def test_a_large_run_needs_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * 20_000
    monkeypatch.setitem(COMPLETION[1], "content", text)
    run = Recorded(2000)
    tracemalloc.start()
    try:
        written(tmp_path / "run.jsonl", run)
        written(tmp_path / "run.parquet", run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(text) * run.count / 1.5


def test_a_run_without_rollouts_makes_empty_files(tmp_path: Path) -> None:
    empty = Recorded(0)
    for name in ("run.jsonl", "run.parquet", "folder"):
        written(tmp_path / name, empty)
    assert (tmp_path / "run.jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "folder/data").num_rows == 0


def test_a_failed_export_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot choose a format"):
        format_of(tmp_path / "run.xlsx")
    begun = export_runs([Recorded(600)], tmp_path / "run.jsonl")
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra) as caught:
        written(tmp_path / "run.parquet")
    assert "wander-sdk[data]" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_format_without_its_plugin_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(MissingPlugin) as caught:
        list(export_runs([Recorded()], tmp_path / "out", "every-eval-ever"))
    assert install_command("wander-integrations") in caught.value.hint
    assert not list(tmp_path.iterdir())
