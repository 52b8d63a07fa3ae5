"""The values that all parts of Wander exchange: messages, examples, turns, rollouts, states.

Messages are plain dictionaries in the OpenAI chat format, so environment code looks familiar
(`completion[-1]["content"]`). Every value that is stored in a file or sent to another process is a pydantic
model, whose fields are documented in this module.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema

__all__ = [
    "Boundary",
    "CallAttempt",
    "EnvironmentInfo",
    "Example",
    "Failure",
    "GridView",
    "Message",
    "Messages",
    "RewardFunctionInfo",
    "Rollout",
    "SamplingArgs",
    "State",
    "TableView",
    "Turn",
    "TurnTokens",
    "Usage",
]

Message = dict[str, Any]
"""Chat message with `role` (system, user, assistant or tool) and `content` (text, or a list of content
parts), and optionally `tool_calls`, `tool_call_id`, `name` and `reasoning_content`. Messages of local models
also have `attempts`, with a `CallAttempt` as a dictionary for each of their `tool_calls`. In an environment
with several players, only the player named in `player` sees the message."""

Messages = list[Message]

FILTERED = "content_filter"
"""Finish reason of a turn that a content filter removed or cut short."""

Boundary = Literal["model", "environment", "tool", "rubric", "sandbox"]
"""Boundary that a failure is attributed to. A failed rollout is data and never cancels its siblings."""


_new = object.__new__
# The slots of a pydantic model. Its `__setattr__` would treat these names as fields.
_set_values, _set_given, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Record(BaseModel):
    """Base of every stored or transmitted value. Unknown fields are rejected, so that typos are noticed."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        _end_lists_at_a_fault(schema)
        return schema

    @classmethod
    def assemble(cls, **values: Any) -> Self:
        """Return a record with these fields, without validation, four times faster than `model_construct`.

        It is meant for our own values in places where a rollout creates many records. All fields must be
        given, including those with a default, and no others. A test compares the result with that of
        `model_construct`.
        """
        record = _new(cls)
        _set_values(record, values)
        _set_given(record, _every_field(cls))
        _set_extra(record, None)
        _set_private(record, None)
        return record


_LISTS = ("list", "tuple", "set", "frozenset")


def _end_lists_at_a_fault(schema: Any) -> None:
    """Make validation of lists stop at the first error, because a megabyte of lists could produce a gigabyte
    of errors."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("type") in _LISTS:
                part["fail_fast"] = True
            parts += [child for child in part.values() if isinstance(child, (dict, list))]
        elif isinstance(part, list):
            parts += part


@cache
def _every_field(record: type[Record]) -> set[str]:
    """Return a set that all records of a class share; pydantic copies it when it copies a record."""
    return set(record.model_fields)


class SamplingArgs(BaseModel):
    """Sampling parameters of completions; unset fields are left to the endpoint.

    Extra fields are kept and passed on unchanged, because endpoints have different parameters (`min_p`,
    `reasoning_effort`...).
    """

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True, allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens in a turn."""
    seed: int | None = None
    stop: list[str] | None = None
    compact_at: int | None = Field(default=None, gt=0, exclude_if=lambda tokens: tokens is None)
    """Number of tokens in a conversation above which its oldest turns are left out; only for models in this
    process."""

    @model_validator(mode="after")
    def _extra_fields_are_json(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"`{name}` is not a JSON value: {error}") from error
        return self

    def given(self) -> dict[str, Any]:
        """Return only the fields that are set, including extra fields."""
        if self.__pydantic_extra__:
            return self.model_dump(exclude_none=True)
        # This is called at every turn, and `model_dump` takes six times as long.
        return {name: value for name, value in self.__dict__.items() if value is not None}


