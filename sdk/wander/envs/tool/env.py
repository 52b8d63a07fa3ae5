"""Environments whose model calls functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from wander.dataset import ProceduralRows, Rows
from wander.envs.metrics import report_metric
from wander.envs.multi_turn import MultiTurnEnv
from wander.envs.tool.calls import ToolCall, read_calls, tool_calls, with_calls
from wander.envs.tool.results import encodable, tool_content
from wander.envs.tool.schema import FunctionTool, Tool, ToolCallError, UnknownTool
from wander.errors import BoundaryError, ConfigError, EnvironmentFault, ToolError
from wander.rollout.activity import at
from wander.rollout.faults import describe_fault, is_fault
from wander.rollout.hooks import call_hook, stop, wait_for_every
from wander.types import Message, Messages, State


def format_error(error: BaseException) -> str:
    """Return the text about a failed call for the model: the reason, and the exception's type if useful."""
    if isinstance(error, ToolCallError):
        return f"error: {error}"
    return f"error: {type(error).__name__}: {error}"


class ToolEnv(MultiTurnEnv):
    """An environment whose model may call Python functions until it answers without a call.

    - `tools`: functions, sync or async. The schema comes from the signature and docstring (`tool_schema`).
      The return value becomes the tool message: text, a list of content parts, or any JSON value.
    - `stop_errors`: exception types that end the rollout as a failure of the tool. All other errors of a
      call, including malformed JSON and unknown tools, are returned to the model through `error_formatter`,
      and the rollout continues.
    - `concurrent_calls`: whether to run the calls of one message concurrently. The results always keep the
      order of the calls. By default, calls run one after another, which tools with state need to be
      deterministic.

    Metrics: `total_tool_calls`, `tool_errors`, and `<tool>_calls` for every tool.
    """

    kind: ClassVar[str] = "tool"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        max_turns: int = 10,
        error_formatter: Callable[[BaseException], str] = format_error,
        stop_errors: Sequence[type[BaseException]] = (),
        concurrent_calls: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, eval_dataset, max_turns=max_turns, **kwargs)
        self.error_formatter = error_formatter
        self.stop_errors = tuple(stop_errors)
        self.concurrent_calls = concurrent_calls
        self._tools: dict[str, Tool] = {}
        report_metric(self.rubric, total_tool_calls)
        report_metric(self.rubric, tool_errors)
        for tool in tools:
            self.add_tool(tool)

    def add_tool(self, tool: Callable[..., Any] | Tool) -> None:
        """Add a tool. Raises `ConfigError` if its name is taken."""
        tool = tool if isinstance(tool, Tool) else FunctionTool(tool)
        if tool.name in self._tools:
            raise ConfigError(
                f"there already is a tool `{tool.name}`",
                hint="tool names must be unique: rename one of the two",
            )
        self._tools[tool.name] = tool
        report_metric(self.rubric, _calls_metric(tool.name))

    def remove_tool(self, tool: Callable[..., Any] | Tool | str) -> None:
        """Remove a tool, given as the function or by name. Raises `ConfigError` if it does not exist."""
        for name, offered in self._tools.items():
            if tool in (name, offered, getattr(offered, "function", None)):
                del self._tools[name]
                return
        tool_name = tool if isinstance(tool, str) else getattr(tool, "__name__", tool)
        raise ConfigError(
            f"there is no tool `{tool_name}` to remove",
            hint=f"the tools are {', '.join(f'`{name}`' for name in self._tools) or 'none'}",
        )

    def offered(self, state: State) -> Mapping[str, Tool]:
        """Return the tools of this rollout by name."""
        return self._tools

    def tools(self, state: State) -> list[dict[str, Any]] | None:
        """Return the schemas of the offered tools, in the order of their addition."""
        return [tool.schema() for tool in self.offered(state).values()] or None

    @stop(priority=10)
    def no_tools_called(self, state: State) -> bool:
        """Hold if the model answered without calling a tool."""
        message = state.completion[-1] if state.completion else {}
        return message.get("role") == "assistant" and not tool_calls(message)

    async def env_response(self, messages: Messages, state: State) -> Messages:
        """Answer every call of the last message with a tool message, in the order of the calls."""
        calls = read_calls(state.completion[-1], len(state.turns) - 1, messages[:-1])
        state.completion[-1] = messages[-1] = with_calls(state.completion[-1], calls)
        if not self.concurrent_calls:
            return [await self._answer_call(call, messages, state) for call in calls]
        return await wait_for_every(self._answer_call(call, messages, state) for call in calls)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State
    ) -> Any:
        """Return the final arguments of a tool call. May be async."""
        return tool_args

    async def call_tool(self, tool: Tool, arguments: dict[str, Any], state: State) -> Any:
        """Call a tool with its final arguments, and return the content of the tool message."""
        return tool_content(await tool.call(arguments), tool.name)

    async def _answer_call(self, call: ToolCall, messages: Messages, state: State) -> Message:
        """Return the tool message for a call. Raises `ToolError` only for `stop_errors`."""
        try:
            offered = self.offered(state)
            call_arguments = call.checked_arguments()
            if call.name not in offered:
                known = ", ".join(offered) or "none"
                raise UnknownTool(f"there is no tool `{call.name}`; the tools are {known}")
            tool = offered[call.name]
            checked = tool.checked(call_arguments)
            arguments = await call_hook(self.update_tool_args, tool.name, checked, messages, state)
            if not isinstance(arguments, dict):
                kind = type(arguments).__name__
                raise EnvironmentFault(f"`update_tool_args` must return the arguments, got `{kind}`")
            with at(tool.name):
                content = await self.call_tool(tool, arguments, state)
        except BoundaryError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            if isinstance(error, self.stop_errors):
                raise ToolError(describe_fault(error, call.name)) from error
            state["public"]["tool_errors"] = state["public"].get("tool_errors", 0) + 1
            content = encodable(self.error_formatter(error))
        return {"role": "tool", "tool_call_id": call.call_id, "content": content}


class StatefulToolEnv(ToolEnv):
    """A tool environment that adds arguments from its state.

    Parameters named in `args_to_skip` are not in the schema, are rejected if the model passes them, and are
    filled in by `update_tool_args`.
    """

    kind: ClassVar[str] = "stateful_tool"

    def add_tool(self, tool: Callable[..., Any] | Tool, args_to_skip: Iterable[str] = ()) -> None:
        """Add a tool without the parameters in `args_to_skip`.

        Raises `ConfigError` if the name is taken or a parameter does not exist.
        """
        super().add_tool(tool if isinstance(tool, Tool) else FunctionTool(tool, args_to_skip=args_to_skip))

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State
    ) -> Any:
        """Return the final arguments of a tool call: the validated ones of the model, and those from the
        state.

        May be async. `messages` is the conversation up to the model's call.
        """


def total_tool_calls(completion: Messages) -> float:
    """Count the model's calls, including failed ones."""
    return float(sum(len(tool_calls(message)) for message in completion))


def tool_errors(state: State) -> float:
    """Count the calls that were returned to the model as errors."""
    return float(state["public"].get("tool_errors", 0))


def _calls_metric(tool: str) -> Callable[[Messages], float]:
    def count(completion: Messages) -> float:
        calls = (call for message in completion for call in tool_calls(message))
        functions = (call.get("function") for call in calls if isinstance(call, dict))
        return float(
            sum(isinstance(function, dict) and function.get("name") == tool for function in functions)
        )

    count.__name__ = f"{tool}_calls"
    return count
