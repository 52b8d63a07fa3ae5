"""The engine that samples the rollouts of a run (`[inference]`), and the transfer of weights to it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from wander.errors import ConfigError
from wander.models.engines.base import Engine
from wander.models.engines.transformers import TransformersEngine
from wander.models.engines.vllm_colocated import VLLMColocatedEngine
from wander.models.engines.vllm_server import RANKS, VLLMServer, VLLMServerEngine, WeightSync
from wander.models.engines.weights import (
    AdapterSync,
    FolderSync,
    NCCLSync,
    rank_for_vllm,
    whole_weights,
    write_checkpoint,
)
from wander.models.loading import LoadedModel, torch_device
from wander.models.sampling import context_length_of, end_of_turn_ids
from wander.train.config import GRPOSettings, InferenceSection, Precision
from wander.train.distributed import World, shards_policy
from wander.train.weights import load_learner

ServerOpener = Callable[[Path, InferenceSection], AbstractContextManager[str]]
"""Function that starts a vLLM server for a checkpoint folder and yields its address; the server stops at the
end of the block."""

SERVED = "served"
"""Folder in the run's folder through which weights are passed to a server."""


@contextlib.contextmanager
def open_engine(
    settings: GRPOSettings,
    model: Any,
    loaded: LoadedModel,
    folder: Path,
    world: World,
    serve: ServerOpener | None = None,
) -> Iterator[Engine]:
    """Yield the engine that samples for the policy `model`; a server that it starts stops at the end of the
    block.

    `folder` is the run's folder. Raises `ConfigError` if a server does not respond or cannot be used for
    training.
    """
    section = settings.inference
    if section.engine == "transformers":
        if samples_a_copy(settings, model.device):
            yield copying_engine(settings)
        else:
            yield TransformersEngine(model, loaded.tokenizer, **sampling_arguments(settings))
        return
    ends = end_of_turn_ids(model, loaded.tokenizer)
    if section.engine == "vllm":
        yield VLLMColocatedEngine(
            loaded.tokenizer,
            end_ids=ends,
            context_length=context_length_of(model),
            memory=section.memory,
            sleeps=section.sleep,
            rows=sampling_rows(settings),
        )
        return
    place = Path(section.folder).resolve() if section.folder else folder.resolve() / SERVED
    rank = rank_for_vllm(model) if section.sync == "folder" else None
    with contextlib.ExitStack() as stack:

        def start() -> str:
            if serve is None:
                raise ConfigError("the address of the vLLM server is missing", hint="set `inference.url`")
            first = write_checkpoint(model, dict(whole_weights(model, merged=False)), place / "weights-0")
            loaded.tokenizer.save_pretrained(first)
            return stack.enter_context(serve(first, for_adapters(section, rank)))

        url = world.from_main(start) if section.url is None else section.url
        servers = [VLLMServer(address) for address in ([url] if isinstance(url, str) else url)]
        adapters = rank is not None and all([serves_adapters(server, rank) for server in servers])
        sync: WeightSync
        if section.sync == "nccl":
            sync = NCCLSync(servers, model.device, section.group_port, sends=world.is_main)
        else:
            kind = AdapterSync if adapters else FolderSync
            sync = kind(servers, model, place, sends=world.is_main)
        engine = VLLMServerEngine(
            *(servers, sync),
            end_ids=ends,
            process=world.rank,
            sleeps=section.sleep,
            adapters=adapters,
        )
        if adapters:
            for server in servers:
                require_same_base(server, model)
        elif section.sync == "folder" and engine.facts.keeps_old_output_layer:
            raise ConfigError(
                f"the server at `{servers[0].url}` would keep its old output layer: vLLM on a CPU packs an "
                "output layer that is tied to the embeddings only once",
                hint="leave out `inference.url`, so that a server is started with an untied checkpoint",
            )
        yield engine


def for_adapters(section: InferenceSection, rank: int | None) -> InferenceSection:
    """Return the settings of a server that serves adapters of a rank, if there is one.

    The user's own arguments come last, so `--no-enable-lora` among them serves merged weights.
    """
    limit = None if rank is None else rank_limit(rank)
    if limit is None:
        return section
    own = ["--enable-lora", "--max-lora-rank", str(limit)]
    return section.model_copy(update={"arguments": [*own, *section.arguments]})


def rank_limit(rank: int) -> int | None:
    """Return the smallest limit of vLLM that allows adapters of a rank, or None above the largest limit."""
    return next((limit for limit in RANKS if limit >= rank), None)


def serves_adapters(server: VLLMServer, rank: int) -> bool:
    """Return whether a server serves adapters. Raises `ConfigError` if it does so only up to a lower rank."""
    largest = server.look().largest_rank
    if largest is not None and largest < rank:
        raise ConfigError(
            f"the server at `{server.url}` serves adapters up to rank {largest}, but `model.lora_rank` is "
            f"{rank}",
            hint=f"start it with `--max-lora-rank {rank_limit(rank) or rank}`, or without "
            "`--enable-lora`, so that it gets the merged weights",
        )
    return largest is not None


