"""The messages between a host and the worker that runs one environment.

Every message is one JSON object on one line; a websocket frame carries one or more lines, whatever was
waiting when it left. The first message is the worker's `Hello`; the host refuses another protocol version
with `Refused`. Else comes `Load`, answered by `Loaded` or `LoadFailed`, then any number of requests at once,
matched by `id`. The worker asks for completions with `Complete`: every model call is the host's, and no key
enters the worker.

All these are binary frames. Between a host and a listener (`wander.worker.listener`) text frames are one
`OutsideCall` or `OutsideAnswer` each: they are the listener's own, its worker's process neither sees nor
makes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from wander.clients.base import ModelRequest, ModelResponse, Recollection, Transcript
from wander.errors import (
    LoadError,
    ModelError,
    WanderError,
    error_type,
    model_error_type,
    raised_while_loading,
)
from wander.handle import Split
from wander.rollout.activity import Silence
from wander.types import Boundary, EnvironmentInfo, Example, Record, Rollout, SamplingArgs

PROTOCOL = 6
"""Raised whenever a message changes; host and worker must agree."""
MESSAGE_LIMIT = 256 << 20
"""Most bytes of one message that a host takes. A rollout that asks or answers more fails by itself."""
PAGE_BYTES = 16 << 20
"""About how much one page of examples may take; always one example at least."""


class Fault(Record):
    """An exception on its way to the other side."""

    type: str
    message: str
    hint: str | None = None
    retryable: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Describe an exception."""
        kind = type(error).__name__
        if not isinstance(error, WanderError) and error_type(kind) is not None:
            kind = f"{type(error).__module__}.{kind}"  # the author's own class has the name of one of ours
        return cls(
            type=kind,
            message=str(error) or type(error).__name__,
            hint=error.hint if isinstance(error, WanderError) else None,
            retryable=getattr(error, "retryable", False) is True,
        )

    def load_error(self) -> WanderError:
        """Return the exception again, for what was asked while loading or reading examples.

        It has the class it was raised with, if that says something about the environment. A worker of an
        older wander-sdk knows fewer classes: it says `LoadError` of arguments that were refused.
        """
        if (kind := raised_while_loading(self.type)) is not None:
            return kind(self.message, hint=self.hint)
        # An exception of the author's code: its message alone (`'size'` for a KeyError) would say nothing.
        return LoadError(f"the environment raised `{self.type}: {self.message}`", hint=self.hint)

    def model_error(self) -> ModelError:
        """Return the exception again, as the model error that it was."""
        return model_error_type(self.type)(self.message, hint=self.hint, retryable=self.retryable)


class Hello(Record):
    """Worker: the first message."""

    type: Literal["hello"] = "hello"
    protocol: int
    wander: str
    """Version of the SDK in the worker's virtual environment."""
    python: str
    pid: int


class Refused(Record):
    """Host: it does not work with this worker, which writes the reason to its log and ends."""

    type: Literal["refused"] = "refused"
    reason: str


class Load(Record):
    """Host: load the environment. At most one of `target` and `path` is given; without, the worker knows."""

    type: Literal["load"] = "load"
    target: str | None = None
    """Name of an installed environment or of its module."""
    path: str | None = None
    """A project folder or a Python file."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    rollout_timeout: float | None = None
    """Seconds after which a rollout has failed; None means never."""
    stall_seconds: float = 10.0
    """How long code of a rollout that is past its time may keep everything else from going on."""
    message_limit: int = MESSAGE_LIMIT
    """Most bytes of one message that the host takes."""
    notice_seconds: float | None = None
    """Seconds without progress after which a rollout is reported; None means never."""


class Loaded(Record):
    """Worker: the environment is ready."""

    type: Literal["loaded"] = "loaded"
    info: EnvironmentInfo


class LoadFailed(Record):
    """Worker: there is no environment; the worker ends."""

    type: Literal["load_failed"] = "load_failed"
    fault: Fault


class Ping(Record):
    """Host: show that the event loop turns."""

    type: Literal["ping"] = "ping"


class Pong(Record):
    """Worker: it turns."""

    type: Literal["pong"] = "pong"


class LastWords(Record):
    """Why a worker ended, told beside its socket: the loop of the connection stands still."""

    play: int | None
    """The id of the `Play` whose code ended it, or stood in the way of all others, where that is known."""
    boundary: Boundary = "environment"
    seconds: float
    """For how long it stood in the way; 0 where it ended the process."""
    where: str = ""
    """In which line."""
    ending: str = ""
    """How the process ended, in words, where the host cannot see that itself."""


class GetExamples(Record):
    """Host: send some examples."""

    type: Literal["get_examples"] = "get_examples"
    id: int
    split: Split
    start: int
    count: int
    openings: bool = False
    """Those of the environment's openings instead; `split` does not count then."""


