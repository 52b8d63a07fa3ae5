"""The base class of every classic environment: a dataset, a rollout and a rubric.

The class has every method that environments written for any release of `verifiers` may override, or call on
`self`. The loop of a rollout is in `multi_turn`, and evaluating many rows is in `generation_runs`.
"""

from __future__ import annotations

import inspect
import logging
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wander_compat.verifiers import data
from wander_compat.verifiers.async_calls import maybe_await, maybe_call_with_named_args
from wander_compat.verifiers.clients import Client, resolve_client
from wander_compat.verifiers.decorators import discover_decorated
from wander_compat.verifiers.envs.generation_runs import GenerationRuns
from wander_compat.verifiers.envs.generations import find_calling_module, generation_of
from wander_compat.verifiers.messages.conversion import AnyMessage, as_messages, as_tool
from wander_compat.verifiers.messages.models import Response, Tool
from wander_compat.verifiers.parsers import Parser
from wander_compat.verifiers.rubrics.rubric import Rubric
from wander_compat.verifiers.rubrics.rubric_group import RubricGroup
from wander_compat.verifiers.timing import RolloutTiming, time_call, timing_of
from wander_compat.verifiers.types import SamplingArgs, State, response_of

if TYPE_CHECKING:
    from datasets import Dataset

_TOOLS = ("tools", "tool_defs", "oai_tools")
"""Names of a model call's tools in the different generations."""


