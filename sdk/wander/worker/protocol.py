"""The messages between a host and the worker that runs one environment.

Every message is one JSON object on one line. A websocket frame carries one or more lines: everything that was
waiting when it was sent. The first message is the worker's `Hello`. The host refuses another protocol version
with `WorkerRefused`. Otherwise it sends `Load`, answered by `EnvironmentLoaded` or `LoadFailed`, and then any
number of concurrent requests, which are matched by `id`. The worker requests completions with `Complete`: the
host makes every model call, so no key enters the worker.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from wander.boxes.base import BoxSpec
from wander.boxes.forwarding import BoxMethod, BoxResult
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

PROTOCOL = 8
"""Protocol version, increased whenever a message changes. Host and worker must have the same version."""
MESSAGE_LIMIT = 256 << 20
"""Maximum size of a message that a host accepts, in bytes. A rollout that needs a larger message fails."""
PAGE_BYTES = 16 << 20
"""Approximate maximum size of a page of examples in bytes. A page has at least one example."""


class Fault(Record):
    """An exception sent to the other side."""

    type: str
    message: str
    hint: str | None = None
    retryable: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Return the fault that describes an exception."""
        kind = type(error).__name__
        if not isinstance(error, WanderError) and error_type(kind) is not None:
            kind = f"{type(error).__module__}.{kind}"  # the author's class is named like one of ours
        return cls(
            type=kind,
            message=str(error) or type(error).__name__,
            hint=error.hint if isinstance(error, WanderError) else None,
            retryable=getattr(error, "retryable", False) is True,
        )

    def load_error(self) -> WanderError:
        """Convert the fault to the exception for an error while loading or reading examples.

        It has the class of the original exception if that class is about the environment. A worker with an
        older wander-sdk knows fewer classes, and reports rejected arguments as `LoadError`.
        """
        if (kind := raised_while_loading(self.type)) is not None:
            return kind(self.message, hint=self.hint)
        # The message of an exception of the author's code is useless without its type: a KeyError's
        # message is only `'size'`.
        return LoadError(f"the environment raised `{self.type}: {self.message}`", hint=self.hint)

    def model_error(self) -> ModelError:
        """Convert the fault to the model error that it describes."""
        return model_error_type(self.type)(self.message, hint=self.hint, retryable=self.retryable)


class Hello(Record):
    """Worker: greeting, which is the first message."""

    type: Literal["hello"] = "hello"
    protocol: int
    wander: str
    """Version of the SDK in the worker's virtual environment."""
    python: str
    pid: int


class WorkerRefused(Record):
    """Host: refusal to work with this worker, which logs the reason and exits."""

    type: Literal["refused"] = "refused"
    reason: str


class Load(Record):
    """Host: load the environment.

    At most one of `target` and `path` is set. Without both, the worker chooses.
    """

    type: Literal["load"] = "load"
    target: str | None = None
    """Name of an installed environment or of its module."""
    path: str | None = None
    """Project folder or Python file."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    rows: list[dict[str, Any]] | None = None
    """Rows that replace those of the evaluation split; None leaves them."""
    rollout_timeout: float | None = None
    """Seconds after which a rollout fails. None means never."""
    stall_seconds: float = 10.0
    """Seconds that the code of an overdue rollout may block everything else."""
    message_limit: int = MESSAGE_LIMIT
    """Maximum size of a message that the host accepts, in bytes."""
    notice_seconds: float | None = None
    """Seconds without progress after which a rollout is reported. None means never."""


class EnvironmentLoaded(Record):
    """Worker: the environment is loaded."""

    type: Literal["loaded"] = "loaded"
    info: EnvironmentInfo


class LoadFailed(Record):
    """Worker: the environment could not be loaded, and the worker exits."""

    type: Literal["load_failed"] = "load_failed"
    fault: Fault


class Ping(Record):
    """Host: check whether the event loop is running."""

    type: Literal["ping"] = "ping"


class Pong(Record):
    """Worker: the event loop is running."""

    type: Literal["pong"] = "pong"


class LastWords(Record):
    """Why a worker ended.

    Left in a file next to its socket, because the connection's event loop is blocked.
    """

    play: int | None
    """Id of the `Play` whose code ended the worker or blocked all others, if known."""
    boundary: Boundary = "environment"
    seconds: float
    """Seconds that it blocked the others, or 0 if it ended the process."""
    where: str = ""
    """File, line and function of the running code."""
    ending: str = ""
    """Description of how the process ended, if the host cannot see that itself."""


class GetExamples(Record):
    """Host: send some examples."""

    type: Literal["get_examples"] = "get_examples"
    id: int
    split: Split
    start: int
    count: int
    openings: bool = False
    """Whether to send the environment's openings instead. Then `split` is ignored."""


