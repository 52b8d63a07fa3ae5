"""SFT and GRPO on any environment.

The package can be called, too: `wander.train(env, ...)` trains, if wander-client is installed
(docs/python.md).
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wander.lazy import installed_name, lazy_names

if TYPE_CHECKING:
    from wander.train.config import GRPOSettings, SFTSettings
    from wander.train.data import select_rows
    from wander.train.grpo import GRPOResult, train_grpo
    from wander.train.settings.toml_file import read_settings
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


class _Callable(ModuleType):
    """A module that can also be called as a function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return installed_name("train")(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(installed_name("train"))


sys.modules[__name__].__class__ = _Callable
