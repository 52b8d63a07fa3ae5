"""Types of the classic API: the state of a rollout, a model's response, and the result of a run.

Packages import all of them from `verifiers.types`, so messages and timing are also exported here.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from wander_compat.verifiers.messages.conversion import as_messages, field_of
from wander_compat.verifiers.messages.models import *  # noqa: F403 - packages take all of them from here
from wander_compat.verifiers.messages.models import (
    AssistantMessage,
    Messages,
    Response,
    ResponseMessage,
    Tool,
    Usage,
)
from wander_compat.verifiers.timing import RolloutTiming as RolloutTiming
from wander_compat.verifiers.timing import TimeSpan as TimeSpan
from wander_compat.verifiers.timing import TimeSpans as TimeSpans

Info = dict[str, Any]
SamplingArgs = dict[str, Any]
MessageType = Literal["chat", "completion"]
FinishReason = Literal["stop", "length", "tool_calls"] | None
ChatMessages = Messages
IndividualRewardFunc = Callable[..., float | Awaitable[float]]
GroupRewardFunc = Callable[..., list[float] | Awaitable[list[float]]]
RewardFunc = IndividualRewardFunc | GroupRewardFunc
DatasetBuilder = Callable[[], Any]
JsonPrimitive = Literal["string", "number", "integer", "boolean", "array", "object"]
ClientType = str
StartCallback = Callable[..., None]
ProgressCallback = Callable[..., None]
LogCallback = Callable[[str], None]

_OF_OPENAI = {
    "ChatCompletion": "ChatCompletion",
    "ChatCompletionMessage": "ChatCompletionMessage",
    "ChatCompletionMessageParam": "ChatCompletionMessageParam",
    "ChatCompletionMessageToolCall": "ChatCompletionMessageToolCall",
    "ChatMessage": "ChatCompletionMessageParam",
}
"""Types of the OpenAI library, by the names under which packages import them from here."""


def __getattr__(name: str) -> Any:
    """Import OpenAI's types when they are first used, because that takes longer than the rest of this
    package.
    """
    if name in _OF_OPENAI:
        value = getattr(importlib.import_module("openai.types.chat"), _OF_OPENAI[name])
    elif name == "Completion":
        value = importlib.import_module("openai.types").Completion
    elif name == "ModelResponse":
        value = __getattr__("ChatCompletion") | __getattr__("Completion") | None
    else:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    globals()[name] = value
    return value


class TokenUsage(TypedDict, total=False):
    """Tokens of one rollout."""

    input_tokens: float
    output_tokens: float
    final_input_tokens: float
    final_output_tokens: float


class TrajectoryStepTokens(TypedDict, total=False):
    """Token ids of one turn."""

    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    overlong_prompt: bool
    is_truncated: bool
    routed_experts: list[list[list[int]]] | None


class TrajectoryStep(TypedDict, total=False):
    """One turn: the messages for the model, and its completion."""

    prompt: Messages
    completion: Messages
    response: Any
    tokens: TrajectoryStepTokens | None
    reward: float | None
    advantage: float | None
    is_truncated: bool
    trajectory_id: str
    extras: dict[str, Any]


class RolloutInput(TypedDict, total=False):
    """A dataset row."""

    prompt: Messages
    example_id: int
    task: str
    answer: str
    info: Info


class ProcessedOutputs(BaseModel):
    """Token ids and rewards of several rollouts, in the early releases' format for trainers."""

    prompt_ids: list[list[int]]
    prompt_mask: list[list[int]]
    completion_ids: list[list[int]]
    completion_mask: list[list[int]]
    completion_logprobs: list[list[float]]
    rewards: list[float]


class ErrorInfo(TypedDict, total=False):
    """An exception in the format of an output record."""

    error: str
    message: str
    error_chain_repr: str
    error_chain_str: str


class RolloutOutput(dict[str, Any]):
    """A finished rollout as a JSON value. Every metric is also a top-level key."""


class RolloutScore(dict[str, Any]):
    """Reward and metrics of one rollout, also available as attributes."""

    def __init__(self, reward: float = 0.0, metrics: dict[str, float] | None = None) -> None:
        super().__init__(reward=reward, metrics=metrics or {})
        self.reward = reward
        self.metrics = metrics or {}


class RolloutScores(dict[str, Any]):
    """Rewards and metrics of several rollouts by column, also available as attributes."""

    def __init__(
        self, reward: list[float] | None = None, metrics: dict[str, list[float]] | None = None
    ) -> None:
        super().__init__(reward=reward or [], metrics=metrics or {})
        self.reward = reward or []
        self.metrics = metrics or {}


class VersionInfo(TypedDict, total=False):
    """Versions of the software that made a run."""

    vf_version: str
    vf_commit: str | None
    env_version: str | None
    env_commit: str | None


class GenerateMetadata(TypedDict, total=False):
    """Settings of a run, and its means."""

    env_id: str
    env_args: dict[str, Any]
    model: str
    base_url: str
    num_examples: int
    rollouts_per_example: int
    sampling_args: SamplingArgs
    date: str
    time: float
    avg_reward: float
    avg_metrics: dict[str, float]
    avg_error: float
    pass_at_k: dict[str, float]
    pass_all_k: dict[str, float]
    pass_threshold: float
    usage: dict[str, float] | None
    version_info: VersionInfo
    state_columns: list[str]
    path_to_save: Path
    tools: list[Tool] | None


