"""Models that Ray places: an actor with a GPU holds one, or its server, and shards on any node ask it.

Answers, and the token ids in them, are those that a client in the shard's own process would give. An actor
whose node dies is started again elsewhere; what it had under way fails as retryable and is played again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ModelError
from wander.types import SamplingArgs
from wander.worker.protocol import Fault

from wander_client.cluster import Problem, Versions
from wander_client.context import CommonOptions, Invocation
from wander_client.models.pool import ModelChoice, ModelPool
from wander_client.models.reference import is_local_model
from wander_client.suites.file import Suite
from wander_client.terminal.output import Output

MOST_CALLS = 100_000
"""Calls that an actor may have under way; the shards bound them."""
_PARALLEL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
"""Arguments of vLLM that multiply the GPUs it takes."""

Actors = Mapping[ModelChoice, Sequence[Any]]
"""The actors of each model, among which shards take turns."""


def key_of(choice: ModelChoice) -> ModelChoice:
    """Return what of a choice says which model is to be loaded."""
    return replace(choice, players=(), cache=False)


def models_of(suite: Suite) -> list[ModelChoice]:
    """Return the models of a suite that want a GPU, each once."""
    choices = [run.settings.choose_model() for run in suite.runs]
    return list(dict.fromkeys(key_of(each) for each in choices if _wants_gpu(each)))


def count_gpus(choice: ModelChoice) -> int:
    """Return how many GPUs a model takes."""
    words = (
        [] if choice.serve is None else [part for word in choice.serve.arguments for part in word.split("=")]
    )
    found = 1
    for option, value in pairwise(words):
        found *= int(value) if option in _PARALLEL and value.isdecimal() else 1
    return found


def count_actors(suite: Suite, gpus: int) -> Counter[ModelChoice] | None:
    """Return how many actors each model gets; None where the GPUs do not hold all models at the same time."""
    models = models_of(suite)
    together = sum(count_gpus(each) for each in models)
    if not models or together > gpus:
        return None
    return Counter({each: gpus // together for each in models})


def _wants_gpu(choice: ModelChoice) -> bool:
    local = choice.base_url is None and is_local_model(choice.model) and choice.device != "cpu"
    return choice.serve is not None or local


@dataclass(frozen=True)
class _Described:
    """A model that answers."""

    model: str
    described: dict[str, Any]


@dataclass
class ModelActor:
    """An actor: loads a model when it is first asked, and answers for as long as it lives."""

    choice: ModelChoice
    variables: dict[str, str] = field(repr=False)
    versions: Versions

    def __post_init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._opening: asyncio.Task[Client] | None = None
        self._begun: set[str] = set()

    async def describe(self) -> _Described | Problem:
        """Return what the model says about itself."""
        try:
            client = await self._open()
        except Exception as error:  # noqa: BLE001 - returned, and raised by the shard
            return Problem.of(error)
        return _Described(client.model, client.describe())

    async def complete(self, request: ModelRequest) -> ModelResponse | Fault:
        """Return the model's completion."""
        try:
            if request.turn and request.rollout_id not in self._begun:
                raise ModelError("the model's node was lost while the rollout played", retryable=True)
            client = await self._open()
            self._begin(client, request.rollout_id)
            return await client.complete(request)
        except ModelError as error:
            return Fault.of(error)

    async def begin(self, rollout_id: str) -> None:
        """Learn that a rollout starts."""
        self._begin(await self._open(), rollout_id)

    async def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        if rollout_id in self._begun:
            self._begun.discard(rollout_id)
            (await self._open()).end(rollout_id)

    async def check(self, sampling: SamplingArgs | None, *, tools: bool) -> Fault | None:
        """Find out whether the model can be used, offered tools, or sampled so."""
        try:
            client = await self._open()
            await client.check()
            if tools:
                client.check_tools()
            if sampling is not None:
                client.check_sampling(sampling)
        except ModelError as error:
            return Fault.of(error)
        return None

    async def close(self) -> None:
        """End the model, or its server, also while it starts."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._stack.aclose()

    def _begin(self, client: Client, rollout_id: str) -> None:
        if rollout_id not in self._begun:
            self._begun.add(rollout_id)
            client.begin(rollout_id)

    async def _open(self) -> Client:
        task = self._opening
        if task is None or (task.done() and not task.cancelled() and task.exception() is not None):
            task = self._opening = asyncio.create_task(self._load())
        return await asyncio.shield(task)

    async def _load(self) -> Client:
        self.versions.require()
        os.environ.update(self.variables)
        context = Invocation(CommonOptions(mode="quiet"), Output("quiet"))
        pool = await self._stack.enter_async_context(ModelPool(context))
        log = Path(context.settings.cache_dir, "logs", "model-server.log")
        opened = pool.client(self.choice, None, name="", log_path=log)
        return await self._stack.enter_async_context(opened)


class RayModelClient(Client):
    """Answers with the model of an actor; `prefix` keeps this shard's rollouts apart from those of others."""

    def __init__(self, actor: Any, described: _Described, prefix: str) -> None:
        self.model = described.model
        self._actor, self._described, self._prefix = actor, described.described, prefix

    @classmethod
    async def open(cls, actor: Any, prefix: str) -> RayModelClient:
        """Wait until the model is loaded; raises what went wrong there."""
        found = await actor.describe.remote()
        if isinstance(found, Problem):
            raise found.raised()
        return cls(actor, found, prefix)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the actor's completion."""
        asked = request.model_copy(update={"rollout_id": self._prefix + request.rollout_id})
        answer = await self._ask(self._actor.complete.remote(asked))
        assert isinstance(answer, ModelResponse)
        return answer

    def begin(self, rollout_id: str) -> None:
        """Pass on that a rollout starts."""
        self._actor.begin.remote(self._prefix + rollout_id)

    def end(self, rollout_id: str) -> None:
        """Pass on that a rollout ended."""
        self._actor.end.remote(self._prefix + rollout_id)

    async def check(self) -> None:
        """Find out whether the model can be used."""
        await self._ask(self._actor.check.remote(None, tools=False))

    def check_tools(self) -> None:
        """Find out whether the model can be offered tools."""
        self._wait(self._actor.check.remote(None, tools=True))

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Find out whether the model can be sampled so."""
        self._wait(self._actor.check.remote(sampling, tools=False))

    def describe(self) -> dict[str, Any]:
        """Return what the model says about itself."""
        return self._described

    async def _ask(self, asked: Any) -> Any:
        import ray

        try:
            answer = await asked
        except ray.exceptions.RayError as error:
            first = str(error).splitlines()[0]
            raise ModelError(f"the model's actor failed: {first}", retryable=True) from error
        if isinstance(answer, Fault):
            raise answer.model_error()
        return answer

    def _wait(self, asked: Any) -> None:
        import ray

        if isinstance(answer := ray.get(asked), Fault):
            raise answer.model_error()
