"""The values that every part of Wander passes around: messages, examples, turns, rollouts, states.

Messages are plain dictionaries in the OpenAI chat format, so environment code reads like everybody's
environment code (`completion[-1]["content"]`). Everything that is written to a file or sent over a wire
is a pydantic model, and this module is the one place where its fields are documented.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
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
"""One chat message: `role` (system, user, assistant or tool), `content` (text, or a list of content
parts), and where they apply `tool_calls`, `tool_call_id`, `name`, `reasoning_content`. A local model's has a
`CallAttempt`, as a dictionary, for each of its `tool_calls` in `attempts`. Where an environment has players,
one with `player` is that player's own: the others do not see it."""

Messages = list[Message]

FILTERED = "content_filter"
"""The finish reason of a turn that a content filter took away or cut short."""

Boundary = Literal["model", "environment", "tool", "rubric", "sandbox"]
"""Where a failure belongs. A failed rollout is data; it never cancels its siblings."""


_new = object.__new__
# The slots of a pydantic model, which its own `__setattr__` takes for fields.
_set_values, _set_given, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Record(BaseModel):
    """Base of every stored or transmitted value: unknown fields are refused, so typos cannot hide."""

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
        """Return a record of all its fields, unchecked, in a quarter of the time of `model_construct`.

        For our own values where a rollout makes many records. Every field must be given, those with a
        default too, and none else; a test holds this to what `model_construct` returns.
        """
        record = _new(cls)
        _set_values(record, values)
        _set_given(record, _every_field(cls))
        _set_extra(record, None)
        _set_private(record, None)
        return record


_LISTS = ("list", "tuple", "set", "frozenset")


def _end_lists_at_a_fault(schema: Any) -> None:
    """Have lists refused at their first fault: a megabyte of them would else become a gigabyte of errors."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("type") in _LISTS:
                part["fail_fast"] = True
            parts += [each for each in part.values() if isinstance(each, (dict, list))]
        elif isinstance(part, list):
            parts += part


@cache
def _every_field(record: type[Record]) -> set[str]:
    """Return one set for all records of a kind, which pydantic copies with a record that it copies."""
    return set(record.model_fields)


class SamplingArgs(BaseModel):
    """How completions are sampled; unset fields are left to the endpoint.

    Extra fields are kept and passed on unchanged, since endpoints differ (`min_p`, `reasoning_effort`...).
    """

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, gt=0)
    """Upper bound on the tokens of one turn."""
    seed: int | None = None
    stop: list[str] | None = None
    compact_at: int | None = Field(default=None, gt=0, exclude_if=lambda tokens: tokens is None)
    """Models in this process: tokens that a conversation may have before its oldest turns are left out."""

    def given(self) -> dict[str, Any]:
        """Return only the fields that were set, extras included."""
        if self.__pydantic_extra__:
            return self.model_dump(exclude_none=True)
        # Asked for at every turn, and a dump costs six times as much.
        return {name: value for name, value in self.__dict__.items() if value is not None}


class Usage(Record):
    """Token counts of one turn or, summed, of one rollout."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = Field(default=False, exclude_if=lambda estimated: not estimated)
    """The endpoint counted nothing, at least in part: a token stands for four bytes of text."""

    def __add__(self, other: Usage) -> Usage:
        return Usage.assemble(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            estimated=self.estimated or other.estimated,
        )


class TurnTokens(Record):
    """What the policy really saw and sampled in one turn; present when the client works on tokens."""

    prompt_ids: list[int]
    """Every id before the completion, as the model saw it."""
    completion_ids: list[int]
    """The sampled ids, end-of-turn token included, never re-tokenised."""
    logprobs: list[float]
    """Natural-log probability of each completion id under the sampling distribution; same length."""
    step: int | None = Field(default=None, exclude_if=lambda step: step is None)
    """Of a training run that samples ahead: the steps that the weights had learnt which sampled them."""


class CallAttempt(Record):
    """A call of a tool as a local model wrote it, readable or not."""

    raw: str
    """Its text, markers included."""
    name: str | None = None
    """The tool it names, as far as that can be read."""
    arguments: dict[str, Any] | None = None
    span: tuple[int, int] | None = None
    """First token of the completion that belongs to it, and the first after it; None where the engine gave
    text alone."""
    problem: str | None = None
    """What is wrong with it; None of a call that could be made."""


class Turn(Record):
    """One model call and what it produced."""

    message: Message
    """The assistant message exactly as the environment received it."""
    context_messages: int
    """How many messages of prompt + completion stood before this one."""
    finish_reason: str = "stop"
    usage: Usage = Field(default_factory=Usage)
    model_seconds: float = 0.0
    """Time the model took, without our own waiting for an endpoint's rate."""
    environment_seconds: float = 0.0
    """Time the environment took to answer this turn (0 for the last turn)."""
    tokens: TurnTokens | None = None
    cached: bool = False
    """Answered from a cache of responses, not by the model."""
    player: str | None = Field(default=None, exclude_if=lambda player: player is None)
    """Who moved, where the environment has players."""
    left_out: tuple[int, int] | None = Field(default=None, exclude_if=lambda gap: gap is None)
    """Of the messages before this one, the first that the model was not shown any more, and the first after
    it that it was (`SamplingArgs.compact_at`)."""


