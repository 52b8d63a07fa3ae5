"""Local language models: the tiny policy, SmolLM2, loading, chat formatting and sampling.

Importing this package is light; torch and transformers are imported by the modules that need them.
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

# OpenMP's threads spin while they wait, which starves whatever shares the cores: environments, a hub, another
# run. On two busy cores one backward pass of the tiny policy took 14.9 s spinning and 0.6 s sleeping. The
# variable is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