class Examples(Record):
    """Worker: the first of the examples asked for, as many as a page holds, or why there are none."""

    type: Literal["examples"] = "examples"
    id: int
    examples: list[Example] = Field(default_factory=list)
    fault: Fault | None = None


class Play(Record):
    """Host: play one rollout of an example, or a group of them that is scored together."""

    type: Literal["play"] = "play"
    id: int
    example: Example
    group: bool
    indices: list[int]
    """Exactly one where `group` is false."""
    rollout_ids: list[str]
    """One beside each index."""
    lines: list[dict[str, Any] | None] = Field(default_factory=list)
    """For each index the choices that are made for the environment (`Client.line`), or null."""
    transcripts: list[Transcript] = Field(default_factory=list)
    """For each index what is only scored again; else empty."""
    run_seed: int
    sampling: SamplingArgs
    model: str
    scripts: dict[str, str] = Field(default_factory=dict, exclude_if=lambda scripts: not scripts)
    """Players whom the environment's own functions play (`Client.scripts`)."""


class Played(Record):
    """Worker: what was asked for has ended; one rollout an index, in order."""

    type: Literal["played"] = "played"
    id: int
    rollouts: list[Rollout]
    scoring_seconds: float = 0.0
    """Seconds for which their synchronous reward functions let nothing else of the worker go on."""


class PartEnded(Record):
    """Worker: one rollout of a group makes no more model calls, while others of it still do."""

    type: Literal["part_ended"] = "part_ended"
    play: int
    """The id of the group's `Play`."""
    rollout_id: str


class Noticed(Record):
    """Worker: rollouts make no progress. The note holds it too, in case the worker's loop stands still."""

    type: Literal["noticed"] = "noticed"
    silence: Silence


class Cancel(Record):
    """Host: end what a `Play` asked for; it is not answered."""

    type: Literal["cancel"] = "cancel"
    id: int


class Complete(Record):
    """Worker: ask the model."""

    type: Literal["complete"] = "complete"
    id: int
    play: int
    """The id of the `Play` that asks."""
    request: ModelRequest


class Completed(Record):
    """Host: the model's answer, or its failure."""

    type: Literal["completed"] = "completed"
    id: int
    response: ModelResponse | None = None
    fault: Fault | None = None


class Recall(Record):
    """Worker: ask what is on record of a rollout (`Client.recall`)."""

    type: Literal["recall"] = "recall"
    id: int
    play: int
    rollout_id: str
    about: Recollection
    key: Any


class Recalled(Record):
    """Host: what is on record. In an evaluation nothing is."""

    type: Literal["recalled"] = "recalled"
    id: int
    value: Any = None
    fault: Fault | None = None


class Close(Record):
    """Host: tear the environment down and end."""

    type: Literal["close"] = "close"


class OutsideCall(Record):
    """Listener: code of its worker asks another model, with an OpenAI client of its own."""

    id: int
    method: str
    path: str
    body: str
    rollout_id: str
    """Empty where no rollout asks."""


class OutsideAnswer(Record):
    """Host: what its endpoint answers."""

    id: int
    status: int
    body: str
    """JSON."""


ToWorker = Annotated[
    Load | Refused | Ping | GetExamples | Play | Cancel | Completed | Recalled | Close,
    Field(discriminator="type"),
]
ToHost = Annotated[
    Hello | Loaded | LoadFailed | Pong | Examples | Played | PartEnded | Noticed | Complete | Recall,
    Field(discriminator="type"),
]

to_worker: TypeAdapter[ToWorker] = TypeAdapter(ToWorker)
to_host: TypeAdapter[ToHost] = TypeAdapter(ToHost)