class Failure(Record):
    """Why a rollout failed, attributed to the boundary that broke."""

    boundary: Boundary
    type: str
    """Class name of the exception."""
    message: str
    retryable: bool = False


class Example(Record):
    """One dataset row, normalised."""

    example_id: str
    """Stable name of the row: the author's `example_id` column, else the row's position."""
    index: int
    """Position in the stored order of its split."""
    split: Literal["train", "eval"] = "eval"
    seed: int
    """Seeds everything random in this example's rollouts (with the run's seed)."""
    prompt: list[Message]
    answer: Any = ""
    info: dict[str, Any] = Field(default_factory=dict)
    stratum: int | None = None
    """Difficulty slice that a sampler balances, when the environment declares one."""
    columns: dict[str, Any] = Field(default_factory=dict)
    """Every other column of the row; reward functions may ask for them by name."""
    fault: str | None = Field(default=None, exclude_if=lambda fault: fault is None)
    """Why the row cannot be played, with its index and column; its rollouts fail. None for a good row."""

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the row. It does not depend on the words of a fault."""
        return hashlib.sha256(canonical_json(self.model_dump(exclude={"fault"})).encode()).hexdigest()


class Rollout(Record):
    """One finished episode: the line that is appended to `rollouts.jsonl`."""

    example_id: str
    index: int
    """Which of the group's rollouts this is, from 0."""
    seed: int
    """The example's seed."""
    prompt: list[Message]
    completion: list[Message]
    """Everything after the prompt: assistant, environment and tool messages in order."""
    turns: list[Turn] = Field(default_factory=list)
    answer: Any = ""
    stop_reason: str | None = None
    """Name of the stop condition that ended the rollout; None when it failed."""
    truncated: bool = False
    """True when a limit cut the rollout or a completion short."""
    reward: float | None = None
    """Weighted sum of the reward functions; None when the rollout failed. Where the environment has players,
    that of the first, as are the metrics."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Raw value of every reward function, those of weight 0 included."""
    failure: Failure | None = None
    usage: Usage = Field(default_factory=Usage)
    started_at: str = ""
    """ISO 8601, UTC."""
    seconds: float = 0.0
    """Time of playing and scoring, without our own waiting for an endpoint's rate."""
    scoring_seconds: float = 0.0
    info: dict[str, Any] = Field(default_factory=dict)
    """What the environment chose to publish about the episode (`state["public"]`)."""
    tools: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """Function schemas that the model could call in its last turn; None where it was offered none."""
    step: int | None = Field(default=None, exclude_if=lambda step: step is None)
    """Of a training run: the steps that the policy had learnt when it played this."""
    rewards: dict[str, float] = Field(default_factory=dict, exclude_if=lambda rewards: not rewards)
    """Of each player, where the environment has players."""
    player_metrics: dict[str, dict[str, float]] = Field(
        default_factory=dict, exclude_if=lambda metrics: not metrics
    )
    """`metrics` of every player but the first; empty without players."""

    @property
    def key(self) -> tuple[str, int]:
        """The (example, index) pair that a resumed run checks."""
        return self.example_id, self.index

    @property
    def refused(self) -> bool:
        """Whether the model refused to answer in any turn, as its endpoint says (`refusal`)."""
        return any(turn.message.get("refusal") for turn in self.turns)

    @property
    def filtered(self) -> bool:
        """Whether a content filter took away or cut short any turn."""
        return any(turn.finish_reason == FILTERED for turn in self.turns)


def _kept(key: str) -> Any:
    """Return an attribute that reads a key of a state, in half the time of a function."""
    return property(itemgetter(key))


class State(dict[str, Any]):
    """The mutable state of one running rollout.

    A dictionary, so that authors keep what they like in it (`state["board"]`), with attributes for the
    keys that the rollout loop itself maintains. Keys: `example, prompt, completion, answer, info, turns,
    run_seed, index, stop_reason, truncated, reward, metrics, rewards, failure, public`, and where the
    environment has players `player`, whose turn it is.
    """

    example: Example = _kept("example")
    """The dataset row being played."""
    prompt: Messages = _kept("prompt")
    """The messages before the first completion."""
    completion: Messages = _kept("completion")
    """Everything after the prompt so far."""
    turns: list[Turn] = _kept("turns")
    """The model calls so far."""
    run_seed: int = _kept("run_seed")
    """The seed of the whole run."""


def seen_by(player: str, messages: Messages) -> Messages:
    """Return the messages that a player sees, as its model is shown them: its own, and those of everybody."""
    return [
        {name: value for name, value in message.items() if name != "player"}
        for message in messages
        if message.get("player", player) == player
    ]


