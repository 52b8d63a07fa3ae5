"""Tool environments whose tools need something of the rollout that the model must not give."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from wander.envs.tool.env import ToolEnv
from wander.envs.tool.schema import FunctionTool, Tool
from wander.types import Messages, State


class StatefulToolEnv(ToolEnv):
    """A tool environment that fills in arguments from its state.

    Parameters named in `args_to_skip` are left out of the schema, refused when the model gives them, and
    filled in by `update_tool_args`.
    """

    kind: ClassVar[str] = "stateful_tool"

    def add_tool(self, tool: Callable[..., Any] | Tool, args_to_skip: Iterable[str] = ()) -> None:
        """Offer one more tool without the parameters in `args_to_skip`.

        Raises `ConfigError` when the name is taken or a parameter does not exist.
        """
        self._offer(tool if isinstance(tool, Tool) else FunctionTool(tool, args_to_skip=args_to_skip))

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State
    ) -> Any:
        """Return the arguments with which a tool is called: the model's, validated, and those of the state.

        May be async. `messages` is the conversation that ends with the model's call.
        """
