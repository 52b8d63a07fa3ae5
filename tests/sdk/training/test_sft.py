from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from wander.errors import ConfigError, RunError
from wander.models.loading import load_model, weights_digest
from wander.train.config import SFTSettings
from wander.train.sft import IGNORED, split, tokenize_rows, train_sft


def settings_for(model: Path, **schedule: Any) -> SFTSettings:
    return SFTSettings(
        model={"path": str(model), "device": "cpu"},
        batch={"rows": 8},
        schedule={"steps": 12, "learning_rate": 1e-2, **schedule},
    )


def rows(count: int = 24) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"Machine {n % 7}. Answer <pull>lever</pull>."},
                {"role": "assistant", "content": "<pull>3</pull>"},
                {"role": "user", "content": "It paid 1.0. Pull again."},
                {"role": "assistant", "content": "<pull>3</pull>"},
            ]
        }
        for n in range(count)
    ]


def test_only_the_assistants_tokens_are_learned(tiny: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    dataset, too_long = tokenize_rows(rows(1), loaded, 100)
    learned = [label for label in dataset[0]["labels"] if label != IGNORED]
    assert loaded.tokenizer.decode(learned) == "<pull>3</pull><|end|><pull>3</pull><|end|>"
    assert too_long == 0


def test_the_loss_falls_and_the_model_repeats_its_data(tiny: Path, tmp_path: Path) -> None:
    shown: list[int] = []
    result = train_sft(
        rows(), settings_for(tiny, steps=40), tmp_path, progress=lambda entry: shown.append(entry["step"])
    )
    assert shown == list(range(1, 41))
    assert (result.rows, result.steps, result.interrupted) == (24, 40, False)
    assert result.final_loss < 0.5 < 3 < result.first_loss
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == shown
    loaded = load_model(result.model, device="cpu")
    ids = loaded.tokenizer.apply_chat_template(
        rows(1)[0]["messages"][:1], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    said = loaded.model.generate(
        ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=4, do_sample=False
    )
    assert loaded.tokenizer.decode(said[0, ids.shape[1] :]) == "<pull>3</pull><|end|>"


def test_equal_seeds_give_equal_weights_on_a_cpu(tiny: Path, tmp_path: Path) -> None:
    digests = [
        weights_digest(train_sft(rows(), settings_for(tiny, steps=3, seed=seed), tmp_path / name).model)
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_long_rows_are_counted_and_an_empty_table_is_rejected(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    long = {"messages": [{"role": "user", "content": "far too long " * 30}, *rows(1)[0]["messages"][1:2]]}
    dataset, too_long = tokenize_rows([long, *rows(2)], loaded, 60)
    assert (len(dataset), too_long) == (2, 1)
    with pytest.raises(ConfigError, match="1 exceed 60 tokens"):
        tokenize_rows([long], loaded, 60)


def test_a_row_without_an_answer_is_named(tiny: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    with pytest.raises(ConfigError, match="cannot learn from row 2"):
        tokenize_rows([*rows(1), {"messages": [{"role": "user", "content": "hello"}]}], loaded, 60)


def various(count: int = 24) -> list[dict[str, Any]]:
    """Rows whose lever depends on the machine: twelve prompts, each twice."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"Machine {n % 12}. Answer <pull>lever</pull>."},
                {"role": "assistant", "content": f"<pull>{(n + n // 12) % 4}</pull>"},
            ]
        }
        for n in range(count)
    ]


def test_conversations_are_held_out_by_prompt_and_evaluated(tiny: Path, tmp_path: Path) -> None:
    settings = settings_for(tiny, steps=6, eval_share=0.25, eval_every=2)
    result = train_sft(various(), settings, tmp_path)
    assert (result.rows, result.held_out) == (24, 6)
    assert result.held_out_first is not None
    assert result.held_out_final is not None
    assert result.held_out_final < result.held_out_first
    lines = [json.loads(line) for line in (tmp_path / "held_out.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {step["step"]: step["held_out/loss"] for step in steps if "held_out/loss" in step} == {
        line["step"]: line["loss"] for line in lines[1:]
    }
    loaded = load_model(tiny, device="cpu")
    dataset, _ = tokenize_rows(various(), loaded, 100)
    learned, back = split(dataset, 0.25, 0)
    starts = [{tuple(ids[:20]) for ids in part["input_ids"]} for part in (learned, back)]
    assert starts[0].isdisjoint(starts[1])
    assert len(learned) + len(back) == 24
    with pytest.raises(ConfigError, match="the same prompt"):
        split(dataset.select([0, 12]), 0.5, 0)


def test_evaluation_does_not_change_fine_tuning(tiny: Path, tmp_path: Path) -> None:
    digests = [
        weights_digest(
            train_sft(
                various(),
                settings_for(tiny, steps=3, eval_share=0.25, eval_every=every),
                tmp_path / str(every),
            ).model
        )
        for every in (0, 1)
    ]
    assert digests[0] == digests[1]


def test_resumed_fine_tuning_reaches_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    settings = settings_for(tiny, steps=6, eval_share=0.25, eval_every=2)
    whole = train_sft(various(), settings, tmp_path / "whole")
    assert not (tmp_path / "whole" / "checkpoints").exists()

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    stopped = train_sft(various(), settings, tmp_path / "run", progress=interrupt)
    assert stopped.interrupted
    assert stopped.steps < 6
    resumed = train_sft(various(), settings, tmp_path / "run", resume=True)
    assert (resumed.steps, resumed.interrupted) == (6, False)
    assert weights_digest(resumed.model) == weights_digest(whole.model)
    assert resumed.held_out_final == whole.held_out_final
    for name in ("metrics.jsonl", "held_out.jsonl"):
        steps = [json.loads(line)["step"] for line in (tmp_path / "run" / name).read_text().splitlines()]
        assert steps == sorted(set(steps))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_checkpoints_are_kept_if_requested(tiny: Path, tmp_path: Path) -> None:
    whole = train_sft(various(), settings_for(tiny, steps=4, checkpoint_every=2), tmp_path)
    kept = {path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")}
    assert kept == {"checkpoint-2", "checkpoint-4"}
    settings = settings_for(tiny, steps=4, checkpoint_every=2)
    with pytest.raises(RunError, match="is already finished"):
        train_sft(various(), settings, tmp_path, resume=True)
    digest = weights_digest(whole.model)
    shutil.rmtree(whole.model)
    again = train_sft(various(), settings, tmp_path, resume=True)
    assert again.steps == 4
    assert weights_digest(again.model) == digest


def test_conversations_are_grouped_by_length_in_every_epoch() -> None:
    from wander.train.sft import LengthOrder

    lengths = [10 * (n % 5) + n % 2 for n in range(43)]
    order = LengthOrder(lengths, 4, seed=0)
    epochs = []
    for epoch in (0, 1):
        order.set_epoch(epoch)
        places = list(order)
        assert sorted(places) == list(range(43))
        assert places == list(order)
        batches = [places[start : start + 4] for start in range(0, 40, 4)]
        spreads = [max(lengths[p] for p in batch) - min(lengths[p] for p in batch) for batch in batches]
        assert sum(spreads) / len(spreads) < 8
        epochs.append(places)
    assert epochs[0] != epochs[1]