class Usage(Record):
    """Token counts of a turn or, as a sum, of a rollout."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = Field(default=0, exclude_if=operator.not_)
    """Prompt tokens that the endpoint read from its cache. They are part of `prompt_tokens`."""
    reasoning_tokens: int = Field(default=0, exclude_if=operator.not_)
    """Tokens that the model spent on reasoning. They are part of `completion_tokens`."""
    estimated: bool = Field(default=False, exclude_if=operator.not_)
    """Whether at least some counts are estimates of four bytes of text per token, because the endpoint did
    not count."""

    def __add__(self, other: Usage) -> Usage:
        return self._merge(other, operator.add)

    def at_least(self, other: Usage) -> Usage:
        """Return the larger of both values of each count."""
        return self._merge(other, max)

    def _merge(self, other: Usage, merge: Callable[[int, int], int]) -> Usage:
        return Usage.assemble(
            prompt_tokens=merge(self.prompt_tokens, other.prompt_tokens),
            completion_tokens=merge(self.completion_tokens, other.completion_tokens),
            cached_tokens=merge(self.cached_tokens, other.cached_tokens),
            reasoning_tokens=merge(self.reasoning_tokens, other.reasoning_tokens),
            estimated=self.estimated or other.estimated,
        )


class TurnTokens(Record):
    """The tokens that the policy saw and sampled in a turn; present if the client works with tokens."""

    prompt_ids: list[int]
    """All token ids before the completion, as the model saw them."""
    completion_ids: list[int]
    """Sampled token ids, including the end-of-turn token. They are never re-tokenized."""
    logprobs: list[float]
    """Natural-log probability of each completion id under the sampling distribution; same length."""
    step: int | None = Field(default=None, exclude_if=lambda step: step is None)
    """Training step of the weights that sampled the turn, in a training run that samples ahead."""


class CallAttempt(Record):
    """A tool call in the text of a local model, whether it could be parsed or not."""

    raw: str
    """Text of the call, including its markers."""
    name: str | None = None
    """Name of the tool, if it can be read."""
    arguments: dict[str, Any] | None = None
    span: tuple[int, int] | None = None
    """Range of the completion's tokens that belong to the call, as start and end; None if the engine returned
    only text."""
    problem: str | None = None
    """Problem with the call; None if it could be made."""


class Turn(Record):
    """A model call and its result."""

    message: Message
    """Assistant message exactly as the environment received it."""
    context_messages: int
    """Number of messages in prompt and completion before this message."""
    finish_reason: str = "stop"
    usage: Usage = Field(default_factory=Usage)
    model_seconds: float = 0.0
    """Seconds that the model took, without waiting for an endpoint's rate limit."""
    environment_seconds: float = 0.0
    """Seconds that the environment took to answer this turn; 0 for the last turn."""
    tokens: TurnTokens | None = None
    cached: bool = False
    """Whether the answer came from a cache of responses instead of the model."""
    player: str | None = Field(default=None, exclude_if=lambda player: player is None)
    """Player of the turn, in an environment with several players."""
    left_out: tuple[int, int] | None = Field(default=None, exclude_if=lambda gap: gap is None)
    """Range of the messages before this one that the model no longer saw, as start and end
    (`SamplingArgs.compact_at`)."""


class Failure(Record):
    """The reason why a rollout failed, attributed to a boundary."""

    boundary: Boundary
    type: str
    """Name of the exception class."""
    message: str
    retryable: bool = False


class Example(Record):
    """A row of a dataset in normalized form."""

    example_id: str
    """Stable name of the row: its `example_id` column, or else its index."""
    index: int
    """Index in the stored order of its split."""
    split: Literal["train", "eval"] = "eval"
    seed: int
    """Seed of everything random in the example's rollouts, together with the run's seed."""
    prompt: list[Message]
    answer: Any = ""
    info: dict[str, Any] = Field(default_factory=dict)
    stratum: int | None = None
    """Difficulty level that a sampler balances, if the environment declares strata."""
    columns: dict[str, Any] = Field(default_factory=dict)
    """All other columns of the row; reward functions may ask for them by name."""
    fault: str | None = Field(default=None, exclude_if=lambda fault: fault is None)
    """Reason why the row cannot be played, with its index and column; its rollouts fail. None for a valid
    row."""

    def digest(self) -> str:
        """Return the SHA-256 of the row's canonical JSON. It does not depend on the text of a fault."""
        return hashlib.sha256(canonical_json(self.model_dump(exclude={"fault"})).encode()).hexdigest()


class Rollout(Record):
    """A finished episode: a line of `rollouts.jsonl`."""

    example_id: str
    index: int
    """Index of the rollout in its group, from 0."""
    seed: int
    """Seed of the example."""
    prompt: list[Message]
    completion: list[Message]
    """Messages after the prompt: assistant, environment and tool messages in order."""
    turns: list[Turn] = Field(default_factory=list)
    answer: Any = ""
    stop_reason: str | None = None
    """Name of the stop condition that ended the rollout; None if it failed."""
    truncated: bool = False
    """Whether a limit cut the rollout or a completion short."""
    reward: float | None = None
    """Weighted sum of the reward functions; None if the rollout failed. In an environment with several
    players, reward and metrics are those of the first player."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Raw value of every reward function, including those with weight 0."""
    failure: Failure | None = None
    usage: Usage = Field(default_factory=Usage)
    started_at: str = ""
    """Start time in ISO 8601, UTC."""
    seconds: float = 0.0
    """Seconds of playing and scoring, without waiting for an endpoint's rate limit."""
    scoring_seconds: float = 0.0
    info: dict[str, Any] = Field(default_factory=dict)
    """Values that the environment published about the episode (`state["public"]`)."""
    tools: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """Function schemas that the model could call in its last turn; None if it was not offered tools."""
    step: int | None = Field(default=None, exclude_if=lambda step: step is None)
    """Training step of the policy that played the rollout; None outside of training."""
    rewards: dict[str, float] = Field(default_factory=dict, exclude_if=lambda rewards: not rewards)
    """Reward of each player, in an environment with several players."""
    player_metrics: dict[str, dict[str, float]] = Field(
        default_factory=dict, exclude_if=lambda metrics: not metrics
    )
    """Metrics of every player except the first; empty without several players."""

    @property
    def key(self) -> tuple[str, int]:
        """The pair (example, index), which identifies the rollout when a run is resumed."""
        return self.example_id, self.index

    @property
    def refused(self) -> bool:
        """Whether the model refused to answer in a turn, as reported by its endpoint (`refusal`)."""
        return any(turn.message.get("refusal") for turn in self.turns)

    @property
    def filtered(self) -> bool:
        """Whether a content filter removed or cut short a turn."""
        return any(turn.finish_reason == FILTERED for turn in self.turns)


