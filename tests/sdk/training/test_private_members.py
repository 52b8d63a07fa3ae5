"""Every private member of TRL and transformers that the trainer overrides or calls, as it was when read.

A new release that changes one of them fails here by name: read the change, then record the new digest.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import wander.train
from transformers import Trainer
from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, KTOTrainer, RLOOTrainer, SFTTrainer
from wander.train.grpo import RolloutTrainer
from wander.train.losses.distill import DistillTrainer
from wander.train.losses.rloo import LeaveOneOutTrainer
from wander.train.preference import PairTrainer, VerdictTrainer
from wander.train.sft import LengthSortedTrainer

OWN = (RolloutTrainer, LeaveOneOutTrainer, DistillTrainer, LengthSortedTrainer, PairTrainer, VerdictTrainer)
LIBRARY = (Trainer, GRPOTrainer, RLOOTrainer, DistillationTrainer, SFTTrainer, DPOTrainer, KTOTrainer)
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
    "Trainer.create_accelerator_and_postprocess": "d649720bec7e",
}


def is_of_library(kind: type) -> bool:
    return kind.__module__.startswith(("trl.", "transformers."))


def overridden() -> dict[str, Any]:
    """Return what our trainers override: private members, and others that TRL calls."""
    members: dict[str, Any] = {}
    for own in OWN:
        names = {name for kind in own.__mro__ if kind.__module__.startswith("wander.") for name in vars(kind)}
        for name in names:
            for kind in own.__mro__:
                if is_of_library(kind) and name in vars(kind) and not name.startswith("__"):
                    members[f"{kind.__name__}.{name}"] = vars(kind)[name]
                    break
    return members


def digest(member: Any) -> str:
    return hashlib.sha256(inspect.getsource(member).encode()).hexdigest()[:12]


def test_every_member_that_is_overridden_is_as_it_was_read() -> None:
    now = {name: digest(member) for name, member in sorted(overridden().items())}
    assert now == READ, "read what changed in TRL or transformers, then record the new digest here"


def test_every_private_member_that_is_called_is_known() -> None:
    root = Path(str(wander.train.__file__)).parent
    pattern = re.compile(r"(?:trainer|super\(\))\.(_[a-z]\w*)")
    used = {name for file in root.rglob("*.py") for name in pattern.findall(file.read_text(encoding="utf-8"))}
    of_library = {
        name for kind in LIBRARY for base in kind.__mro__ if is_of_library(base) for name in vars(base)
    }
    known = {name.partition(".")[2] for name in READ}
    assert used & of_library <= known


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_values_of_a_checkpoint_are_still_where_trl_keeps_them(name: str) -> None:
    sources = inspect.getsource(GRPOTrainer), inspect.getsource(RLOOTrainer)
    assert all(f"self.{name} = " in source for source in sources)
