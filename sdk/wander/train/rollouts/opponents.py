"""The other players of a training (`[players]`): scripts, models that do not learn, and earlier policies.

Each other player has a client for each client of the policy. Its turns are sampled in the same batches as the
policy's, so in exact mode they are the same each time. A model is loaded once for all clients. Every
checkpoint contains the weights of the earlier policies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from wander.clients.base import Client
from wander.clients.players import PlayersClient, require_players
from wander.errors import ConfigError
from wander.evals.store import jsonl
from wander.models.batching import Tell
from wander.models.engines.base import BatchedEngine, SamplingJob, Weights
from wander.models.engines.transformers import TransformersEngine
from wander.models.loading import LoadedModel, weights_digest
from wander.models.policy import PolicyClient
from wander.models.sampling import Sample
from wander.train.config import GRPOSettings
from wander.train.distributed import current_world
from wander.train.engine import load_sampled, sampling_arguments
from wander.train.settings.sections import EARLIER, FROZEN, SCRIPTED, SELF, PlayerSection
from wander.types import EnvironmentInfo

STATE = "players.json"
"""File in a checkpoint with the versions of the earlier policies. Their weights are in separate files."""


class SharedEngine(TransformersEngine):
    """Samples from a model that other engines also sample from, in their own threads."""

    turn = Lock()
    """Lock that all such engines share. They only sample, and one at a time is faster."""

    def _sample(self, jobs: Sequence[SamplingJob], tell: Tell[Sample]) -> list[Sample]:
        with self.turn:
            return super()._sample(jobs, tell)


class OtherPolicy(PolicyClient):
    """A model that plays with the policy, in the same batches, and does not learn."""

    engine: SharedEngine

    def __init__(self, loaded: LoadedModel, name: str, settings: GRPOSettings, beside: BatchedEngine) -> None:
        engine = SharedEngine(loaded.model, loaded.tokenizer, beside=beside, **sampling_arguments(settings))
        super().__init__(loaded.model, loaded.tokenizer, name=name, engine=engine)
        self.limit_context(settings.sampling.max_rollout_tokens)
        self._path, self._revision = loaded.path, loaded.revision

    def describe(self) -> dict[str, Any]:
        """Return the facts that a manifest records, with the digest of the initial weights."""
        digest = weights_digest(self._path) if self._path else None
        return {**super().describe(), "revision": self._revision, "weights_sha256": digest}


@dataclass
class _Earlier:
    """An earlier policy."""

    section: PlayerSection
    load: Callable[[], LoadedModel]
    """Function that loads the initial model."""
    models: list[LoadedModel] = field(default_factory=list)
    """Models of this player: first the model with its current weights, then models that are or were used with
    older weights."""
    version: int = 0
    """Number of updates before its weights; 0 for the initial weights."""

    @property
    def loaded(self) -> LoadedModel:
        """Model with its current weights."""
        if not self.models:
            self.models.append(self.load())
        return self.models[0]

    def become(self, version: int, weights: Weights, playing: Collection[Any] = ()) -> None:
        """Copy the policy after `version` updates; the models in `playing` keep their weights."""
        free = next((loaded for loaded in self.models if loaded.model not in playing), None) or self.load()
        self.models = [free, *(loaded for loaded in self.models if loaded is not free)]
        own = dict(free.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights():
                own[name].copy_(weight)
        self.version = version

    def refresh(self, version: int, weights: Weights, playing: Collection[Any]) -> None:
        """Copy the policy after `version` updates if a refresh is due."""
        if version - self.version >= self.section.refresh_every:
            self.become(version, weights, playing)


class Opponents:
    """The other players of a run."""

    def __init__(self, settings: GRPOSettings) -> None:
        self.settings = settings
        self.models = settings.other_players
        self._joined: dict[PolicyClient, Client] = {}
        self._loaded: dict[str, LoadedModel] = {}
        self._earlier = {
            player: _Earlier(settings.players[player], lambda: load_sampled(settings))
            for player, model in self.models.items()
            if model == EARLIER
        }

    def require(self, info: EnvironmentInfo) -> None:
        """Raise `ConfigError` for players that the environment lacks, or if the policy plays none of its
        players.

        It is also an error if the players that the policy learns as cannot share a process's groups evenly.
        """
        require_players(info, self.settings.players, first=True)
        if self.models and self.models.keys() == set(info.players):
            raise ConfigError(
                f"the policy plays none of the players of `{info.name}`, so it would learn nothing",
                hint=f'leave a player out of `players`, or set it to `"{SELF}"`',
            )
        roles = self.settings.count_roles(info.players)
        groups = self.settings.batch.groups // current_world(self.settings.model.device).size
        if groups % roles:
            raise ConfigError(
                f"`batch.rollouts` gives {groups} groups per process, which {roles} players cannot "
                "share evenly",
                hint="make `batch.rollouts` a multiple of group_size x players x processes",
            )

    def join(self, client: PolicyClient) -> Client:
        """Return a client of the policy together with the clients of the other players."""
        if client not in self._joined:
            self._joined[client] = self.join_models(client, self.models)
        return self._joined[client]

    def join_models(self, client: PolicyClient, models: Mapping[str, str]) -> Client:
        """Return a client of the policy together with clients of the given models, by player."""
        others: dict[str, Client | str] = {}
        for player, model in models.items():
            if model.startswith(SCRIPTED):
                others[player] = model
            elif model != SELF:
                assert isinstance(client.engine, BatchedEngine)  # the settings reject any other engine
                loaded = self._load(player, model)
                name = model if model in (FROZEN, EARLIER) else loaded.name
                others[player] = OtherPolicy(loaded, name, self.settings, client.engine)
        return PlayersClient(client, others) if others else client

    def _load(self, player: str, model: str) -> LoadedModel:
        if model == EARLIER:
            return self._earlier[player].loaded
        if model not in self._loaded:
            self._loaded[model] = load_sampled(self.settings, None if model == FROZEN else model)
        return self._loaded[model]

    def prepare(self, client: PolicyClient, version: int, weights: Weights) -> None:
        """Set the earlier policies of a client to their state after `version` updates of the policy.

        `weights` returns the current weights of the policy. All processes must call this at the same point.
        """
        own = self.join(client)
        for player, earlier in self._earlier.items():
            playing = [joined.others[player] for joined in self._joined.values() if joined is not own]
            earlier.refresh(version, weights, [other.engine.sampler.model for other in playing])  # type: ignore[attr-defined]
            own.others[player].engine.sampler.model = earlier.loaded.model  # type: ignore[attr-defined]

    def load(self, checkpoint: Path) -> None:
        """Restore the earlier policies from a checkpoint."""
        if not self._earlier:
            return
        for player, version in json.loads((checkpoint / STATE).read_bytes()).items():
            if version:
                file = checkpoint / _weights_file(player)
                weights = torch.load(file, map_location="cpu", weights_only=True)
                self._earlier[player].become(version, weights.items)

    def save(self, checkpoint: Path) -> None:
        """Write the earlier policies into a checkpoint."""
        if not self._earlier:
            return
        for player, earlier in self._earlier.items():
            if earlier.version:
                weights = {name: own.detach() for name, own in earlier.loaded.model.named_parameters()}
                torch.save(weights, checkpoint / _weights_file(player))
        versions = {player: earlier.version for player, earlier in self._earlier.items()}
        jsonl.write_whole(checkpoint / STATE, (json.dumps(versions) + "\n").encode())


def _weights_file(player: str) -> str:
    # The file is not in safetensors format, because all such files in a folder count as weights of its model.
    return f"player-{player}.pt"
