"""The plain path of training on one GPU, without vLLM: `pytest -m gpu`. Its items are those of smoke.

Each runs on a CPU too, with sizes cut down (`full`): there the bounds are those of the GPU, and a resumed run
is exact.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_scripts import gpu_script
from wander.models.tiny import TinySize

smoke = gpu_script("smoke")
CPU = pytest.param("cpu", marks=[pytest.mark.full, pytest.mark.timeout(900)])
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
ON_GPU = pytest.mark.parametrize("trained", [CUDA], indirect=True)
SMALL = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, intermediate=64, vocabulary=400)


@pytest.fixture(scope="module", params=[CPU, CUDA])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A policy that was fine-tuned on the device, and what that item found."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    on_cpu = request.param == "cpu"
    sizes = {"games": 8, "steps": 2, "warm_up": 12, "size": SMALL} if on_cpu else {}
    ground = smoke.Ground(request.param, tmp_path_factory.mktemp("ground"), **sizes)
    smoke.prepare(ground)
    return ground, smoke.fine_tune(ground)


@pytest.fixture
def ground(trained: tuple[Any, Any], tmp_path: Path) -> Any:
    """The policy with a folder of its own."""
    mine = copy.copy(trained[0])
    mine.folder = tmp_path
    return mine


def test_fine_tuning_has_the_same_losses_as_on_the_cpu(trained: tuple[Any, Any]) -> None:
    ground, item = trained
    assert item.faults == []
    assert ground.policy.is_dir()


def test_losses_and_gradients_agree_in_fp32_bf16_and_autocast(ground: Any) -> None:
    assert smoke.compare_numbers(ground).faults == []


def test_rollouts_by_transformers_match_the_cpu(ground: Any) -> None:
    item = smoke.roll_out(ground)
    assert item.faults == []
    assert item.figures["games a second, fp32"] > 0


def test_the_kv_cache_avoids_most_of_the_context(ground: Any) -> None:
    from wander.models.engines.transformers import TransformersEngine

    seen = []
    close = TransformersEngine.close

    async def note(self: Any) -> None:
        seen.append(self.totals)
        await close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersEngine, "close", note)
        patch.setattr("wander.models.policy.PolicyClient.take_totals", lambda self: self.engine.totals)
        smoke.play(smoke.settings_for(ground), ground.games)
    assert seen[0].cached_tokens > 0.3 * seen[0].context_tokens


def test_all_weights_train_and_the_first_step_matches_the_cpu(ground: Any) -> None:
    item = smoke.train_plain(ground)
    assert item.faults == []
    parts = sum(
        item.figures[f"seconds of a step: {name}"] for name in ("generation", "environment", "update")
    )
    assert parts <= 1.1 * item.figures["seconds of a step: step"]


def test_adapters_train_with_their_reference_in_autocast_with_checkpointed_gradients(ground: Any) -> None:
    item = smoke.train_adapters(ground)
    # A policy of one small layer may win nothing, and then learns nothing.
    assert [fault for fault in item.faults if ground.device != "cpu" or "last step" not in fault] == []


def test_a_resumed_run_of_adapters_equals_an_uninterrupted_one(ground: Any) -> None:
    item = smoke.resume(ground)
    assert item.faults == []
    if ground.device == "cpu":
        assert max(item.values.values()) == 0.0, "the bits are the same"


def test_gradient_checkpointing_saves_memory(ground: Any) -> None:
    assert smoke.grow(ground).faults == []


@ON_GPU
def test_bf16_weights_use_half_the_memory_and_train_with_adapters(ground: Any) -> None:
    from wander.models.loading import load_model
    from wander.train.grpo import train_grpo
    from wander.train.records.files import read_metrics

    sizes = []
    for dtype in ("float32", "bfloat16"):
        before = torch.cuda.memory_allocated()
        model = load_model(ground.policy, device="cuda", dtype=dtype).model
        sizes.append(torch.cuda.memory_allocated() - before)
        del model
    assert sizes[1] < 0.6 * sizes[0]
    settings = smoke.settings_for(ground, model={"dtype": "bfloat16", "lora_rank": 8})
    train_grpo(smoke.open_tictactoe, settings, ground.folder / "bf16")
    entries = read_metrics(ground.folder / "bf16")
    assert all(entry["failed"] == 0 and entry["grad_norm"] > 0 for entry in entries)


@ON_GPU
def test_a_large_batch_fits_by_computing_few_rows_at_once(ground: Any) -> None:
    from wander.train.grpo import train_grpo

    peaks = []
    for rows in (64, 512):
        smoke.forget_peak(ground)
        settings = smoke.settings_for(
            ground, batch={"rollouts": 1024, "rows_at_once": rows}, schedule={"steps": 1}
        )
        train_grpo(smoke.open_tictactoe, settings, ground.folder / f"rows-{rows}")
        peaks.append(smoke.peak_memory(ground))
    assert peaks[0] < peaks[1]


@ON_GPU
@pytest.mark.parametrize("games", [256, 1024])
def test_parallel_rollouts_are_not_slower(ground: Any, games: int) -> None:
    settings = smoke.settings_for(ground, batch={"rollouts": games, "rows_at_once": 256})
    step = smoke.play(settings, games)
    assert not any(rollout.failure for rollout in step.rollouts)
    assert games / step.seconds > 100


@ON_GPU
def test_adapters_merge_on_the_gpu_exactly_as_on_the_cpu(ground: Any) -> None:
    from wander.models.loading import load_model, weights_digest
    from wander.train.config import ModelSection
    from wander.train.weights import merge_again, save_policy, wrap_lora

    loaded = load_model(ground.policy, device="cuda")
    model = wrap_lora(loaded.model, ModelSection(path=str(ground.policy), lora_rank=8))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    folder = save_policy(model, loaded, ground.folder / "model")
    saved = weights_digest(folder)
    assert merge_again(folder) == saved


def test_values_outside_their_bounds_and_failed_items_are_errors(tmp_path: Path) -> None:
    item = smoke.Item("x", values={"failed rollouts": 2.0, "KL of the first step": float("nan")})
    assert [fault.partition(":")[0] for fault in item.faults] == ["failed rollouts", "KL of the first step"]
    assert smoke.Item("x", values={"failed rollouts": 0.0}).faults == []

    def broken(ground: Any) -> Any:
        raise ValueError("no such kernel")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smoke, "ITEMS", (broken, lambda ground: smoke.Item("y")))
        first, second = smoke.try_items(smoke.Ground("cpu", tmp_path))
    assert first.faults == ["ValueError: no such kernel"]
    assert second.faults == []
