"""The port between a rollout and whatever answers it.

An environment drives a rollout against a `Client`; evaluation, training, replay and tests differ only in
which client they pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from wander.clients.sub_calls import conversation_id
from wander.types import Message, Record, Rollout, SamplingArgs, TurnTokens, Usage

if TYPE_CHECKING:
    from wander.clients.rate_limit import CallLimiter


class ModelRequest(Record):
    """One model call, as the rollout loop makes it."""

    rollout_id: str
    """Unique among the rollouts in flight: `example_id/index`, prefixed by the caller where it mixes runs."""
    turn: int
    """0 for the first call of the rollout."""
    messages: list[Message]
    """The whole conversation so far."""
    sampling: SamplingArgs = Field(default_factory=SamplingArgs)
    tools: list[dict[str, Any]] | None = None
    """OpenAI function schemas, when the environment offers tools."""
    seed: int = 0
    """Derived from (run seed, example seed, group index, turn); clients that sample themselves use it."""
    player: str | None = Field(default=None, exclude_if=lambda player: player is None)
    """Who is to move, where the environment has players: `messages` are what that one has seen."""

    @property
    def conversation(self) -> str:
        """What a client keeps its sampled ids by: the rollout, or one player's part of it."""
        return conversation_id(self.rollout_id, self.player)

    @property
    def own_messages(self) -> list[Message]:
        """The messages from the rollout's own question on, without the worked examples shown before it.

        With players, to whom no examples are shown, these are all messages.
        """
        if self.player is not None:
            return self.messages
        said = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        own = said[len(said) - min(self.turn, len(said)) :]  # an environment may have left some out
        first = own[0] if own else len(self.messages)
        asked = [place for place in range(first) if self.messages[place]["role"] == "user"]
        return self.messages[asked[-1] if asked else 0 :]


class ModelResponse(Record):
    """The answer to one model call."""

    message: Message
    finish_reason: str = "stop"
    usage: Usage = Field(default_factory=Usage)
    tokens: TurnTokens | None = None
    left_out: tuple[int, int] | None = Field(default=None, exclude_if=lambda gap: gap is None)
    """As in the `Turn` that this becomes."""
    seconds: float | None = Field(default=None, exclude_if=lambda seconds: seconds is None)
    """Seconds that the endpoint took, without our own waiting for its rate; None if a client never waits."""
    cached: bool = Field(default=False, exclude=True)
    """Answered from a cache of responses. The host's own matter: it never travels to a worker."""


class Client(ABC):
    """Answers model calls. Implementations raise `wander.errors.ModelError` subclasses and nothing else."""

    model: str
    """Name of the model, as it stands on a leaderboard."""
    limiter: CallLimiter | None = None
    """Bounds the calls in flight, of everybody who shares it; None for a model that needs no bound."""
    draws: bool = True
    """Whether the seed of a request matters to it; else it is told 0, since deriving one takes time."""
    scripts: Mapping[str, str] = {}
    """Players whom functions of the environment's own package play, where it runs: `module:function` by name
    (`wander.clients.scripted`). Nobody else is asked for their turns, so a replay plays them anew."""
    others: Mapping[str, Client] = {}
    """Players who are asked of a client of their own, by name."""

    @abstractmethod
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion of one request."""

    def begin(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Learn that a rollout starts; batching clients count the rollouts in flight."""

    def end(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Learn that a rollout ended, so that nothing is kept for it."""

    def recorded(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the `info` of the recorded rollout, for a client that plays records again; else None.

        It becomes `state["recorded"]`, where outside observations such as a judge's answers are found again.
        """
        return None

    def transcript(self, rollout_id: str) -> Rollout | None:
        """Return the recorded rollout that is only to be scored again; None: it is to be played."""
        return None

    async def check(self) -> None:  # noqa: B027 - an optional hook
        """Find out cheaply whether the model can be used, before anything is played.

        Raises the `ModelError` or `ConfigError` that every call would meet. It may cost a call.
        """

    def check_tools(self) -> None:  # noqa: B027 - an optional hook
        """Find out whether the model can be offered tools, before anything is played.

        Raises the `ModelError` that every call with tools would meet.
        """

    def check_sampling(self, sampling: SamplingArgs) -> None:  # noqa: B027 - an optional hook
        """Find out whether the model can be sampled so, before anything is played.

        Raises the `ModelError` that every call would meet.
        """

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records about the endpoint; never a secret."""
        return {"kind": type(self).__name__, "model": self.model}

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Release connections and memory."""


def name_of(client: Client) -> str:
    """Return what an error calls a client: its class, or that of the one it stands before."""
    while isinstance(client, WrappedClient):
        client = client._client
    return type(client).__name__


class WrappedClient(Client):
    """Stands before a client and passes everything on; who made that client closes it."""

    def __init__(self, client: Client) -> None:
        self.model = client.model
        self.limiter = client.limiter
        self.draws = client.draws
        self.scripts = client.scripts
        self.others = client.others
        self._client = client

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the client's completion."""
        return await self._client.complete(request)

    def begin(self, rollout_id: str) -> None:
        """Pass on that a rollout starts."""
        self._client.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Pass on that a rollout ended."""
        self._client.end(rollout_id)

    def recorded(self, rollout_id: str) -> dict[str, Any] | None:
        """Return what the client has recorded of a rollout."""
        return self._client.recorded(rollout_id)

    def transcript(self, rollout_id: str) -> Rollout | None:
        """Return the recorded rollout that the client wants scored again."""
        return self._client.transcript(rollout_id)

    async def check(self) -> None:
        """Find out whether the client can be used."""
        await self._client.check()

    def check_tools(self) -> None:
        """Find out whether the client can be offered tools."""
        self._client.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Find out whether the client can sample so."""
        self._client.check_sampling(sampling)

    def describe(self) -> dict[str, Any]:
        """Return what the client says about its endpoint."""
        return self._client.describe()
