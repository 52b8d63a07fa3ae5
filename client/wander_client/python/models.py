"""What a program may pass as a model: a client, a name, a folder, or a Hugging Face model in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Union

from wander.clients.base import Client

from wander_client.context import Invocation
from wander_client.errors import UsageError
from wander_client.models.pool import GivenModel, ModelPool


class CausalModel(Protocol):
    """A Hugging Face model with a language model's head."""

    config: Any

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """Sample, as its library does."""


Model: TypeAlias = Union[Client, str, "os.PathLike[str]", CausalModel]
"""A `Client`; a name as `wander eval -m` takes it (`smollm2`, `hf:NAME`, `scripted:MODULE:FUNCTION`, or that
of a model behind `base_url`); a checkpoint's folder; or a Hugging Face model that is in memory."""


def open_model_pool(context: Invocation, model: Model, tokenizer: Any = None) -> tuple[str, ModelPool]:
    """Return a model's name, and what opens its client; raises `UsageError` for what is no model."""
    if isinstance(model, Client):
        return model.model, GivenModel(context, model, close=False)
    if isinstance(model, str):
        return model, ModelPool(context)
    if isinstance(model, os.PathLike):
        return str(Path(model).expanduser().resolve()), ModelPool(context)
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise UsageError(
            f"a `{type(model).__name__}` is no model",
            hint="pass a name, a checkpoint's folder, a `wander.Client`, or a Hugging Face model",
        )
    if tokenizer is None:
        raise UsageError("a model in memory needs its tokenizer", hint="pass `tokenizer=` beside the model")
    from wander.models.client import TransformersClient
    from wander.models.loading import LoadedModel, model_name

    source = str(getattr(model, "name_or_path", "") or type(model).__name__)
    name = model_name(Path(source)) if Path(source).is_dir() else source
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Without a folder: its weights may have changed since they were read.
    client = TransformersClient(LoadedModel(model=model, tokenizer=tokenizer, name=name, path=None))
    return name, GivenModel(context, client, close=True)
