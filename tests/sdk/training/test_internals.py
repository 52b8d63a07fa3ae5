"""Every private member of TRL and transformers that the trainer overrides or calls, as it was when read.

A new release that changes one of them fails here by name: read the change, then record the new digest.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import wander.train
from transformers import Trainer
from trl import DistillationTrainer, GRPOTrainer, RLOOTrainer
from wander.train import grpo, internals, preference, sft
from wander.train.losses import distill, rloo

ATTRIBUTES = {"_buffered_inputs", "_step"}
"""Values that TRL keeps on a trainer, which a checkpoint stores and restores."""

READ: dict[str, str] = {
    "DPOTrainer._prepare_dataset": "35e349e8e826",
    "DistillationTrainer._compute_loss": "9fc0021cbcc0",
    "DistillationTrainer._generate": "011443de5bf7",
    "DistillationTrainer._generate_and_score_completions": "2416bfc479ad",
    "DistillationTrainer._get_last_hidden_state": "12dc17e4ad4b",
    "DistillationTrainer._save_checkpoint": "b6ee0a370c26",
    "GRPOTrainer._compute_loss": "80295546bbdb",
    "GRPOTrainer._generate": "2a27fdf8f5e6",
    "GRPOTrainer._generate_and_score_completions": "1fa48922792d",
    "GRPOTrainer._get_per_token_logps_and_entropies": "ea73c3909275",
    "GRPOTrainer._load_optimizer_and_scheduler": "5c1772becdfd",
    "GRPOTrainer._save_checkpoint": "ec91bde12364",
    "KTOTrainer._prepare_dataset": "d22cf45470e6",
    "RLOOTrainer._calculate_rewards": "81ef76d93756",
    "RLOOTrainer._compute_loss": "c1f9fa0cd5a6",
    "RLOOTrainer._generate": "bf29664288f1",
    "RLOOTrainer._generate_and_score_completions": "93ebbf5e70d3",
    "RLOOTrainer._get_per_token_logps_and_entropies": "ea73c3909275",
    "RLOOTrainer._save_checkpoint": "b6ee0a370c26",
    "Trainer._get_train_sampler": "1580d7493244",
    "Trainer._load_optimizer_and_scheduler": "741032f57d6f",
    "Trainer._save_checkpoint": "a9111e30faa9",
    "Trainer.create_accelerator_and_postprocess": "d649720bec7e",
    "Trainer.create_model_card": "b0d7e132d048",
    "_BaseTrainer.create_model_card": "4f8a407fd9fd",
}

RELIES_ON = {
    "_calculate_rewards": "the rows of the dataset reach the reward function with our extra column",
    "_compute_loss": "the keys of `inputs`, one row per rollout, and `use_vllm` for the importance ratios",
    "_generate": "the order of the returned values, and that nothing else samples",
    "_generate_and_score_completions": "the keys of the returned batch, and one row per prompt",
    "_get_last_hidden_state": "its arguments and the shape of its result",
    "_get_per_token_logps_and_entropies": "its arguments, and the order of the returned values",
    "_get_train_sampler": "the sampler yields indexes, and its `set_epoch` is called",
    "_load_optimizer_and_scheduler": "it is called once, after the weights of a checkpoint",
    "_prepare_dataset": "rows that are already tokens need no preparation",
    "_save_checkpoint": "it writes the folder of the checkpoint, before `on_save` is called",
    "create_accelerator_and_postprocess": "it creates the accelerator, before the model is prepared",
    "create_model_card": "it only writes a README, which nothing reads",
}
"""What Wander relies on, by member: read this in the new source."""


def is_of_library(kind: type) -> bool:
    return kind.__module__.startswith(("trl.", "transformers."))


def classes_of(*modules: Any) -> list[type]:
    """Return the trainers that modules define."""
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, Trainer) and kind.__module__ == module.__name__
    ]


def overridden() -> dict[str, Any]:
    """Return the members of the libraries that the classes of `internals` override, in every trainer."""
    members: dict[str, Any] = {}
    for own in classes_of(grpo, rloo, distill, sft, preference, internals):
        names = {name for kind in own.__mro__ if kind.__module__ == internals.__name__ for name in vars(kind)}
        for name in names:
            for kind in own.__mro__:
                if is_of_library(kind) and name in vars(kind) and not name.startswith("__"):
                    members[f"{kind.__name__}.{name}"] = vars(kind)[name]
                    break
    return members


def digest(member: Any) -> str:
    return hashlib.sha256(inspect.getsource(member).encode()).hexdigest()[:12]


def test_overridden_library_members_are_unchanged() -> None:
    members = overridden()
    now = {name: digest(member) for name, member in members.items()}
    advice = [f"TRL {version('trl')}, transformers {version('transformers')}: read the changes, adapt"]
    advice += ["sdk/wander/train/internals.py, and then record the new digests here:"]
    for name in sorted(now.keys() | READ.keys()):
        if now.get(name) == READ.get(name):
            continue
        relies = RELIES_ON[name.partition(".")[2]]
        if name not in members:
            advice.append(f"- {name} is gone: {relies}")
            continue
        line = inspect.getsourcelines(members[name])[1]
        advice.append(f"- {name} is {now[name]}, {inspect.getsourcefile(members[name])}:{line}: {relies}")
    assert now == READ, "\n".join(advice)


def test_every_overridden_member_documents_the_assumption() -> None:
    assert {name.partition(".")[2] for name in READ} == RELIES_ON.keys()


def test_only_internals_uses_private_members_of_the_libraries() -> None:
    root = Path(str(wander.train.__file__)).parent
    foreign = re.compile(r"\b(?!self\b|cls\b|super\b)\w+\)?\._[a-z]\w*")
    uses = {
        f"{file.relative_to(root)}: {use}"
        for file in root.rglob("*.py")
        if file.name != "internals.py"
        for use in foreign.findall(file.read_text(encoding="utf-8"))
    }
    assert uses == set()
    for own in classes_of(grpo, rloo, distill, sft, preference, wander.train.step_trainer):
        libraries = {name for kind in own.__mro__ if is_of_library(kind) for name in vars(kind)}
        private = {name for name in vars(own) if name.startswith("_") and not name.startswith("__")}
        assert private & libraries == set(), own
        source = inspect.getsource(own)
        assert set(re.findall(r"(?:self|super\(\))\.(_[a-z]\w*)", source)) & libraries == set(), own


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_checkpoint_values_are_where_trl_stores_them(name: str) -> None:
    sources = inspect.getsource(GRPOTrainer), inspect.getsource(RLOOTrainer)
    assert all(f"self.{name} = " in source for source in sources)


def test_trl_still_casts_adapters_of_quantized_models() -> None:
    for trainer in (GRPOTrainer, RLOOTrainer, DistillationTrainer):
        assert 'getattr(model, "is_loaded_in_4bit", False)' in inspect.getsource(trainer)