def _kept(key: str) -> Any:
    """Return a property that reads a key of a state, in half the time of a function."""
    return property(itemgetter(key))


class State(dict[str, Any]):
    """The mutable state of a running rollout.

    It is a dictionary, so that authors can store their own values (`state["board"]`), with attributes for the
    keys that the rollout loop maintains. Its keys are `example, prompt, completion, answer, info, turns,
    run_seed, index, stop_reason, truncated, reward, metrics, rewards, failure, public`. In an environment
    with several players, `player` is the player to move.
    """

    example: Example = _kept("example")
    """Example that is being played."""
    prompt: Messages = _kept("prompt")
    """Messages before the first completion."""
    completion: Messages = _kept("completion")
    """Messages after the prompt so far."""
    turns: list[Turn] = _kept("turns")
    """Model calls so far."""
    run_seed: int = _kept("run_seed")
    """Seed of the whole run."""


def seen_by(player: str, messages: Messages) -> Messages:
    """Return the messages that a player sees, in the form that its model receives."""
    return [
        {name: value for name, value in message.items() if name != "player"}
        for message in messages
        if message.get("player", player) == player
    ]


AGENT = "agent"
"""Key of a rollout's `info` with the record of an agent program."""


class SubCall(Record):
    """A model call that code inside a rollout made, or a further conversation of an agent program.

    They are stored in the rollout's `info["rlm"]["sub_calls"]` or `info["agent"]["sub_calls"]`.
    """

    path: str
    """Position of the call: `3` is the rollout's third call, `3.1` the first call that the third call
    made."""
    depth: int
    """Depth of the call: 1 for calls by the rollout's own code, 2 for calls that those calls make."""
    turn: int
    """Turn of the rollout whose code made the call."""
    prompt: list[Message]
    completion: list[Message] = Field(default_factory=list)
    turns: list[Turn] = Field(default_factory=list)
    answer: str | None = None
    """Text that the code received; None if the call failed."""
    failure: Failure | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """Function schemas that an agent program offered in the last call of the conversation."""


class RewardFunctionInfo(Record):
    """The public description of a reward function; with weight 0 it is a metric."""

    name: str
    weight: float
    bounds: tuple[float, float] | None = None
    """Lowest and highest value as declared, if any."""

    @property
    def range(self) -> tuple[float, float] | None:
        """Declared bounds, or else 0 to 1 if the weight is not 0; None for a metric without declared
        bounds."""
        return self.bounds or ((0.0, 1.0) if self.weight else None)


class GridView(Record):
    """A description of how pages draw a state in messages: a board, a map, a table of known words.

    In each message of an environment, pages draw the last block of consecutive lines that are rows of the
    grid. The text is also shown, because it is what the model saw.
    """

    columns: int = Field(ge=1, le=32)
    cells: dict[Annotated[str, Field(min_length=1, max_length=20)], Annotated[str, Field(max_length=2)]] = (
        Field(min_length=1, max_length=256)
    )
    """Drawing of each word that a cell may contain: one or two characters, or an empty text for a free
    cell."""
    separator: Annotated[str, Field(max_length=3)] = " "
    """Text between the cells of a row; empty if each character is a cell."""


class TableView(Record):
    """A description of how pages draw lines of JSON in messages: query results, an order, a state.

    In each message of an environment or tool, pages draw the last block of consecutive lines that are all
    arrays of the same length, or all objects with the same keys, which become the column headings. The text
    is also shown.
    """

    kind: Literal["table"] = "table"
    heading: bool = True
    """Whether the first array contains the names of the columns."""


BOX_KINDS = ("shell", "agent")
"""Kinds of environments whose model works in a box."""


