"""Models from Python: a client, a name, a folder, or a Hugging Face model in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Union

from wander.clients.base import Client

from wander_client.context import Invocation
from wander_client.errors import UsageError
from wander_client.models.pool import GivenModel, ModelPool


class CausalModel(Protocol):
    """A Hugging Face model with a language model head."""

    config: Any

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """Generate tokens, as in transformers."""


Model: TypeAlias = Union[Client, str, "os.PathLike[str]", CausalModel]
"""A `Client`; a name as for `wander eval -m` (`smollm2`, `hf:NAME`, `scripted:MODULE:FUNCTION`, or the name
of a model at `base_url`); a checkpoint folder; or a Hugging Face model in memory."""


def open_model_pool(context: Invocation, model: Model, tokenizer: Any = None) -> tuple[str, ModelPool]:
    """Return a model's name, and the pool that opens its client. Raises `UsageError` for any other value."""
    if isinstance(model, Client):
        return model.model, GivenModel(context, model, close=False)
    if isinstance(model, str):
        return model, ModelPool(context)
    if isinstance(model, os.PathLike):
        return str(Path(model).expanduser().resolve()), ModelPool(context)
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise UsageError(
            f"a `{type(model).__name__}` is not a model",
            hint="pass a name, a checkpoint folder, a `wander.Client`, or a Hugging Face model",
        )
    if tokenizer is None:
        raise UsageError("a model in memory requires its tokenizer", hint="also pass `tokenizer=`")
    from wander.models.client import TransformersClient
    from wander.models.loading import LoadedModel, model_name

    source = str(getattr(model, "name_or_path", "") or type(model).__name__)
    name = model_name(Path(source)) if Path(source).is_dir() else source
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # No path, because the weights may have changed since they were loaded.
    client = TransformersClient(LoadedModel(model=model, tokenizer=tokenizer, name=name, path=None))
    return name, GivenModel(context, client, close=True)
