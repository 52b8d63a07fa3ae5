from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM
from wander import State
from wander.environment import LocalEnvironment
from wander.errors import ConfigError, RunError
from wander.evals.store.folder import RunFolder
from wander.models.client import TransformersClient
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPORolloutTrainer, train_grpo
from wander.train.records.checkpoints import read_saved
from wander.train.records.files import read_metrics
from wander.train.watch.plots import draw_learning_curve
from wander.types import SamplingArgs

from .conftest import BanditEnv, bandit, opener_of

MEASURED = (
    *("loss", "grad_norm", "reward", "rewards/payoff", "rewards/well_formed", "entropy", "turns", "tokens"),
    *("groups_without_variance", "seconds/generation", "seconds/environment", "seconds/update"),
)


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 32, "group_size": 8, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 2, "learning_rate": 5e-3},
        "output": {"rollouts_every": 2},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


async def mean_payoff(model: Path) -> float:
    client = TransformersClient(model, device="cpu")
    handle = LocalEnvironment(bandit())
    total = 0.0
    for example in await handle.examples("eval", 0, 40):
        rollout = await handle.rollout(client, example, run_seed=9, sampling=SamplingArgs(max_tokens=6))
        total += rollout.reward or 0.0
    await client.close()
    return total / 40


def test_a_mixture_of_experts_is_rejected_before_playing(puller: Path, tmp_path: Path) -> None:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = MixtralConfig(vocab_size=512, num_key_value_heads=1, num_local_experts=2, **shape)
    MixtralForCausalLM(config).save_pretrained(tmp_path / "experts")
    AutoTokenizer.from_pretrained(puller).save_pretrained(tmp_path / "experts")
    with pytest.raises(ConfigError, match="mixture of experts"):
        train_grpo(opener_of(bandit), settings_for(tmp_path / "experts"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
async def test_a_few_steps_raise_the_reward_of_a_bandit(puller: Path, tmp_path: Path) -> None:
    before = await mean_payoff(puller)
    result = train_grpo(
        opener_of(bandit),
        settings_for(puller, batch={"rollouts": 64, "rows_at_once": 32}, schedule={"steps": 12}),
        tmp_path / "run",
    )
    assert 0.2 < before < 0.6
    assert result.final_reward > 0.85
    assert result.final_reward > result.first_reward + 0.25
    assert await mean_payoff(result.model) > before + 0.25

    entries = read_metrics(tmp_path / "run")
    assert [entry["step"] for entry in entries] == list(range(1, 13))
    for name in MEASURED:
        assert all(isinstance(entry[name], int | float) for entry in entries), name
    plots = draw_learning_curve(entries, tmp_path / "run", title="bandit")
    assert [plot.read_bytes()[:4] for plot in plots] == [b"<svg", b"\x89PNG"]


def test_the_run_folder_has_the_standard_layout(puller: Path, tmp_path: Path) -> None:
    train_grpo(opener_of(bandit), settings_for(puller, schedule={"steps": 4}), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    manifest = folder.manifest
    assert (manifest.kind, manifest.split, manifest.rollouts_per_example) == ("training", "train", 8)
    assert len(manifest.example_ids) == 16
    assert manifest.model.weights_sha256 == weights_digest(puller)
    assert manifest.training is not None
    assert manifest.training["schedule"]["steps"] == 4
    assert manifest.ended_at is not None
    kept = list(folder.rollouts())
    # Steps 1, 2 and 4: the first group of each.
    assert sorted({rollout.example_id for rollout in kept}) == sorted(
        manifest.example_ids[i] for i in (0, 4, 12)
    )
    assert {rollout.index for rollout in kept} == set(range(8))
    assert not (tmp_path / "run" / "checkpoints").exists()
    made = [(one.step, one.weights_sha256) for one in read_saved(folder.path)]
    assert made == [(4, weights_digest(folder.path / "model"))], "what an evaluation of the model will pin"
    with pytest.raises(RunError, match="already contains a run"):
        train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "run")


def test_the_seed_determines_the_trained_weights(puller: Path, tmp_path: Path) -> None:
    digests = [
        weights_digest(
            train_grpo(
                opener_of(bandit), settings_for(puller, schedule={"seed": seed, "steps": 1}), tmp_path / name
            ).model
        )
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.full  # test_exact_resume.py accumulates and is interrupted too
def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, schedule={"steps": 4})
    whole = train_grpo(opener_of(bandit), settings, tmp_path / "whole")

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    part = train_grpo(opener_of(bandit), settings, tmp_path / "part", progress=interrupt)
    assert part.interrupted
    assert part.steps in (1, 2)
    assert (tmp_path / "part" / "checkpoints" / f"checkpoint-{part.steps}" / "model.safetensors").is_file()
    resumed = train_grpo(opener_of(bandit), settings, tmp_path / "part", resume=True)
    assert (resumed.steps, resumed.interrupted) == (4, False)
    assert [entry["step"] for entry in read_metrics(tmp_path / "part")] == [1, 2, 3, 4]
    assert weights_digest(resumed.model) == weights_digest(whole.model)
    assert list(RunFolder.open(tmp_path / "part").rollouts()) != []


def test_a_run_is_not_resumed_with_other_settings(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, output={"checkpoint_every": 1})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    saved = sorted((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    digests = {weights_digest(folder) for folder in (*saved, tmp_path / "run" / "model")}
    assert {one.weights_sha256 for one in read_saved(tmp_path / "run")} == digests
    other = settings_for(puller, output={"checkpoint_every": 1}, algorithm={"loss": "cispo"})
    with pytest.raises(RunError, match=r"training\.algorithm\.loss"):
        train_grpo(opener_of(bandit), other, tmp_path / "run", resume=True)


class FlakyEnv(BanditEnv):
    """Fails some rollouts once and one of them always."""

    failures: dict[str, int]

    def setup_state(self, state: State) -> None:
        super().setup_state(state)
        key = f"{state.example.example_id}/{state['index']}"
        self.failures[key] = self.failures.get(key, 0) + 1
        if key == "0/3" or (state["index"] == 5 and self.failures[key] == 1):
            raise OSError("the machine is out of order")


def flaky() -> FlakyEnv:
    source = bandit()
    rows = [{"question": "Machine 1. Answer <pull>lever</pull>.", "answer": ""}] * 64
    env = FlakyEnv(rows, max_turns=2, parser=source.parser, rubric=source.rubric)
    env.failures = {}
    return env


def test_a_failed_rollout_does_not_lose_the_step(puller: Path, tmp_path: Path) -> None:
    result = train_grpo(opener_of(flaky), settings_for(puller), tmp_path / "run")
    assert result.steps == 2
    first, second = read_metrics(tmp_path / "run")
    assert (first["retried"], first["failed"]) == (5, 1)
    assert (second["retried"], second["failed"]) == (4, 0)
    assert first["reward"] > 0.1
    kept = {
        rollout.index: rollout
        for rollout in RunFolder.open(tmp_path / "run").rollouts()
        if rollout.example_id == "0"
    }
    assert kept[3].failure is not None
    assert kept[5].failure is None


class BrokenEnv(BanditEnv):
    """Fails every rollout."""

    def setup_state(self, state: State) -> None:
        raise OSError("nothing works")


def test_a_step_with_only_failures_stops_the_run(puller: Path, tmp_path: Path) -> None:
    def broken() -> BrokenEnv:
        return BrokenEnv([dict(question="?", answer="")] * 8, max_turns=2, rubric=bandit().rubric)

    with pytest.raises(RunError, match="all 32 rollouts of a step failed, each 2 times"):
        train_grpo(opener_of(broken), settings_for(puller), tmp_path / "run")


def test_a_kl_term_and_adapters_work_together(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, model={"lora_rank": 4}, algorithm={"kl": 0.05, "scale_rewards": "group"})
    result = train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert weights_digest(result.model) not in (None, weights_digest(puller))
    assert sorted(path.name for path in result.model.glob("*.safetensors")) == ["model.safetensors"]


class Probe(GRPORolloutTrainer):
    """Compares the step's loss and gradients with those of TRL's own, complete and padded computation."""

    compared: list[tuple[float, float, float]] = []  # noqa: RUF012 - read by the test
    drift: list[float] = []  # noqa: RUF012

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        from trl import GRPOTrainer

        ours = GRPORolloutTrainer._compute_loss(self, model, inputs)
        weights = [p for p in model.parameters() if p.requires_grad]
        our_gradients = torch.autograd.grad(ours, weights, retain_graph=True)
        name = "_get_per_token_logps_and_entropies"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GRPORolloutTrainer, name, getattr(GRPOTrainer, name))
            theirs = GRPOTrainer._compute_loss(self, model, inputs)
        their_gradients = torch.autograd.grad(theirs, weights)
        gap = max(float((a - b).abs().max()) for a, b in zip(our_gradients, their_gradients, strict=True))
        size = max(float(g.abs().max()) for g in their_gradients)
        self.compared.append((float(ours.detach() - theirs.detach()), gap, size))
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].shape[1]
        scored = self._get_per_token_logps_and_entropies(model, ids, real, keep)[0].detach()
        own = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        self.drift.append(float((scored - inputs["sampling_per_token_logps"])[own].abs().max()))
        return ours


@pytest.mark.parametrize("loss", ["dapo", pytest.param("grpo", marks=pytest.mark.full)])
def test_the_update_scores_all_sampled_tokens(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Probe)
    Probe.compared, Probe.drift = [], []
    settings = settings_for(puller, algorithm={"loss": loss}, sampling={"max_tokens": 9})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert len(Probe.compared) == 4
    # What the trainer scores is what the sampler drew: the same tokens at the same probabilities.
    assert max(Probe.drift) < 1e-4
    for difference, gap, size in Probe.compared:
        assert size > 1e-5
        assert abs(difference) < 1e-5
        assert gap < 1e-5 + 1e-3 * size
