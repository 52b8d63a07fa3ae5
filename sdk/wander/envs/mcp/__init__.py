"""Environments whose tools come from MCP servers."""

from wander.envs.mcp.connection import MCPServer
from wander.envs.mcp.env import MCPEnv

__all__ = ["MCPEnv", "MCPServer"]
