"""A session with an MCP server, and its tools in the form that environments offer."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shlex
import ssl
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast
from urllib.parse import urlsplit

from wander.envs.tool.results import encodable
from wander.envs.tool.schema import Tool, ToolCallError
from wander.errors import ConfigError, EnvironmentFault, require_extra

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ServerTool

LOG_TAIL = 1500
"""Characters of a server's standard error that are quoted in a failure."""
CLOSE_SECONDS = 10.0
"""Seconds that a server gets to shut down. The client itself gives a process about 6 seconds."""
MAX_PAGES = 100
"""Maximum number of pages in a server's tool list, so that an endless list cannot block a rollout."""

LAUNCHERS = r"uvx?|npx|node|python[0-9.]*|run|tool"
"""Words of a command line that launch a server but are not its name."""
LISTS = ("args", "pass_env", "tools")


@dataclass(frozen=True)
class MCPServer:
    """Location of an MCP server: a command to start and use over stdio, or the URL of a running server.

    A started server gets only a few environment variables (PATH, HOME, USER...), those in `env`, and those
    named in `pass_env`.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Names of environment variables to pass on, such as secrets that the environment declares."""
    cwd: str | None = None
    url: str | None = None
    """URL of a streamable HTTP endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] | None = None
    """Names of the tools to offer. None offers all."""
    protocol: str | None = None
    """`auto`, `legacy` (the handshake of 2025 and before), or a version. The default is `legacy` if a rollout
    has its own session over HTTP, because later versions are stateless, and otherwise `auto`."""
    start_seconds: float = 60.0
    call_seconds: float | None = 60.0
    """Maximum seconds of a call. The model receives an error for a longer one."""

    def __post_init__(self) -> None:
        if not self.name or (self.command is None) == (self.url is None):
            raise ConfigError(
                f"an MCP server needs a name and either `command` or `url`, got `{self.name}`",
                hint='pass `MCPServer("files", command="mcp-server-files")` or `MCPServer("web", url="http://...")`',
            )
        wrong = [name for name in LISTS if isinstance(getattr(self, name), str)]
        if wrong:
            raise ConfigError(f"`{wrong[0]}` of MCP server `{self.name}` must be a list of strings")

    @classmethod
    def of(cls, given: MCPServer | Mapping[str, Any] | str) -> MCPServer:
        """Create a server from a server, a dictionary of its fields, a URL or a command line.

        Raises `ConfigError` for anything else.
        """
        if isinstance(given, MCPServer):
            return given
        if isinstance(given, str):
            return cls._of_text(given)
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(given) - known - {"description"})
        if unknown:
            raise ConfigError(
                f"an MCP server has no field `{unknown[0]}`",
                hint=f"its fields are {', '.join(sorted(known))}",
            )
        values = {name: field_value for name, field_value in given.items() if name in known}
        lists = {name: tuple(values[name]) for name in LISTS if isinstance(values.get(name), list)}
        return cls(**{"name": "", **values, **lists})

    @classmethod
    def _of_text(cls, text: str) -> MCPServer:
        """Create the server for a URL, named after its host, or a command line, named after its program."""
        if text.startswith(("http://", "https://")):
            return cls(urlsplit(text).hostname or "", url=text)
        try:
            command, *args = shlex.split(text)
        except ValueError as error:
            raise ConfigError(
                f"`{text}` is neither the URL nor the command line of an MCP server ({error})",
                hint="pass `http://...`, or a command as in a shell: `uvx mcp-server-time`",
            ) from error
        words = [word for word in (command, *args) if not word.startswith("-")]
        programs = [word for word in words if not re.fullmatch(LAUNCHERS, Path(word).name)]
        return cls(Path((programs or words)[0]).stem, command=command, args=tuple(args))


class MCPToolFailed(ToolCallError):
    """The server reported that a call failed. The model receives the message."""


class MCPConnection:
    """A session kept open by a separate task, because the same task must enter and leave it."""

    def __init__(self, server: MCPServer, *, own_session: bool) -> None:
        self.server = server
        self.tools: list[ServerTool] = []
        self._protocol = server.protocol or ("legacy" if own_session and server.url else "auto")
        self._log: TextIO | None = None
        self._client: Client | None = None
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the session is still open."""
        return self._client is not None and self._holding is not None and not self._holding.done()

    async def open(self) -> None:
        """Start the server or connect to it, and list its tools. Raises `EnvironmentFault`."""
        if self.server.command is not None:
            # A file instead of a pipe, which a verbose server would fill, because nobody reads it.
            self._log = cast(TextIO, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))  # noqa: SIM115
        self._holding = asyncio.create_task(self._hold(), name=f"mcp {self.server.name}")
        try:
            ready = asyncio.create_task(self._ready.wait())
            await asyncio.wait(
                {ready, self._holding},
                timeout=self.server.start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            ready.cancel()
            if not self._ready.is_set():
                reason = f"it did not start within {self.server.start_seconds:g} seconds"
                if self._holding.done():
                    error = self._holding.exception()
                    reason = f"it did not start ({_innermost(error)})" if error else "it did not start"
                raise self._explain_loss(reason)
        except BaseException:
            await self.close()
            raise

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool and return the content of its message.

        Raises `MCPToolFailed` if the server reports an error, and `EnvironmentFault` if the server is gone.
        """
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not self.alive:
            raise self._explain_loss("its session is over")
        assert self._client is not None
        assert self._holding is not None
        calling = asyncio.create_task(
            self._client.call_tool(name, dict(arguments), read_timeout_seconds=self.server.call_seconds)
        )
        try:
            await asyncio.wait({calling, self._holding}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                error = None if self._holding.cancelled() else self._holding.exception()
                raise self._explain_loss(
                    f"its session ended ({_innermost(error)})" if error else "its session ended"
                )
            return message_content(calling.result())
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._client = None
                raise self._explain_loss("it closed the connection") from error
            raise MCPToolFailed(str(error)) from error
        finally:
            calling.cancel()

    async def close(self) -> None:
        """Leave the session, and stop the server's process if it was started here."""
        self._client = None
        self._closing.set()
        if self._holding is not None:
            # Shielded, so that the process ends even if the caller is canceled repeatedly.
            await asyncio.shield(self._wait_until_left(self._holding))
        if self._log is not None:
            self._log.close()

    async def _wait_until_left(self, holding: asyncio.Task[None]) -> None:
        """Wait until the session is left. Cancel it if it has not started, or takes too long."""
        if not self._ready.is_set():
            holding.cancel()
        _, pending = await asyncio.wait({holding}, timeout=CLOSE_SECONDS)
        if pending:
            holding.cancel()
            await asyncio.wait({holding})
        if not holding.cancelled():
            holding.exception()  # retrieved so that asyncio does not log it

    async def _hold(self) -> None:
        """Keep the session open until `close` is called."""
        from mcp import Client

        server = self.server
        async with AsyncExitStack() as stack:
            if server.url is not None:
                import httpx2
                from mcp.client.streamable_http import streamable_http_client

                timeout = httpx2.Timeout(
                    server.start_seconds, read=None
                )  # each call has its own read timeout
                http = await stack.enter_async_context(
                    httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout, verify=_tls())
                )
                transport: Any = streamable_http_client(server.url, http_client=http)
            else:
                from mcp import StdioServerParameters
                from mcp.client.stdio import stdio_client

                passed = {name: os.environ[name] for name in server.pass_env if name in os.environ}
                parameters = StdioServerParameters(
                    command=str(server.command),
                    args=list(server.args),
                    env={**passed, **server.env},
                    cwd=server.cwd,
                )
                assert self._log is not None
                transport = stdio_client(parameters, errlog=self._log)
            client = await stack.enter_async_context(Client(transport, mode=self._protocol))
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                self.tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            self._client = client
            self._ready.set()
            await self._closing.wait()

    def _explain_loss(self, reason: str) -> EnvironmentFault:
        output = ""
        if self._log is not None and not self._log.closed:
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), 4 * LOG_TAIL, max(0, size - 4 * LOG_TAIL))
            if log := data.decode("utf-8", "replace").strip()[-LOG_TAIL:]:
                output = f"; its last output: {log}"
        return EnvironmentFault(
            f"MCP server `{self.server.name}` is not available: {reason}{output}",
            hint="run the server manually to see its error",
            retryable=True,
        )


