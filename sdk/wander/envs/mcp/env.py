"""Environments whose model uses tools of MCP servers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from wander.dataset import ProceduralRows, Rows
from wander.envs.mcp.connection import MCPConnection, MCPServer, MCPTool, require_mcp
from wander.envs.tool.env import ToolEnv
from wander.envs.tool.schema import Tool
from wander.errors import ConfigError, EnvironmentFault
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import cleanup, teardown, wait_for_every
from wander.types import Example, Messages, State

Server = MCPServer | Mapping[str, Any] | str
"""Specification of a server. See `MCPServer.of`."""
Session = Literal["rollout", "environment"]
"""Scope of a session with the servers: one per rollout, for servers that keep state, or one for all
rollouts."""


class MCPEnv(ToolEnv):
    """A tool environment with tools from MCP servers, over stdio or streamable HTTP.

    - `mcp_servers`: `MCPServer` objects, dictionaries of their fields, URLs or command lines. A single one is
      accepted too.
    - `session`: with `"rollout"`, every rollout has its own sessions (and over stdio, its own processes),
      which servers with state need. With `"environment"`, all rollouts share them.
    - `tools`: Python functions to offer in addition.

    If two servers, or a server and a function, have a tool of the same name, the tool name is prefixed with
    the server's name. Errors reported by a server are returned to the model. If a server is gone, the rollout
    fails as a failure of the environment, with the end of the server's log. Servers are outside observations,
    so the environment is not deterministic unless its author passes `deterministic=True`. Needs the extra
    `mcp`.
    """

    kind: ClassVar[str] = "mcp"

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        *,
        mcp_servers: Server | Sequence[Server],
        session: Session = "rollout",
        deterministic: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, eval_dataset, deterministic=deterministic, **kwargs)
        require_mcp()
        if session not in ("rollout", "environment"):
            raise ConfigError(f'`session` must be "rollout" or "environment", got `{session!r}`')
        servers = [mcp_servers] if isinstance(mcp_servers, MCPServer | Mapping | str) else mcp_servers
        self.servers = [MCPServer.of(server) for server in servers]
        names = Counter(server.name for server in self.servers)
        repeated = [name for name, count in names.items() if count > 1]
        if repeated or not self.servers:
            raise ConfigError(
                f"two MCP servers have the name `{repeated[0]}`" if repeated else "`mcp_servers` is empty"
            )
        self.session: Session = session
        self._shared: list[MCPConnection] = []
        self._opening: asyncio.Lock | None = None

    def offered(self, state: State) -> Mapping[str, Tool]:
        """Return the functions and the servers' tools by name."""
        tools: Mapping[str, Tool] = state["mcp_tools"]
        return tools

    async def play(self, state: State, model: ModelCalls) -> None:
        """Open the sessions of the rollout, then let the model and the tools take turns.

        The tools are available when `setup_state` runs, so it may call them: `self.offered(state)["reset"]`.
        """
        if self.session == "rollout":
            connections: list[MCPConnection] = []
            state["mcp_connections"] = connections
            await self._open_into(connections)
        else:
            self._opening = self._opening or asyncio.Lock()
            async with self._opening:
                await self._open_into(self._shared)
                connections = list(self._shared)
        state["mcp_tools"] = {**self._tools, **name_tools(connections, taken=set(self._tools))}
        await super().play(state, model)

    async def _play_gold(self, examples: Sequence[Example]) -> list[Messages]:
        """Play the examples to show. They have their own event loop, so shared sessions must end with it."""
        try:
            return await super()._play_gold(examples)
        finally:
            self._opening = None
            await self.close_shared_sessions()

    @cleanup(priority=-100)
    async def close_sessions(self, state: State) -> None:
        """End the rollout's own sessions after the author's cleanups, which may still use them."""
        await _close_all(state.pop("mcp_connections", []))

    @teardown(priority=-100)
    async def close_shared_sessions(self) -> None:
        """End the sessions shared by rollouts."""
        shared, self._shared = self._shared, []
        await _close_all(shared)

    async def _open_into(self, connections: list[MCPConnection]) -> None:
        """Concurrently open a session with every server without a live session in the list."""
        dead = [connection for connection in connections if not connection.alive]
        for connection in dead:
            connections.remove(connection)
        await _close_all(dead)
        connected = {connection.server.name for connection in connections}
        missing = [server for server in self.servers if server.name not in connected]
        opened = [MCPConnection(server, own_session=self.session == "rollout") for server in missing]
        connections += opened
        connections.sort(key=lambda connection: self.servers.index(connection.server))
        await wait_for_every(connection.open() for connection in opened)


def name_tools(connections: Sequence[MCPConnection], taken: set[str]) -> dict[str, Tool]:
    """Return the tools of several servers under unique names that endpoints accept."""
    offered = [
        (connection, tool)
        for connection in connections
        for tool in connection.tools
        if connection.server.tools is None or tool.name in connection.server.tools
    ]
    for connection in connections:
        available = {tool.name for tool in connection.tools}
        missing = [name for name in connection.server.tools or () if name not in available]
        if missing:
            raise EnvironmentFault(
                f"MCP server `{connection.server.name}` has no tool `{missing[0]}`",
                hint=f"its tools are {', '.join(sorted(available)) or 'none'}",
            )
    counts = Counter(_to_tool_name(tool.name) for _, tool in offered)
    named: dict[str, Tool] = {}
    for connection, tool in offered:
        name = _to_tool_name(tool.name)
        if counts[name] > 1 or name in taken:
            name = _to_tool_name(f"{connection.server.name}_{tool.name}")
        while name in named or name in taken:
            name = _to_tool_name(f"{name[:62]}_2")
        named[name] = MCPTool(connection, tool, name)
    return named


def _to_tool_name(name: str) -> str:
    """Convert a name to the characters and length that endpoints accept."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "tool"


async def _close_all(connections: Sequence[MCPConnection]) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))