COMPARED = 8
"""Number of tokens that are compared with a server's."""
SAME_BASE = 0.5
"""Largest mean difference, in nats, between the log-probabilities of a server and of the policy for these
tokens. A server may round weights to fewer bits."""


def require_same_base(server: VLLMServer, model: Any) -> None:
    """Raise `ConfigError` unless a server has the weights that the adapters of the policy belong to."""
    prompt = list(range(1, 1 + COMPARED))
    ids, theirs = server.most_probable(prompt, COMPARED)
    distance = math.inf
    if max(ids) < model.get_input_embeddings().num_embeddings:
        with model.disable_adapter(), torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + ids], device=model.device)).logits[0].float()
        ours = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].cpu()
        picked = ours.gather(-1, torch.tensor([ids]).T)[:, 0]
        distance = float((picked - torch.tensor(theirs)).abs().mean())
    if not distance <= SAME_BASE:
        raise ConfigError(
            f"the server at `{server.url}` has other weights than `model.path`: the log-probabilities of "
            f"{COMPARED} tokens differ by {distance:.2g} nats. The adapters do not belong to those weights",
            hint="start the server with the model in `model.path`, or without `--enable-lora`",
        )


def sampling_dtype(settings: GRPOSettings, device: torch.device) -> Precision:
    """Return the precision of the weights that transformers samples from."""
    section = settings.model
    if settings.inference.dtype is not None:
        return settings.inference.dtype
    casts = device.type == "cuda" and section.autocast and section.quantization is None
    return "bfloat16" if casts else section.dtype


def samples_a_copy(settings: GRPOSettings, device: torch.device) -> bool:
    """Return whether transformers samples from a copy of the policy's weights.

    Adapters are merged in the copy. On a GPU, a decoding step with adapters launches 2.7 times the kernels of
    one without, and the launches take most of its time. On a CPU, the policy itself is sampled, so that the
    same weights give the same bits. Weights with 4 bits are sampled as they are, because a copy of them would
    take the memory that they save.
    """
    section = settings.model
    merges = device.type == "cuda" and section.lora_rank > 0 and section.quantization is None
    return shards_policy(settings) or merges or sampling_dtype(settings, device) != section.dtype


def load_sampled(settings: GRPOSettings, path: str | None = None) -> LoadedModel:
    """Load a model to sample from in the precision of sampling: the policy's initial model, or the model at
    `path`."""
    section = settings.model
    dtype = sampling_dtype(settings, torch_device(section.device))
    return load_learner(section.model_copy(update={"dtype": dtype, "quantization": None}), path)


def sampling_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """Return the arguments of the engine of the policy itself, or of a model that `load_sampled` returned."""
    section = settings.model
    casts = section.autocast and sampling_dtype(settings, torch_device(section.device)) == section.dtype
    return {"max_batch_size": sampling_rows(settings), "autocast": casts}


def sampling_rows(settings: GRPOSettings) -> int:
    """Return the number of rows that an engine samples together."""
    return 4 * settings.batch.rows_at_once


def copying_engine(settings: GRPOSettings) -> TransformersEngine:
    """Return an engine with a separate model that is not trained; `update_weights` keeps it current."""
    loaded = load_sampled(settings)
    return TransformersEngine(loaded.model, loaded.tokenizer, live=False, **sampling_arguments(settings))


def engine_for_later_steps(engine: Engine, settings: GRPOSettings) -> Engine:
    """Return an engine that samples a later step while the policy learns."""
    if isinstance(engine, VLLMServerEngine):
        return engine.twin()
    return copying_engine(settings)


class CurrentWeights:
    """Keeps an engine at the policy's weights, so that rollouts between two updates use the same weights."""

    def __init__(self, trainer: Any, engine: Engine, world: World, *, tells_step: bool = False) -> None:
        """Keep the engine current; with `tells_step`, samples record the training step of the weights."""
        self.trainer = trainer
        self.engine = engine
        self.world = world
        self._tells_step = tells_step
        self.seconds = 0.0
        """Seconds that updates took since this was last set to 0."""
        self._step = -1

    def refresh(self) -> None:
        """Update the engine; every process must call it at the same point."""
        step = self.trainer.state.global_step
        if step == self._step and not self.engine.wants_weights:
            return
        started = perf_counter()
        model = self.trainer.model
        try:
            if not self.engine.reads_live_weights:
                self.world.together(self.engine.pause)
                self.world.together(lambda: self.engine.update_weights(lambda: whole_weights(model)))
        finally:
            self.engine.resume(step if self._tells_step else None)
        self._step = step
        self.seconds += perf_counter() - started


def attach(current: CurrentWeights) -> None:
    """Let an engine sample for its trainer."""
    trainer = current.trainer
    trainer.player.source.client.refresh = current.refresh
    if isinstance(current.engine, VLLMColocatedEngine):
        current.engine.start(trainer.model, trainer.accelerator)
