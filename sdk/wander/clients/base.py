"""The interface between a rollout and the model, script or record that answers its calls.

An environment plays a rollout against a `Client`. Evaluation, training, replay and tests differ only in the
client that they pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from wander.clients.sub_calls import conversation_id
from wander.types import Message, Record, Rollout, SamplingArgs, Turn, TurnTokens, Usage

if TYPE_CHECKING:
    from wander.boxes.base import Box, BoxSpec
    from wander.clients.rate_limit import CallLimiter


OUTSIDE_CALLS, JUDGE_ANSWERS = "outside_calls", "judge_answers"
"""Keys in a rollout's `info` of answers that other models and judges gave. A replay never passes them to the
environment."""
NOT_RECORDED = "NotRecorded"
"""Failure type of a replayed rollout that asked for an answer that its record does not contain. The host ends
such a rollout without a reply, so its code cannot learn the reason."""
Recollection = Literal["judge", "timeout"]
"""Kinds of recorded facts that a rollout can ask for in a replay (`Client.recall`)."""


class ModelRequest(Record):
    """A model call of a rollout."""

    rollout_id: str
    """Id that is unique among the rollouts in flight: `example_id/index`, with a prefix if the caller mixes
    runs."""
    turn: int
    """Number of the call in the rollout, from 0."""
    messages: list[Message]
    """Whole conversation so far."""
    sampling: SamplingArgs = Field(default_factory=SamplingArgs)
    tools: list[dict[str, Any]] | None = None
    """OpenAI function schemas of the tools that the environment offers, if any."""
    seed: int = 0
    """Seed derived from (run seed, example seed, group index, turn), for clients that sample themselves."""
    player: str | None = Field(default=None, exclude_if=lambda player: player is None)
    """Player to move, in an environment with several players. `messages` then contains only what this player
    has seen."""

    @property
    def conversation(self) -> str:
        """Id that a client stores sampled token ids under: the rollout's, or that of a player's part."""
        return conversation_id(self.rollout_id, self.player)

    @property
    def own_messages(self) -> list[Message]:
        """Messages from the rollout's own question on, without the worked examples before it.

        In an environment with several players, which are shown no worked examples, these are all messages.
        """
        if self.player is not None:
            return self.messages
        answers = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        # The environment may have removed some of the turns.
        own_answers = answers[len(answers) - min(self.turn, len(answers)) :]
        first = own_answers[0] if own_answers else len(self.messages)
        questions = [index for index in range(first) if self.messages[index]["role"] == "user"]
        return self.messages[questions[-1] if questions else 0 :]


class ModelResponse(Record):
    """The answer to a model call."""

    message: Message
    finish_reason: str = "stop"
    usage: Usage = Field(default_factory=Usage)
    tokens: TurnTokens | None = None
    left_out: tuple[int, int] | None = Field(default=None, exclude_if=lambda gap: gap is None)
    """Range of left-out messages, as in the `Turn` that this response becomes."""
    seconds: float | None = Field(default=None, exclude_if=lambda seconds: seconds is None)
    """Seconds that the endpoint took, without waiting for the rate limit; None for clients that never
    wait."""
    cached: bool = Field(default=False, exclude=True)
    """Whether the response comes from a cache. Only the host knows this; it is not sent to workers."""


class Client(ABC):
    """Answers model calls. Implementations raise only subclasses of `wander.errors.ModelError`."""

    model: str
    """Name of the model, as shown on a leaderboard."""
    limiter: CallLimiter | None = None
    """Limiter of the calls in flight, which several clients may share; None for a model without a limit."""
    draws: bool = True
    """Whether the client uses the seed of a request. If not, requests have seed 0, which saves deriving
    it."""
    scripts: Mapping[str, str] = {}
    """Players that functions of the environment's own package play, as `module:function` by player
    (`wander.clients.scripted`). They run inside the environment's process, so a replay runs them again."""
    others: Mapping[str, Client] = {}
    """Clients of the players that do not use this client, by player."""

    @abstractmethod
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the completion for a request."""

    def begin(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Note that a rollout starts; batching clients count the rollouts in flight."""

    def end(self, rollout_id: str) -> None:  # noqa: B027 - an optional hook
        """Note that a rollout ended, and discard everything that is stored for it."""

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the choices to make for the environment (`wander.clients.choices`); None lets it draw."""
        return None

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return a recorded fact about a replayed rollout, at the moment when the rollout needs it.

        - `judge`: the judge's answer to the request with the digest `key`.
        - `timeout`: whether the rollout timed out at the point `key`.

        Returns None if there is no record, as in every evaluation. Raises `ModelError` if the record lacks an
        answer that it should contain.
        """
        return None

    def lack(self, rollout_id: str) -> str | None:
        """Return what a replayed rollout asked for that its record does not contain; None if nothing.

        A host that runs the environment in another process ends such a rollout instead of answering it.
        """
        return None

    async def start_box(self, rollout_id: str, spec: BoxSpec) -> Box:
        """Start a box for a rollout on this machine. The caller stops it. Raises `SandboxError`."""
        from wander.boxes.backends import start_box

        return await start_box(spec)

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the recorded calls to other models in a replayed rollout; None means to call the models.

        Only the host's own endpoint needs them. They are never sent to a worker.
        """
        return None

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript to score again, or None if the rollout should be played."""
        return None

    async def check(self) -> None:  # noqa: B027 - an optional hook
        """Check cheaply, before any rollout starts, whether the model can be used.

        Raises the `ModelError` or `ConfigError` that every call would raise. It may cost a call.
        """

    def check_tools(self) -> None:  # noqa: B027 - an optional hook
        """Check, before any rollout starts, whether the model accepts tools.

        Raises the `ModelError` that every call with tools would raise.
        """

    def check_sampling(self, sampling: SamplingArgs) -> None:  # noqa: B027 - an optional hook
        """Check, before any rollout starts, whether the model accepts these sampling arguments.

        Raises the `ModelError` that every call would raise.
        """

    def warnings(self) -> list[str]:
        """Return what a person should know before the run starts."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return the facts about the endpoint that a manifest records, without secrets."""
        return {"kind": type(self).__name__, "model": self.model}

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Release connections and memory."""


def name_of(client: Client) -> str:
    """Return the class name of a client for errors; for a wrapper, that of the wrapped client."""
    while isinstance(client, WrappedClient):
        client = client._client
    return type(client).__name__


class Transcript(Record):
    """A recorded rollout as it was before it was scored."""

    prompt: list[Message]
    completion: list[Message]
    turns: list[Turn]
    stop_reason: str | None
    truncated: bool
    info: dict[str, Any]
    """Values that the environment published, without the answers of judges and other models, which stay with
    the host."""

    @classmethod
    def of(cls, rollout: Rollout) -> Transcript:
        """Return the transcript of a rollout."""
        fields = {name: getattr(rollout, name) for name in cls.model_fields}
        info = {
            name: value for name, value in rollout.info.items() if name not in (OUTSIDE_CALLS, JUDGE_ANSWERS)
        }
        return cls.assemble(**{**fields, "info": info})


class RolloutHost:
    """The interface through which a rollout asks its host for anything but completions: `state["host"]`.

    It is the same in an evaluation and in a replay. An environment receives recorded facts only when it asks
    for them and at the moment when it needs them. Code that does not ask cannot detect a replay.
    """

    def __init__(self, client: Client, rollout_id: str) -> None:
        self._client = client
        self._rollout_id = rollout_id
        self._boxes: list[Box] = []

    @property
    def line(self) -> dict[str, Any] | None:
        """Choices to make for the environment, or None."""
        return self._client.line(self._rollout_id)

    async def recall(self, about: Recollection, key: Any) -> Any:
        """Return a recorded fact, like `Client.recall`."""
        return await self._client.recall(self._rollout_id, about, key)

    async def start_box(self, spec: BoxSpec) -> Box:
        """Start a box that lives at most until the rollout is scored. Raises `SandboxError`."""
        box = await self._client.start_box(self._rollout_id, spec)
        self._boxes.append(box)
        return box

    async def stop_boxes(self) -> None:
        """Stop all boxes of the rollout. May be called repeatedly."""
        while self._boxes:
            await self._boxes.pop().stop()

    def __deepcopy__(self, memo: dict[int, Any]) -> RolloutHost:
        return self


class WrappedClient(Client):
    """Forwards everything to another client. It does not close that client."""

    def __init__(self, client: Client) -> None:
        self.model = client.model
        self.limiter = client.limiter
        self.draws = client.draws
        self.scripts = client.scripts
        self.others = client.others
        self._client = client

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the wrapped client's completion."""
        return await self._client.complete(request)

    def begin(self, rollout_id: str) -> None:
        """Notify the wrapped client that a rollout starts."""
        self._client.begin(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Notify the wrapped client that a rollout ended."""
        self._client.end(rollout_id)

    def line(self, rollout_id: str) -> dict[str, Any] | None:
        """Return the wrapped client's choices for the environment."""
        return self._client.line(rollout_id)

    async def recall(self, rollout_id: str, about: Recollection, key: Any) -> Any:
        """Return a fact that the wrapped client has on record."""
        return await self._client.recall(rollout_id, about, key)

    async def start_box(self, rollout_id: str, spec: BoxSpec) -> Box:
        """Start a box by the wrapped client."""
        return await self._client.start_box(rollout_id, spec)

    def lack(self, rollout_id: str) -> str | None:
        """Return what the wrapped client's record does not contain."""
        return self._client.lack(rollout_id)

    def outside_calls(self, rollout_id: str) -> list[dict[str, Any]] | None:
        """Return the recorded calls to other models."""
        return self._client.outside_calls(rollout_id)

    def transcript(self, rollout_id: str) -> Transcript | None:
        """Return the transcript to score again, if any."""
        return self._client.transcript(rollout_id)

    async def check(self) -> None:
        """Check whether the wrapped client can be used."""
        await self._client.check()

    def check_tools(self) -> None:
        """Check whether the wrapped client accepts tools."""
        self._client.check_tools()

    def check_sampling(self, sampling: SamplingArgs) -> None:
        """Check whether the wrapped client accepts these sampling arguments."""
        self._client.check_sampling(sampling)

    def warnings(self) -> list[str]:
        """Return what a person should know about the client."""
        return self._client.warnings()

    def describe(self) -> dict[str, Any]:
        """Return the wrapped client's facts about its endpoint."""
        return self._client.describe()
