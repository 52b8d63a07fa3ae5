"""The weights of a policy with their names in the checkpoint, and their transfer to vLLM servers."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from wander.errors import ConfigError, require_extra
from wander.models.engines.base import Weights
from wander.models.engines.vllm_colocated import require_fitting_vllm
from wander.models.engines.vllm_server import VLLMServer


def whole_weights(model: Any, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight of the policy, gathered from all processes, with adapters added if `merged` is true.

    The policy itself is not changed, because merging and unmerging adapters would alter its last bits. With a
    sharded policy (FSDP2), this is a collective operation: every process must iterate to the end.
    """
    adapters: dict[str, Any] = {}
    if merged and hasattr(model, "peft_config"):
        from peft.tuners.lora import LoraLayer

        adapters = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in model.named_parameters():
        if "lora_" in name or "original_module" in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        weight = whole_weight(parameter.detach())
        layer = adapters.get(name.rpartition(".")[0].removesuffix(".base_layer"))
        if layer is not None and layer.lora_variant and name.endswith("weight"):  # DoRA scales the sum
            twin = copy.deepcopy(layer)
            twin.merge()
            weight = twin.get_base_layer().weight.detach()
        elif layer is not None and name.endswith("weight"):
            for adapter in layer.active_adapters:
                weight = weight + layer.get_delta_weight(adapter).detach().to(weight.dtype)
        yield plain, weight


def whole_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight, gathered from all processes if it is sharded."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


class FolderSync:
    """Writes each policy as a checkpoint into a folder that the servers can read, and lets them reload it."""

    def __init__(
        self, servers: Sequence[VLLMServer], model: Any, folder: Path, *, sends: bool = True
    ) -> None:
        self._servers = servers
        self._model = model
        self._folder = folder
        self._sends = sends
        self._sent = 0
        self._written: Path | None = None

    def send(self, weights: Weights) -> None:
        """Write the weights and let every server reload them; then remove the previous checkpoint."""
        gathered = {name: weight.to("cpu") for name, weight in weights() if self._sends}
        if self._sends:
            checkpoint = write_checkpoint(self._model, gathered, self._next_folder("weights"))
            self._load(checkpoint, VLLMServer.reload)

    def _next_folder(self, name: str) -> Path:
        self._sent += 1
        return self._folder / f"{name}-{self._sent}"

    def _load(self, folder: Path, load: Callable[[VLLMServer, Path], None]) -> None:
        """Let every server load a folder, and remove the folder that it replaces."""
        # A server exits if it is given a folder that it cannot see, so it gets only folders that exist.
        for server in self._servers:
            load(server, folder)
        if self._written is not None:
            shutil.rmtree(self._written)
        self._written = folder


READ_BY_VLLM = {
    *("r", "lora_alpha", "target_modules", "use_rslora", "lora_dropout", "init_lora_weights"),
    *("exclude_modules", "layers_to_transform", "layers_pattern"),
    *("task_type", "peft_type", "peft_version", "base_model_name_or_path", "revision"),
    *("auto_mapping", "inference_mode", "runtime_config"),
}
"""Arguments of PEFT's adapters that vLLM reads, or that do not change what existing adapters compute."""


def rank_for_vllm(model: Any) -> int | None:
    """Return the rank of a policy's adapters, or None if vLLM would not compute with them as PEFT does."""
    if not hasattr(model, "peft_config"):
        return None
    config = model.peft_config["default"]
    usual = type(config)(task_type=config.task_type)
    others = {field.name for field in fields(config)} - READ_BY_VLLM
    if any(getattr(config, name) != getattr(usual, name) for name in others):
        return None
    return int(config.r)


class AdapterSync(FolderSync):
    """Writes only the adapters of each policy, which the servers load next to their own weights."""

    def send(self, weights: Weights) -> None:
        """Write the adapters and let every server load them; then remove the previous ones.

        A policy with adapters is not sharded, so no other process has a part of them.
        """
        if self._sends:
            folder = self._next_folder("adapters")
            self._model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
            self._load(folder, VLLMServer.load_adapters)


def write_checkpoint(model: Any, weights: dict[str, torch.Tensor], folder: Path) -> Path:
    """Write weights in Hugging Face format, including the output layer if it is tied to the embeddings.

    vLLM on a CPU packs its output layer into a separate copy (`ServerFacts.keeps_old_output_layer`), and
    reads it from a checkpoint only if the two are not tied.
    """
    plain = model.get_base_model() if hasattr(model, "peft_config") else model
    shutil.rmtree(folder, ignore_errors=True)
    config = plain.config.get_text_config()
    tied = bool(config.tie_word_embeddings)
    if tied:
        names = {module: name for name, module in plain.named_modules()}
        source, output = (names[m] for m in (plain.get_input_embeddings(), plain.get_output_embeddings()))
        weights = {**weights, f"{output}.weight": weights[f"{source}.weight"].clone()}
        config.tie_word_embeddings = False
    try:
        plain.save_pretrained(folder, state_dict=weights)
    finally:
        config.tie_word_embeddings = tied
    return folder


class NCCLSync:
    """Broadcasts each policy to the servers' GPUs with TRL's client; vLLM must also be installed here."""

    def __init__(self, servers: Sequence[VLLMServer], device: Any, group_port: int, *, sends: bool) -> None:
        if torch.device(device).type != "cuda":
            raise ConfigError(
                '`inference.sync = "nccl"` needs the policy on a GPU',
                hint='set `inference.sync = "folder"`, which works on every device',
            )
        self._shapes: list[tuple[str, str, list[int]]] = []
        self._servers = len(servers)
        self._clients: list[Any] = []
        if not sends:
            return
        require_fitting_vllm('`inference.sync = "nccl"`')
        with require_extra("vllm", needed_for="weights through NCCL"):
            from trl.generation.vllm_client import VLLMClient

            for number, server in enumerate(servers):
                client = VLLMClient(
                    base_url=server.url, group_port=group_port + number, connection_timeout=60
                )
                client.init_communicator(device=device)
                self._clients.append(client)

    def send(self, weights: Weights) -> None:
        """Announce the shapes once, then stream the weights to every server."""
        if not self._shapes:
            self._shapes = [
                (name, str(weight.dtype).removeprefix("torch."), list(weight.shape))
                for name, weight in weights()
            ]
        for number in range(self._servers):
            if self._clients:
                self._clients[number].update_named_params(self._shapes, weights())
                self._clients[number].reset_prefix_cache()
            else:
                for _ in weights():  # gathering is collective
                    pass