class Examples(Record):
    """Worker: the first of the requested examples, as many as fit on a page, or a fault."""

    type: Literal["examples"] = "examples"
    id: int
    examples: list[Example] = Field(default_factory=list)
    fault: Fault | None = None


class Play(Record):
    """Host: play one rollout of an example, or a group of its rollouts that are scored together."""

    type: Literal["play"] = "play"
    id: int
    example: Example
    group: bool
    indices: list[int]
    """Indices of the rollouts: exactly one if `group` is false."""
    rollout_ids: list[str]
    """Ids of the rollouts, one per index."""
    lines: list[dict[str, Any] | None] = Field(default_factory=list)
    """Choices assigned to the environment (`Client.line`) for each index, or null."""
    transcripts: list[Transcript] = Field(default_factory=list)
    """Transcripts to score again for each index. Empty if the rollouts must be played."""
    run_seed: int
    sampling: SamplingArgs
    model: str
    scripts: dict[str, str] = Field(default_factory=dict, exclude_if=lambda scripts: not scripts)
    """Players that functions of the environment play (`Client.scripts`)."""


class Played(Record):
    """Worker: the requested rollouts, one per index in order."""

    type: Literal["played"] = "played"
    id: int
    rollouts: list[Rollout]
    scoring_seconds: float = 0.0
    """Seconds that their synchronous reward functions blocked the worker."""


class PartEnded(Record):
    """Worker: one rollout of a group has made its last model call, while others in the group continue."""

    type: Literal["part_ended"] = "part_ended"
    play: int
    """Id of the group's `Play`."""
    rollout_id: str


class Noticed(Record):
    """Worker: rollouts have stopped making progress.

    The note has the same report, in case the worker's loop is blocked.
    """

    type: Literal["noticed"] = "noticed"
    silence: Silence


class Cancel(Record):
    """Host: cancel a `Play`, which then gets no answer."""

    type: Literal["cancel"] = "cancel"
    id: int


class Complete(Record):
    """Worker: call the model."""

    type: Literal["complete"] = "complete"
    id: int
    play: int
    """Id of the `Play` that makes the call."""
    request: ModelRequest


class Completed(Record):
    """Host: the model's answer, or its failure."""

    type: Literal["completed"] = "completed"
    id: int
    response: ModelResponse | None = None
    fault: Fault | None = None


class Recall(Record):
    """Worker: request a value from the record of a rollout (`Client.recall`)."""

    type: Literal["recall"] = "recall"
    id: int
    play: int
    rollout_id: str
    about: Recollection
    key: Any


class Recalled(Record):
    """Host: the value from the record. In an evaluation it is always null."""

    type: Literal["recalled"] = "recalled"
    id: int
    value: Any = None
    fault: Fault | None = None


class StartBox(Record):
    """Worker: start a box for a rollout."""

    type: Literal["start_box"] = "start_box"
    id: int
    play: int
    rollout_id: str
    spec: BoxSpec


class UseBox(Record):
    """Worker: call a method of a box."""

    type: Literal["use_box"] = "use_box"
    id: int
    play: int
    box: int
    """The `id` of the `StartBox` that started it."""
    call: BoxMethod


class BoxAnswer(Record):
    """Host: the result of a `StartBox` or a `UseBox`, or its failure."""

    type: Literal["box_answer"] = "box_answer"
    id: int
    image_digest: str | None = None
    """Identity of what the box was started from; None for other results."""
    result: BoxResult | None = None
    fault: Fault | None = None


class Close(Record):
    """Host: tear the environment down and exit."""

    type: Literal["close"] = "close"


ToWorker = Annotated[
    Load | WorkerRefused | Ping | GetExamples | Play | Cancel | Completed | Recalled | BoxAnswer | Close,
    Field(discriminator="type"),
]
ToHost = Annotated[
    Hello
    | EnvironmentLoaded
    | LoadFailed
    | Pong
    | Examples
    | Played
    | PartEnded
    | Noticed
    | Complete
    | Recall
    | StartBox
    | UseBox,
    Field(discriminator="type"),
]

_DEFERRED = ConfigDict(defer_build=True)  # a process reads the messages of one side only
to_worker: TypeAdapter[ToWorker] = TypeAdapter(ToWorker, config=_DEFERRED)
to_host: TypeAdapter[ToHost] = TypeAdapter(ToHost, config=_DEFERRED)