class EnvironmentInfo(Record):
    """Facts that an environment reports when it is loaded."""

    name: str
    kind: str
    """Kind of environment: single_turn, multi_turn, tool..."""
    summary: str = ""
    tags: list[str] = Field(default_factory=list)
    reward_functions: list[RewardFunctionInfo] = Field(default_factory=list)
    reward_bounds: tuple[float, float] | None = None
    """Lowest and highest reward as declared, if any."""
    max_turns: int | None = None
    timeout_seconds: float | None = None
    """Seconds after which the environment ends a rollout and scores it; None means unlimited time."""
    deterministic: bool = True
    """Whether rollouts are free of outside observations (network, judge model)."""
    group_rewards: bool = False
    """Whether a reward function compares the rollouts of an example, which are then played with
    `rollout_group`."""
    train_examples: int | None = None
    """Number of rows, or None if the dataset is endless."""
    eval_examples: int | None = None
    strata: int | None = None
    """Number of strata that a sampler balances, if any."""
    reference_scores: dict[str, float] = Field(default_factory=dict)
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments that `load_environment` was called with."""
    defaults: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda defaults: not defaults)
    """Default values of the arguments of `load_environment` that JSON can express."""
    players: list[str] = Field(default_factory=list, exclude_if=lambda players: not players)
    """Players of a rollout. The run's model plays the first one, and also every other player that is not
    assigned. Empty in an environment with a single player."""
    view: GridView | TableView | None = Field(default=None, exclude_if=lambda view: view is None)
    """Description of how pages draw its state; None if pages show only messages."""

    @property
    def calls_tools(self) -> bool:
        """Whether environments of this kind always offer tools."""
        return self.kind in ("tool", "stateful_tool", "mcp", "shell")

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Lowest and highest reward, declared or derived from the weights; None without reward functions."""
        return reward_range(self.reward_bounds, self.reward_functions)


def reward_range(
    declared: tuple[float, float] | None, functions: list[RewardFunctionInfo]
) -> tuple[float, float] | None:
    """Return the declared bounds of the reward, or the sum of the weighted ranges of its functions."""
    if declared is not None or not functions:
        return declared
    ends = [sorted(part.weight * end for end in part.range or ()) for part in functions if part.weight]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Serialize a value so that equal values give equal bytes: sorted keys, no spaces, UTF-8, no NaN."""
    return _CANONICAL.encode(value)


_UNSAFE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufffe\uffff]")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def portable_json(value: Any) -> str:
    """Serialize a text, a number or a list so that JSON, TOML and YAML read the same value.

    TOML and YAML do not accept surrogate pairs as escapes, nor some control characters unescaped. A lone
    surrogate, which no file can contain, becomes a question mark.
    """
    text = _LONE_SURROGATE.sub("?", json.dumps(value, ensure_ascii=False))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def refuse_constant(text: str) -> None:
    """Raise `ValueError` for `NaN` and `Infinity`; use it as `parse_constant` of `json.loads`."""
    raise ValueError(f"`{text}` is not a JSON value")


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the path and the message of the first validation error; the path is empty for the whole
    value."""
    fault = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, fault["loc"])), describe_fault(fault)


REQUIREMENTS = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be `true` or `false`",
    "bool_type": "must be `true` or `false`",
    "byte_size": "must be a size such as `10GiB`",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "extra_forbidden": "is unknown",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have at most {max_length} entries",
    "greater_than": "must be more than {gt:g}",
    "less_than": "must be less than {lt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
}
"""Requirements on a value by pydantic's type of error. The error's `ctx` fills the placeholders."""


def describe_fault(fault: Mapping[str, Any]) -> str:
    """Return what an error of pydantic requires of the value, such as `must be a whole number`."""
    context = dict(fault.get("ctx", {}))
    if "expected" in context:
        context["expected"] = context["expected"].replace("'", "`")
    return start_lower(REQUIREMENTS.get(fault["type"], "{msg}").format_map({**fault, **context}))


def start_lower(sentence: str) -> str:
    """Return a sentence for the middle of an error: its first word in lower case, unless it is a name.

    A word with further capitals or digits is a name, such as `DNS`, `PyPI` or `S3`.
    """
    if re.match(r"[A-Z][a-z',-]*[ :]", f"{sentence} "):
        return sentence[:1].lower() + sentence[1:]
    return sentence


_UNCHANGING = frozenset((str, int, float, bool, type(None)))


def copy_json(value: Any) -> Any:
    """Copy a JSON value, several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        copied = {**value}
        for key, item in value.items():
            if type(item) not in _UNCHANGING:
                copied[key] = copy_json(item)
        return copied
    if isinstance(value, list):
        return [item if type(item) in _UNCHANGING else copy_json(item) for item in value]
    return value


def task_set_digest(examples: list[Example]) -> str:
    """Return the SHA-256 of the digests of a run's examples, in order."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(bytes.fromhex(example.digest()))
    return whole.hexdigest()
