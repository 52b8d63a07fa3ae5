"""Local language models: the tiny policy, SmolLM2, loading, chat formatting and sampling.

Importing this package is fast. The modules that need torch and transformers import them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.models.client import TransformersClient
    from wander.models.loading import LoadedModel, load_model
    from wander.models.tiny import TinySize, create_tiny

__all__ = ["LoadedModel", "TinySize", "TransformersClient", "create_tiny", "load_model"]

__getattr__, __dir__ = lazy_names(__name__)

# OpenMP threads spin while they wait, which starves other processes on the same cores: environments, a hub,
# another run. On two busy cores, a backward pass of the tiny policy took 14.9 s with spinning and 0.6 s with
# sleeping threads. The variable is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