class GenerateOutputs(dict[str, Any]):
    """Result of a run: `outputs` and `metadata`. Columns of earlier generations are attributes and keys."""

    COLUMNS = ("prompt", "completion", "answer", "info", "task", "reward", "example_id", "state")

    def __missing__(self, name: str) -> Any:
        outputs = dict.get(self, "outputs", [])
        if name == "metrics":
            names = {key for output in outputs for key in output.get("metrics") or {}}
            return {key: [(output.get("metrics") or {}).get(key) for output in outputs] for key in names}
        if name == "state":
            return list(outputs)
        if name in self.COLUMNS:
            return [output.get(name) for output in outputs]
        raise KeyError(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"`GenerateOutputs` has no attribute `{name}`") from None


class Endpoint(TypedDict, total=False):
    """A model endpoint in an endpoints file."""

    key: str
    url: str
    model: str
    api_client_type: str
    extra_headers: dict[str, str]


Endpoints = dict[str, list[Endpoint]]


class EndpointClientConfig(BaseModel):
    """Connection settings of one endpoint."""

    model_config = ConfigDict(extra="allow")

    client_idx: int = 0
    api_key_var: str = "OPENAI_API_KEY"
    api_base_url: str = "https://api.openai.com/v1"
    timeout: float = 3600.0
    connect_timeout: float = 5.0
    max_connections: int = 28000
    max_keepalive_connections: int = 28000
    max_retries: int = 10
    extra_headers: dict[str, str] = Field(default_factory=dict)


class ClientConfig(EndpointClientConfig):
    """Connection settings of a model."""

    client_type: ClientType = "openai_chat_completions"
    endpoint_configs: list[EndpointClientConfig] = Field(default_factory=list)
    extra_headers_from_state: dict[str, str] = Field(default_factory=dict)


class State(dict[str, Any]):
    """The state of a rollout: a dictionary that forwards the row's fields to `state["input"]`.

    Keys of only the earlier generations (`turn`, `responses`, `oai_tools`) are computed from the trajectory
    when they are read by name, unless they were set.
    """

    INPUT_FIELDS = ("prompt", "answer", "info", "example_id")

    def __missing__(self, key: str) -> Any:
        row = dict.get(self, "input")
        if row is not None and key in (*self.INPUT_FIELDS, "task") and key in row:
            return row[key]
        if key == "task" and row is not None:
            return "default"
        if key == "turn" and "trajectory" in self:
            return len(self["trajectory"])
        if key == "responses" and "trajectory" in self:
            return [step["response"] for step in self["trajectory"]]
        if key == "oai_tools" and dict.__contains__(self, "tool_defs"):
            return [tool.openai() for tool in self["tool_defs"] or []] or None
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        row = dict.get(self, "input")
        if row is not None and key in self.INPUT_FIELDS and key in row:
            row[key] = value
        else:
            super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, including those of the row."""
        if dict.__contains__(self, key):
            return dict.__getitem__(self, key)
        row = dict.get(self, "input")
        if row is not None and key in (*self.INPUT_FIELDS, "task"):
            return row.get(key, default)
        return default

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        row = dict.get(self, "input")
        return row is not None and key in self.INPUT_FIELDS and key in row

    @property
    def row(self) -> dict[str, Any]:
        """The dataset row, without values that belong to the rollout."""
        row_fields: dict[str, Any] = dict.get(self, "input") or {}
        return row_fields


def assert_json_serializable(value: Any) -> None:
    """Raise `TypeError` or `ValueError` for a value that JSON cannot represent."""
    json.dumps(value)


def response_of(completion: Any) -> Response:
    """Convert a completion to a `Response`. Accepts a `Response` or an OpenAI completion."""
    if isinstance(completion, Response):
        return completion
    choice = completion.choices[0]
    raw = choice.message.model_dump(exclude_none=True) if hasattr(choice, "message") else {}
    raw = raw or {"content": getattr(choice, "text", "")}
    usage = completion.usage
    return Response(
        id=completion.id,
        created=completion.created,
        model=completion.model,
        usage=None if usage is None else Usage(**usage.model_dump(exclude_none=True)),
        message=ResponseMessage(
            content=raw.get("content"),
            reasoning_content=raw.get("reasoning_content"),
            tool_calls=raw.get("tool_calls"),
            finish_reason=choice.finish_reason,
            is_truncated=choice.finish_reason == "length",
        ),
    )


def completion_fields(response: Any) -> dict[str, Any]:
    """Return the fields of the message in a response."""
    message = response_of(response).message
    return {name: getattr(message, name) for name in AssistantMessage.model_fields}


async def parse_response_message(response: Any) -> list[Any]:
    """Return the completion of a response as messages."""
    return list(as_messages([completion_fields(response)]))


async def parse_response_messages(response: Any, message_type: str = "chat") -> Any:
    """Return the completion in the earlier releases' format, which is text for text completions."""
    messages = as_messages([completion_fields(response)], "dict")
    return messages if message_type == "chat" else field_of(messages[0], "content", "")


async def parse_response_tokens(response: Any, *_: Any, **__: Any) -> Any:
    """Return the token ids of a response, or None if the endpoint returned none."""
    return response_of(response).message.tokens
