"""Environments of the classic API with tools of MCP servers. All rollouts share one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wander.envs.mcp.connection import MCPConnection, MCPServer, MCPToolFailed, require_mcp
from wander.envs.mcp.env import name_tools
from wander.errors import BoundaryError
from wander.loop_thread import LoopThread

from wander_compat.verifiers.decorators import teardown
from wander_compat.verifiers.envs.tool_env import ErrorFormatter, ToolEnv
from wander_compat.verifiers.errors import InfraError
from wander_compat.verifiers.messages.models import Tool


@dataclass
class MCPServerConfig:
    """Command that starts a server."""

    name: str
    command: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    description: str = ""


def _error_text(error: Exception) -> str:
    return f"Error: {error}"


class MCPEnv(ToolEnv):
    """Starts the servers when it is created, and offers their tools until the environment is closed.

    Raises `wander.errors.MissingExtra` if the library `mcp` is not installed, and `InfraError` if a server
    does not start.
    """

    outside = True
    """Servers may do anything, so rollouts are not declared deterministic."""
    passed_errors = (InfraError,)

    def __init__(
        self,
        mcp_servers: Sequence[MCPServerConfig | Mapping[str, Any]] = (),
        max_turns: int = 10,
        error_formatter: ErrorFormatter = _error_text,
        **kwargs: Any,
    ) -> None:
        require_mcp()
        configs = [server if isinstance(server, Mapping) else vars(server) for server in mcp_servers]
        self.mcp_servers = [MCPServerConfig(**config) for config in configs]
        super().__init__(tools=[], max_turns=max_turns, error_formatter=error_formatter, **kwargs)
        self._thread = LoopThread("mcp")
        self._connections = [
            MCPConnection(
                MCPServer(
                    server.name,
                    command=server.command,
                    args=tuple(server.args or ()),
                    env=dict(server.env or {}),
                ),
                own_session=False,
            )
            for server in self.mcp_servers
        ]
        try:
            self._thread.run(self._open())
        except BoundaryError as error:
            self._thread.close()
            raise InfraError(str(error)) from error
        self.mcp_tools = name_tools(self._connections, taken=set())
        functions = [tool.schema()["function"] for tool in self.mcp_tools.values()]
        self.tool_defs = [
            Tool(
                name=function["name"], description=function["description"], parameters=function["parameters"]
            )
            for function in functions
        ]
        for name in self.mcp_tools:
            self.tool_monitor_rubric.add_tool_metric(name)

    async def _open(self) -> None:
        for connection in self._connections:
            self._thread.open.push_async_callback(connection.close)
        await asyncio.gather(*(connection.open() for connection in self._connections))

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> Any:
        """Call a server's tool. The rollout ends only if the server is gone."""
        tool = self.mcp_tools.get(tool_name)
        if tool is None:
            return self._make_tool_message(f"Error: Tool '{tool_name}' not found", tool_call_id)
        calling = asyncio.run_coroutine_threadsafe(tool.call(tool_args), self._thread.loop)
        try:
            content = await asyncio.wrap_future(calling)
        except MCPToolFailed as error:
            content = self.error_formatter(error)
        except BoundaryError as error:
            raise InfraError(str(error)) from error
        return self._make_tool_message(content, tool_call_id)

    @teardown
    async def teardown_mcp_servers(self) -> None:
        """Stop the servers."""
        await asyncio.to_thread(self._thread.close)