class Environment(GenerationRuns, ABC):
    """Base of the classic environments. Unknown arguments become attributes.

    - `dataset`, `eval_dataset`: rows, or a function that creates them when they are first needed.
    - `system_prompt`, `few_shot`: put before the question of rows without their own `prompt`.
    - `tool_defs`, or `oai_tools` in the earlier format: tools for the model.

    Raises `ValueError` without any dataset.
    """

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: str = "chat",
        tool_defs: Sequence[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: Mapping[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        oai_tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.envs.{type(self).__name__}")
        self.generation = generation_of(type(self), find_calling_module())
        """Generation of the API that this environment was written for."""
        self.message_type = message_type
        self.system_prompt = system_prompt
        self.few_shot = [dict(message) for message in few_shot or []] or None
        self.parser: Parser = parser or Parser()
        self.rubric: Rubric = rubric or Rubric()
        if parser is not None and rubric is not None and type(self.parser) is not type(self.rubric.parser):
            self.logger.warning("the environment and its rubric have parsers of different classes")
        self.sampling_args: SamplingArgs = {"n": 1, "extra_body": {}, **(sampling_args or {})}
        self.tool_defs: list[Tool] | None = tools_of(tool_defs if tool_defs is not None else oai_tools)
        self.max_workers = max_workers
        self.env_id = env_id or ""
        self.env_args = env_args or {}
        self.map_kwargs = dict(map_kwargs or {})
        self.max_seq_len = max_seq_len
        self.score_rollouts = score_rollouts
        self.pass_threshold = pass_threshold
        if dataset is None and eval_dataset is None:
            raise ValueError("Either dataset or eval_dataset must be provided")
        self._dataset_sources = {"dataset": dataset, "eval_dataset": eval_dataset}
        self.dataset: Dataset | None = None
        self.eval_dataset: Dataset | None = None
        for name, source in self._dataset_sources.items():
            if source is not None and not inspect.isroutine(source):
                setattr(self, name, self._format_source_rows(source))
        for name, value in kwargs.items():
            setattr(self, name, value)
        if message_type == "chat" and self._has_text_prompts():
            self.generation = replace(self.generation, text_prompts=True)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Find the methods that are marked to run at certain times."""
        self._stop_conditions = discover_decorated(self, "stop")
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    def own_messages(self, messages: Any) -> list[AnyMessage]:
        """Convert messages to the format that this environment expects."""
        return as_messages(messages, self.generation.form)

    # tools

    @property
    def oai_tools(self) -> list[dict[str, Any]] | None:
        """The tools in OpenAI's format, as the earlier generations keep them."""
        return [tool.openai() for tool in self.tool_defs] if self.tool_defs else None

    @oai_tools.setter
    def oai_tools(self, tools: Sequence[Any] | None) -> None:
        self.tool_defs = tools_of(tools)

    # rows

    def _format_source_rows(self, rows: Any) -> Dataset:
        # Overrides written for the early releases do not accept `map_kwargs`.
        options: dict[str, Any] = {"map_kwargs": self.map_kwargs} if self.map_kwargs else {}
        return self.format_dataset(data.as_dataset(rows), self.system_prompt, self.few_shot, **options)

    def format_dataset(
        self,
        dataset: Dataset,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        map_kwargs: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Return the rows with a `prompt` and an `example_id` each."""
        return data.format_dataset(dataset, system_prompt, few_shot, question_key, answer_key, map_kwargs)

    def format_prompt(
        self,
        prompt_str: str,
        system_prompt: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the messages for a question."""
        return data.prompt_of(prompt_str, system_prompt, few_shot)

    def _has_text_prompts(self) -> bool:
        made = (rows for rows in (self.dataset, self.eval_dataset) if rows is not None and len(rows))
        return any(isinstance(rows[0].get("prompt"), str) for rows in made)

    def build_dataset(self) -> Dataset | None:
        """Return the training rows, and create them if they are given as a function."""
        return self._build_named_dataset("dataset")

    def build_eval_dataset(self) -> Dataset | None:
        """Return the evaluation rows, and create them if they are given as a function."""
        return self._build_named_dataset("eval_dataset")

    def _build_named_dataset(self, name: str) -> Dataset | None:
        if getattr(self, name) is None and inspect.isroutine(self._dataset_sources.get(name)):
            made: Callable[[], Any] = self._dataset_sources[name]
            setattr(self, name, self._format_source_rows(made()))
        dataset: Dataset | None = getattr(self, name)
        return dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Dataset:
        """Return the first `n` training rows. With a seed, they are taken from a shuffled copy."""
        rows = self.build_dataset()
        if rows is None:
            raise ValueError("the environment has no training dataset; pass `dataset`")
        return _take(rows, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Dataset:
        """Return the evaluation rows, or the training rows if the environment lacks evaluation rows."""
        rows = self.build_eval_dataset()
        if rows is None:
            self.logger.warning("the environment has no evaluation dataset; using its training dataset")
            return self.get_dataset(n, seed)
        return _take(rows, n, seed)

    # one rollout

    async def init_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Return the initial state for a rollout of a row. It shares nothing with the row."""
        row = deepcopy(dict(input))
        row["prompt"] = self.own_messages(row.get("prompt"))
        row["info"] = data.info_of(row.get("info"))
        row.setdefault("answer", "")
        tools = row["info"].get("tool_defs") or row["info"].get("oai_tools")
        state = State(input=row)
        state.update(
            client=client if isinstance(client, Client) else resolve_client(client),
            model=model,
            sampling_args=sampling_args,
            is_completed=False,
            is_truncated=False,
            stop_condition=None,
            tool_defs=tools_of(tools) if tools else self.tool_defs,
            trajectory=[],
            trajectory_id=uuid.uuid4().hex,
            completion=None,
            reward=None,
            advantage=None,
            metrics=None,
            error=None,
            timing=RolloutTiming(),
        )
        if self.generation.first:
            state.update(id=0, turn=0, responses=[], completion=[])
        return state

    @abstractmethod
    async def rollout(
        self,
        input: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> Any:
        """Play a row and return its state."""

    async def setup_state(self, state: State) -> Any:
        """Prepare the state of a rollout. Override it if needed. A return value replaces the state."""
        return state

    async def get_model_response(self, *args: Any, **kwargs: Any) -> Response:
        """Call the model, with `(state, prompt, ...)` or the earlier `(client, model, prompt, ...)`.

        Raises only `vf.Error`s.
        """
        names: tuple[str, ...] = ("client", "model", "prompt", "tools", "sampling_args")
        if "state" in kwargs or (args and isinstance(args[0], State)):
            names = ("state", "prompt", "client", "model", "tools", "sampling_args")
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        state: State | None = arguments.get("state")
        # Missing arguments are taken from the state, if there is one.
        defaults: Mapping[str, Any] = {"client": None, "model": ""} if state is None else state
        tools = next(
            (arguments[name] for name in _TOOLS if arguments.get(name) is not None), defaults.get("tool_defs")
        )
        sampling = arguments.get("sampling_args")
        response = resolve_client(arguments.get("client") or defaults["client"]).get_response(
            prompt=self.own_messages(arguments.get("prompt")),
            model=arguments.get("model") or defaults["model"],
            sampling_args={
                **self.sampling_args,
                **((defaults.get("sampling_args") if sampling is None else sampling) or {}),
            },
            tools=tools_of(tools),
            state=state,
        )
        with time_call(timing_of(state).model):
            return response_of(await response)

    async def is_completed(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether a stop condition holds.

        Takes `(state)`, or `(messages, state)` in the first generation.
        """
        state = kwargs.get("state") if "state" in kwargs else args[-1]
        assert state is not None
        for condition in self._stop_conditions:
            if await maybe_await(condition, state):
                state["is_completed"] = True
                state["stop_condition"] = condition.__name__
                return True
        return False

    async def cleanup(self, state: State, task: Any = None, resources: Any = None) -> None:
        """Run everything that is marked to run at the end of a rollout."""
        for handler in self._cleanup_handlers:
            await maybe_call_with_named_args(handler, state=state, env=self, task=task, resources=resources)

    async def _cleanup(self, state: State) -> None:
        await self.cleanup(state)

    async def _teardown(self) -> None:
        """Run everything that is marked to run when the environment is closed, including in the rubric."""
        for handler in self._teardown_handlers:
            await maybe_await(handler)
        await self.rubric.teardown()

    # settings

    def add_rubric(self, rubric: Rubric) -> None:
        """Add another rubric to the scoring."""
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup([self.rubric, rubric])

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether the rollouts of one row can only be scored together."""
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric computes advantages itself."""
        return self.rubric.has_advantages

    def get_reward_funcs(self) -> list[Callable[..., Any]]:
        """Return the rubric's functions."""
        return self.rubric.get_reward_funcs()

    def get_reward_weights(self) -> list[float]:
        """Return the weights of the rubric's functions."""
        return self.rubric.get_reward_weights()

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes, with `set_<name>` if there is such a method."""
        for name, value in kwargs.items():
            setter = getattr(self, f"set_{name}", None)
            if setter is None:
                setattr(self, name, value)
            else:
                setter(value)

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set the maximum number of tokens of prompt and completion together."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set whether rollouts are scored."""
        self.score_rollouts = score_rollouts

    def set_concurrency(self, concurrency: int) -> None:
        """Set the number of concurrent rollouts. The setting is ignored, because the host decides this."""
        self.max_workers = concurrency


def tools_of(tools: Sequence[Any] | None) -> list[Tool] | None:
    """Convert tool definitions of any format to `Tool` objects."""
    return None if tools is None else [as_tool(tool) for tool in tools]


def _take(rows: Dataset, n: int, seed: int | None) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if seed is not None:
            rows = rows.shuffle(seed=seed)
        return rows.select(range(min(n, len(rows)))) if n > 0 else rows
