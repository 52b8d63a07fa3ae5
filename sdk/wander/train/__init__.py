"""SFT and GRPO on any environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.train.config import GRPOSettings, SFTSettings, read_settings
    from wander.train.data import select_rows
    from wander.train.grpo import GRPOResult, train_grpo
    from wander.train.sft import SFTResult, train_sft

__all__ = [
    "GRPOResult",
    "GRPOSettings",
    "SFTResult",
    "SFTSettings",
    "read_settings",
    "select_rows",
    "train_grpo",
    "train_sft",
]

__getattr__, __dir__ = lazy_names(__name__)