class RewardFunctionInfo(Record):
    """A reward function as the outside sees it; a weight of 0 makes it a metric."""

    name: str
    weight: float
    bounds: tuple[float, float] | None = None
    """Lowest and highest value as declared; None where nothing was."""

    @property
    def range(self) -> tuple[float, float] | None:
        """The declared bounds, else 0 to 1 for what counts; None for a metric that declares nothing."""
        return self.bounds or ((0.0, 1.0) if self.weight else None)


class GridView(Record):
    """How pages draw what messages show of a state: a board, a map, a table of known words.

    Of each message of an environment that is the last lines in a row that are all rows of the grid. The text
    stays as it is: it is what the model saw.
    """

    columns: int = Field(ge=1, le=32)
    cells: dict[Annotated[str, Field(min_length=1, max_length=20)], Annotated[str, Field(max_length=2)]] = (
        Field(min_length=1, max_length=256)
    )
    """What is drawn for each word that a cell may be: a character or two, none for a free cell."""
    separator: Annotated[str, Field(max_length=3)] = " "
    """What stands between the cells of a row; nothing where each character is a cell."""


class TableView(Record):
    """How pages draw rows that messages show as lines of JSON: what a query found, an order, a state.

    Of each message of an environment, or result of a tool, those are the last lines in a row that are all
    arrays of as many values, or all objects of the same keys, which head the columns. The text stays.
    """

    kind: Literal["table"] = "table"
    heading: bool = True
    """Whether the first of several arrays holds the names of the columns."""


class EnvironmentInfo(Record):
    """What an environment says about itself when it is loaded."""

    name: str
    kind: str
    """Class of environment: single_turn, multi_turn, tool..."""
    summary: str = ""
    tags: list[str] = Field(default_factory=list)
    reward_functions: list[RewardFunctionInfo] = Field(default_factory=list)
    reward_bounds: tuple[float, float] | None = None
    """Lowest and highest reward as declared; None where nothing was."""
    max_turns: int | None = None
    timeout_seconds: float | None = None
    """Seconds after which the environment ends a rollout and scores it; None if it has no such limit."""
    deterministic: bool = True
    """False when outside observations (network, judge model) enter the rollouts."""
    group_rewards: bool = False
    """True when a reward function compares the rollouts of one example: they are played with
    `rollout_group`."""
    train_examples: int | None = None
    """Number of rows, or None when the dataset is endless."""
    eval_examples: int | None = None
    strata: int | None = None
    """Number of strata that a sampler balances, if any."""
    reference_scores: dict[str, float] = Field(default_factory=dict)
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The arguments `load_environment` was called with."""
    defaults: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda defaults: not defaults)
    """The default values of the arguments of `load_environment` that JSON can write."""
    players: list[str] = Field(default_factory=list, exclude_if=lambda players: not players)
    """Who takes turns in its rollouts; the run's model is the first, and every other unless somebody else is
    named. Empty for the usual environment, in which the model is alone."""
    view: GridView | TableView | None = Field(default=None, exclude_if=lambda view: view is None)
    """How pages draw its state; None where messages are read alone."""

    @property
    def calls_tools(self) -> bool:
        """True of the kinds that always offer tools."""
        return self.kind in ("tool", "stateful_tool", "mcp")

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Lowest and highest reward, declared or by the weights; None where there is no function."""
        return reward_range(self.reward_bounds, self.reward_functions)


def reward_range(
    declared: tuple[float, float] | None, functions: list[RewardFunctionInfo]
) -> tuple[float, float] | None:
    """Return the declared bounds of the reward, else what the weights make of the functions' ranges."""
    if declared is not None or not functions:
        return declared
    ends = [sorted(one.weight * end for end in one.range or ()) for one in functions if one.weight]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Serialise a value so that equal values give equal bytes: sorted keys, no spaces, UTF-8, no NaN."""
    return _CANONICAL.encode(value)


def refuse_constant(text: str) -> None:
    """Raise `ValueError` for `NaN` and `Infinity`, as `parse_constant` of `json.loads`."""
    raise ValueError(f"`{text}` is not a JSON value")


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the path of the first value that does not fit, empty for the whole, and what is wrong."""
    fault = error.errors(include_url=False, include_input=False)[0]
    said = str(fault["ctx"]["error"]) if fault["type"] == "value_error" else fault["msg"]
    if not said[1:2].isupper():  # as in "URL scheme should be"
        said = said[:1].lower() + said[1:]
    return ".".join(map(str, fault["loc"])), said


_UNCHANGING = frozenset((str, int, float, bool, type(None)))


def copy_json(value: Any) -> Any:
    """Copy a JSON value; several times faster than `copy.deepcopy`."""
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
    """SHA-256 over the ordered digests of the examples a run uses."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(bytes.fromhex(example.digest()))
    return whole.hexdigest()
