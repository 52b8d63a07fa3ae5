"""Environments that answer the model with the results of tools."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wander.envs.tool.schema import FunctionTool

from wander_compat.verifiers.async_calls import maybe_await
from wander_compat.verifiers.decorators import stop
from wander_compat.verifiers.envs.multi_turn import MultiTurnEnv
from wander_compat.verifiers.errors import Error, ToolCallError, ToolParseError
from wander_compat.verifiers.messages.conversion import AnyMessage, as_message, as_tool_call, field_of
from wander_compat.verifiers.messages.dicts import ToolCallDict
from wander_compat.verifiers.messages.models import Tool
from wander_compat.verifiers.rubrics.rubric import function_name
from wander_compat.verifiers.rubrics.tool_rubric import ToolMonitorRubric
from wander_compat.verifiers.types import State

ErrorFormatter = Callable[[Exception], str]


VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


def convert_func_to_tool_def(func: Callable[..., Any], args_to_skip: Iterable[str] = ()) -> Tool:
    """Return the tool definition of a function. The model neither sees nor may pass `args_to_skip`.

    As in the releases, parameters that do not exist are ignored. Raises `wander.errors.ConfigError` for a
    function whose parameters cannot be filled from a JSON object.
    """
    skipped = set(args_to_skip) & set(inspect.signature(func).parameters)
    made = FunctionTool(func, args_to_skip=skipped)
    return Tool(name=made.name, description=made.description, parameters=made.parameters)


def filter_signature(func: Callable[..., Any], args_to_skip: Iterable[str]) -> Callable[..., Any]:
    """Return an equivalent function whose signature lacks some parameters."""
    skipped = set(args_to_skip)
    if not skipped:
        return func

    @functools.wraps(func)
    def shown(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    signature = inspect.signature(func)
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name not in skipped | {"self"}
    ]
    shown.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    shown.__annotations__ = {
        name: value for name, value in func.__annotations__.items() if name not in skipped
    }
    del shown.__wrapped__
    return shown


def convert_func_to_oai_tool(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the tool definition of a function in OpenAI's format."""
    return convert_func_to_tool_def(func).openai()


def is_valid_tool_content_parts(value: Any) -> bool:
    """Return whether a tool's result is a list of content parts that a tool message may contain."""
    if not isinstance(value, list):
        return False
    return all(
        isinstance(part, Mapping) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES for part in value
    )


def error_text(error: Exception) -> str:
    """Return the text about an exception for the model."""
    return str(error)


class ToolEnv(MultiTurnEnv):
    """Lets the model call Python functions until it answers without a call.

    The model receives the exceptions of tools, except for the classes in `stop_errors`, which end the
    rollout.
    """

    passed_errors: tuple[type[Exception], ...] = ()
    """Errors that end the rollout unchanged, because they are not a fault of the tool."""

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: ErrorFormatter = error_text,
        stop_errors: Sequence[type[Exception]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.tools: list[Callable[..., Any]] = []
        self.tool_map: dict[str, Callable[..., Any]] = {}
        self.error_formatter = error_formatter
        self.stop_errors = list(stop_errors or [])
        super().__init__(max_turns=max_turns, **kwargs)
        self.tool_monitor_rubric = ToolMonitorRubric()
        self.add_rubric(self.tool_monitor_rubric)
        self.tool_defs = list(self.tool_defs or [])
        for tool in tools or []:
            self.add_tool(tool)

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Add a tool."""
        self._offer_one_tool(tool, ())

    def _offer_one_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str]) -> None:
        definition = convert_func_to_tool_def(tool, args_to_skip)
        self.tools.append(tool)
        self.tool_defs = [*(self.tool_defs or []), definition]
        self.tool_map[definition.name] = tool
        self.tool_monitor_rubric.add_tool_metric(definition.name)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Remove a tool."""
        name = function_name(tool)
        self.tools.remove(tool)
        self.tool_defs = [definition for definition in self.tool_defs or [] if definition.name != name]
        self.tool_map.pop(name, None)
        self.tool_monitor_rubric.remove_tool_metric(name)

    def _should_stop_for_error(self, err: Exception) -> bool:
        return isinstance(err, tuple(self.stop_errors))

    @stop
    async def no_tools_called(self, state: State) -> bool:
        """Hold if the model answered without a tool call."""
        if not state["trajectory"]:
            return False
        last = self.own_messages(state["trajectory"][-1]["completion"])[-1]
        return field_of(last, "role") == "assistant" and not field_of(last, "tool_calls")

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> Any:
        """Call a tool and return its result as a message. Exceptions of the tool are not caught."""
        result = await maybe_await(self.tool_map[tool_name], **tool_args)
        content = result if is_valid_tool_content_parts(result) else str(result)
        return self._make_tool_message(content, tool_call_id)

    def _make_tool_message(self, content: Any, tool_call_id: str) -> AnyMessage:
        fields = {"role": "tool", "content": content, "tool_call_id": tool_call_id}
        return as_message(fields, self.generation.form)

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> Any:
        """Return the results of the last message's tool calls."""
        results = [
            await self._answer_tool_call(call, messages, state, kwargs)
            for call in map(as_tool_call, field_of(messages[-1], "tool_calls", []))
        ]
        return (results, state) if self.generation.tuple_response else results

    async def _answer_tool_call(
        self, call: ToolCallDict, messages: Any, state: State, keywords: dict[str, Any]
    ) -> Any:
        """Return the result of a call, or the text about its failure for the model."""
        try:
            arguments = json.loads(call.arguments)
            if not isinstance(arguments, dict):
                raise ValueError(f"the arguments of a tool must be an object, got `{call.arguments}`")
            arguments = await maybe_await(
                self._complete_tool_args, call.name, arguments, messages, state, **keywords
            )
        except Exception as error:  # noqa: BLE001 - goes to the model, or ends the rollout
            return self._report_tool_error(error, ToolParseError, call)
        try:
            result = await maybe_await(self.call_tool, call.name, arguments, call.id)
        except Exception as error:  # noqa: BLE001 - goes to the model, or ends the rollout
            return self._report_tool_error(error, ToolCallError, call)
        return as_message(result, self.generation.form)

    def _complete_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> Any:
        """Return the arguments of a tool call. By default, these are the model's."""
        return tool_args

    def _report_tool_error(self, error: Exception, kind: type[Error], call: ToolCallDict) -> AnyMessage:
        """Return the message about an error for the model, or raise it if the rollout must end."""
        if isinstance(error, self.passed_errors):
            raise error
        if self._should_stop_for_error(error):
            raise kind(f"`{call.name}`: {type(error).__name__}: {error}") from error
        return self._make_tool_message(self.error_formatter(error), call.id)


class StatefulToolEnv(ToolEnv):
    """Tools with additional arguments from `update_tool_args`, which the model neither sees nor may pass."""

    def __init__(self, tools: Sequence[Callable[..., Any]] | None = None, **kwargs: Any) -> None:
        self.skipped_args: dict[str, list[str]] = {}
        super().__init__(tools=tools, **kwargs)

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a tool without some of its parameters."""
        self._offer_one_tool(tool, args_to_skip)
        self.skipped_args[function_name(tool)] = list(args_to_skip)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Remove a tool."""
        super().remove_tool(tool)
        self.skipped_args.pop(function_name(tool), None)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> Any:
        """Return the arguments of a tool call. Override it. May be async."""
        return tool_args

    def _complete_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: State, **kwargs: Any
    ) -> Any:
        return self.update_tool_args(tool_name, tool_args, messages, state, **kwargs)
