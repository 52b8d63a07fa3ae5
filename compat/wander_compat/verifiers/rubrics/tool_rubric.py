"""Rubrics that count turns and tool calls, with weight 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from wander_compat.verifiers.messages.conversion import as_tool_call, field_of
from wander_compat.verifiers.rubrics.rubric import Rubric, function_name
from wander_compat.verifiers.types import State


def calls_in(completion: Any) -> Counter[str]:
    """Count the tool calls of a completion by the tool's name."""
    if not isinstance(completion, list):
        return Counter()
    assistant_messages = [message for message in completion if field_of(message, "role") == "assistant"]
    calls = [
        as_tool_call(call) for message in assistant_messages for call in field_of(message, "tool_calls", [])
    ]
    return Counter(call.name for call in calls)


class MultiTurnMonitorRubric(Rubric):
    """Reports the number of turns of a rollout."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.num_turns)

    async def num_turns(self, state: State) -> float:
        """Return the number of model calls."""
        return float(len(state.get("trajectory") or []))


class ToolMonitorRubric(Rubric):
    """Reports the number of tool calls, in total and per tool."""

    def __init__(self, tool_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tool_names: list[str] = []
        self._counters: dict[str, Callable[..., Any]] = {}
        self.add_metric(self.total_tool_calls)
        for name in tool_names or []:
            self.add_tool_metric(name)

    def add_tool_metric(self, tool: Any) -> None:
        """Start reporting the calls of a tool."""
        name = tool if isinstance(tool, str) else function_name(tool)
        if name in self._counters:
            return
        self.tool_names.append(name)
        self._counters[name] = self.get_tool_call_count_func(name)
        self.add_metric(self._counters[name])

    def remove_tool_metric(self, tool: Any) -> None:
        """Stop reporting the calls of a tool."""
        name = tool if isinstance(tool, str) else function_name(tool)
        counter = self._counters.pop(name, None)
        if counter is None:
            return
        self.tool_names.remove(name)
        position = self.funcs.index(counter)
        del self.funcs[position], self.weights[position]

    async def total_tool_calls(self, completion: Any) -> float:
        """Return the number of tool calls."""
        return float(calls_in(completion).total())

    def get_tool_call_count_func(self, tool_name: str) -> Callable[..., Any]:
        """Return a metric that counts the calls of one tool."""

        async def count(completion: Any) -> float:
            return float(calls_in(completion)[tool_name])

        count.__name__ = f"{tool_name}_calls"
        return count


class ToolRubric(ToolMonitorRubric):
    """The same rubric in the first generations, created from functions instead of names."""

    def __init__(self, tools: Sequence[Callable[..., Any]] | None = None, **kwargs: Any) -> None:
        self.tools = list(tools or [])
        super().__init__([function_name(tool) for tool in self.tools], **kwargs)
