"""Models that Ray places. An actor with a GPU loads one or starts its server, and shards on any node call it.

Answers and their token ids are the same as from a client in the shard's own process. If the process or node
of an actor dies, Ray restarts the actor and repeats the call; rollouts that it had answered are played again.
If a server dies, its actor restarts it and repeats the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import EndpointUnreachable, ModelError
from wander.types import SamplingArgs
from wander.worker.protocol import Fault
from wander_client.context import CommonOptions, Invocation
from wander_client.errors import ClientError
from wander_client.models.pool import ModelChoice, ModelPool
from wander_client.models.reference import is_local_model
from wander_client.suites.file import Suite
from wander_client.terminal.output import Output

from wander_ray.cluster import NodeError, Versions, failed

MOST_CALLS = 100_000
"""Maximum number of simultaneous calls to an actor. The shards set the actual limit."""
MOST_RESTARTS = 10
"""Number of times that Ray may restart an actor whose process or node died."""
_MOST_DEATHS = 3
"""Number of times that a server may die without an answer in between before it is not restarted again."""
_PARALLEL = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
"""Arguments of vLLM that multiply the GPUs it takes."""

Actors = Mapping[ModelChoice, Sequence[Any]]
"""The actors of each model, among which shards take turns."""


def key_of(choice: ModelChoice) -> ModelChoice:
    """Return the part of a choice that identifies the model."""
    return replace(choice, players=(), cache=False)


def models_of(suite: Suite) -> list[ModelChoice]:
    """Return the models of a suite that want a GPU, each once."""
    found: dict[ModelChoice, None] = {}
    for choice in (run.settings.choose_model() for run in suite.runs):
        local = choice.base_url is None and is_local_model(choice.model) and choice.device != "cpu"
        if choice.serve is not None or local:
            found[key_of(choice)] = None
    return list(found)


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


@dataclass
class ModelActor:
    """An actor: loads a model when it is first asked, and answers for as long as it lives."""

    choice: ModelChoice
    variables: dict[str, str] = field(repr=False)
    versions: Versions

    def __post_init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._pool: ModelPool | None = None
        """Holds the model once it is loaded."""
        self._opening: asyncio.Task[Client] | None = None
        self._begun: set[str] = set()
        self._deaths = 0
        """Number of deaths of the server since its last answer."""

    async def describe(self) -> tuple[str, dict[str, Any]] | Fault | NodeError:
        """Return the model's name, and what it says about itself."""
        try:
            client = await self._open()
        except Exception as error:  # noqa: BLE001 - returned, and raised by the shard
            return _as_value(error)
        return client.model, client.describe()

    async def complete(self, request: ModelRequest) -> ModelResponse | Fault | NodeError:
        """Return the model's completion, also where its server dies meanwhile."""
        if request.turn and request.rollout_id not in self._begun:
            return Fault.of(ModelError("the model was lost while the rollout played", retryable=True))
        while True:
            try:
                client = await self._open()
                self._begin(client, request.rollout_id)
                answer = await client.complete(request)
            except Exception as error:  # noqa: BLE001 - returned, and raised by the shard
                if not isinstance(error, ModelError) or self._why_ended() is None:
                    return _as_value(error)
            else:
                self._deaths = 0
                return answer

    async def begin(self, rollout_id: str) -> None:
        """Learn that a rollout starts."""
        self._begin(await self._open(), rollout_id)

    async def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        if rollout_id in self._begun:
            self._begun.discard(rollout_id)
            (await self._open()).end(rollout_id)

    async def check(self, sampling: SamplingArgs | None, *, tools: bool) -> Fault | NodeError | None:
        """Find out whether the model can be used, offered tools, or sampled so."""
        try:
            client = await self._open()
            await client.check()
            if tools:
                client.check_tools()
            if sampling is not None:
                client.check_sampling(sampling)
        except Exception as error:  # noqa: BLE001 - returned, and raised by the shard
            return _as_value(error)
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

    def _why_ended(self) -> ClientError | None:
        return None if self._pool is None else self._pool.why_ended()

    async def _open(self) -> Client:
        """Return the client. If its server died, start another one, unless it died immediately."""
        task = self._opening
        if (ended := self._why_ended()) is not None:
            self._deaths += 1
            if self._deaths >= _MOST_DEATHS:
                raise ended
            task = self._pool = None
        if task is None or (task.done() and not task.cancelled() and task.exception() is not None):
            task = self._opening = asyncio.create_task(self._load())
        return await asyncio.shield(task)

    async def _load(self) -> Client:
        self.versions.require()
        os.environ.update(self.variables)
        await self._stack.aclose()  # of a server that has died
        context = Invocation(CommonOptions(mode="quiet"), Output("quiet"))
        pool = await self._stack.enter_async_context(ModelPool(context))
        log = Path(context.settings.cache_dir, "logs", "model-server.log")
        opened = pool.client(self.choice, None, name="", log_path=log)
        client = await self._stack.enter_async_context(opened)
        self._pool = pool
        return client


def _as_value(error: Exception) -> Fault | NodeError:
    """Return an exception as what an actor can return: a fault of one call, or what ends all."""
    return Fault.of(error) if isinstance(error, ModelError) else NodeError.of(error)


class RayModelClient(Client):
    """Answers with the model of an actor; `prefix` keeps this shard's rollouts apart from those of others."""

    def __init__(self, actor: Any, prefix: str) -> None:
        self._actor, self._prefix = actor, prefix
        self._described: dict[str, Any] = {}
        self._lost: ClientError | None = None
        """Why the actor answers nobody any more."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[RayModelClient]:
        """Yield it once the model is loaded; raises what went wrong with it, also meanwhile."""
        try:
            self.model, self._described = await self._ask(self._actor.describe.remote())
            yield self
        except EndpointUnreachable as error:
            raise self._lost or error from error

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
        except ray.exceptions.RayError as error:  # Ray itself has asked as often as it may
            hint = "see in its worker's log on the node why it died: `ray logs`"
            answer = NodeError.of(failed("the model's actor failed", error, hint, "model_failed"))
        return self._read(answer)

    def _wait(self, asked: Any) -> None:
        import ray

        self._read(ray.get(asked))

    def _read(self, answer: Any) -> Any:
        if isinstance(answer, Fault):
            raise answer.model_error()
        if isinstance(answer, NodeError):
            self._lost = answer.raised()
            raise EndpointUnreachable(answer.message, hint=answer.hint)
        return answer