class MCPTool(Tool):
    """A tool of an MCP server, under the name that the model sees."""

    def __init__(self, connection: MCPConnection, tool: ServerTool, name: str) -> None:
        self.name = name
        self.connection = connection
        self.tool = tool

    def schema(self) -> dict[str, Any]:
        """Return the server's schema in OpenAI's format."""
        parameters = {"properties": {}, **self.tool.input_schema}
        described = {"name": self.name, "description": self.tool.description or "", "parameters": parameters}
        return {"type": "function", "function": described}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged, because the server checks them."""
        return dict(arguments)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the tool. Raises `MCPToolFailed` and `EnvironmentFault`."""
        return await self.connection.call(self.tool.name, arguments)


def require_mcp() -> None:
    """Raise `MissingExtra` unless the official client is installed."""
    with require_extra("mcp", needed_for="an environment with MCP servers"):
        import httpx2  # noqa: F401
        import mcp.client.streamable_http  # noqa: F401 - seconds the first time, and never within a rollout


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the shared TLS context. Reading the certificates takes a tenth of a second each time."""
    return ssl.create_default_context()


def message_content(result: CallToolResult) -> str | list[dict[str, Any]]:
    """Return a call's result as message content: a string if it is only text, otherwise content parts.

    Raises `MCPToolFailed` with the text of the result if it is an error.
    """
    parts = [_content_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [_text_part(json.dumps(result.structured_content, ensure_ascii=False))]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if result.is_error:
        raise MCPToolFailed(encodable("\n".join(texts)) or "the server gave no reason")
    if len(texts) == len(parts):
        return encodable("\n".join(texts))
    return parts


def _content_part(block: Any) -> dict[str, Any]:
    """Convert a content block of MCP to a content part of a chat message."""
    if block.type == "text":
        return _text_part(block.text)
    if block.type == "image":
        url = f"data:{block.mime_type};base64,{block.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if block.type == "audio":
        audio = {"data": block.data, "format": block.mime_type.rpartition("/")[2]}
        return {"type": "input_audio", "input_audio": audio}
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return _text_part(text if text is not None else f"[binary resource {block.resource.uri}]")
    return _text_part(f"[{block.type} {getattr(block, 'uri', '')}]")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": encodable(text)}


def _innermost(error: BaseException) -> str:
    """Describe the first cause inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
