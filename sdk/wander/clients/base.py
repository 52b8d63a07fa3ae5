"""The port between a rollout and whatever answers it.

An environment drives a rollout against a `Client`; evaluation, training, replay and tests differ only in
which client they pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from wander.clients.sub_calls import conversation_id
from wander.types import Message, Record, Rollout, SamplingArgs, Turn, TurnTokens, Usage

if TYPE_CHECKING:
    from wander.clients.rate_limit import CallLimiter


OUTSIDE_CALLS, JUDGE_ANSWERS = "outside_calls", "judge_answers"
"""Keys of what others than the environment said in a rollout's `info`. In a replay that stays with the
host."""
NOT_RECORDED = "NotRecorded"
"""Type of the failure of a replayed rollout that asked for something that its record does not have. Its code
waits for the answer and never learns why there is none."""
Recollection = Literal["judge", "timeout"]
"""What a rollout may ask the record of a run that is replayed (`Client.recall`)."""


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

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the choices that are made for the environment (`wander.clients.choices`); None: it draws."""
        return None

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return what is on record of a rollout that is replayed, asked for at the moment that needs it.

        - `judge`: the text that a judge answered to the request with the digest `key`.
        - `timeout`: whether the rollout's time was over when it had come as far as `key`.

        None means that nothing is on record, as in every evaluation. Raises `ModelError` for an answer that a
        record should have and does not.
        """
        return None

    def lack(self, rollout_id: str) -> str | None:
        """Return what a replayed rollout asked for that its record does not have; None if there is nothing.

        A host that runs the environment in another process ends such a rollout instead of answering it.
        """
        return None

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the recorded calls of other models in a rollout that is replayed; None: the models are
        asked.

        Only the host's own endpoint needs them. They never travel to a worker.
        """
        return None

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript that is only to be scored again; None: the rollout is to be played."""
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

    def warnings(self) -> list[str]:
        """Return what a person should know before the run starts."""
        return []

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


class Transcript(Record):
    """What a recorded rollout was when it was scored, without the score."""

    prompt: list[Message]
    completion: list[Message]
    turns: list[Turn]
    stop_reason: str | None
    truncated: bool
    info: dict[str, Any]
    """What the environment published, without the answers of judges and other models: the host has those."""

    @classmethod
    def of(cls, rollout: Rollout) -> Transcript:
        """Return the transcript of a rollout."""
        given = {name: getattr(rollout, name) for name in cls.model_fields}
        info = {
            name: value for name, value in rollout.info.items() if name not in (OUTSIDE_CALLS, JUDGE_ANSWERS)
        }
        return cls.assemble(**{**given, "info": info})


class RolloutHost:
    """What a rollout may ask its host besides completions: `state["host"]`.

    It is the same in an evaluation and in a replay. What is on record reaches an environment only as the
    answer to a question, at the moment that needs it, so code that does not ask cannot tell which of the two
    it is in.
    """

    def __init__(self, client: Client, rollout_id: str) -> None:
        self._client = client
        self._rollout_id = rollout_id

    @property
    def line(self) -> dict[str, Any] | None:
        """The choices that are made for the environment, or None."""
        return self._client.line(self._rollout_id)

    async def recall(self, about: Recollection, key: Any) -> Any:
        """Return what is on record, as `Client.recall` does."""
        return await self._client.recall(self._rollout_id, about, key)

    def __deepcopy__(self, memo: dict[int, Any]) -> RolloutHost:
        return self


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

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the line that the client has a rollout play."""
        return self._client.line(rollout_id)

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return what the client has on record."""
        return await self._client.recall(rollout_id, about, key)

    def lack(self, rollout_id: str) -> str | None:
        """Return what the client does not have on record."""
        return self._client.lack(rollout_id)

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the calls of other models that the client has on record."""
        return self._client.outside_calls(rollout_id)

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript that the client wants scored again."""
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

    def warnings(self) -> list[str]:
        """Return what a person should know about the client."""
        return self._client.warnings()

    def describe(self) -> dict[str, Any]:
        """Return what the client says about its endpoint."""
        return self._client.describe()
