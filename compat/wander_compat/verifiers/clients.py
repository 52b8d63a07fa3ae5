"""Clients that answer the model calls of a classic environment.

A host gives every rollout its own `Client` (`wander_compat.adapters.host_client`). Code that runs
environments without a host passes an OpenAI client, a configuration, or its own client.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from wander.clients.http_errors import kind_of_refusal

from wander_compat.verifiers.errors import ModelError, OverlongPromptError
from wander_compat.verifiers.messages.conversion import wire_messages
from wander_compat.verifiers.messages.models import Response
from wander_compat.verifiers.types import ClientConfig, response_of


class Client:
    """Answers model calls. Subclasses override `get_response`, or the five steps that it consists of."""

    def __init__(self, client_or_config: Any = None) -> None:
        self.logger = logging.getLogger(f"verifiers.clients.{type(self).__name__}")
        self._config = client_or_config if isinstance(client_or_config, ClientConfig) else None
        configured = self._config is not None
        self._client = self.setup_client(client_or_config) if configured else client_or_config

    @property
    def client(self) -> Any:
        """The endpoint's native client, if there is one."""
        return self._client

    def setup_client(self, config: ClientConfig) -> Any:
        """Return the endpoint's native client for a configuration. The default is an `AsyncOpenAI`."""
        return setup_openai_client(config)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """Convert messages to the endpoint's format. Returns them with additional arguments."""
        return wire_messages(messages), {}

    async def to_native_tool(self, tool: Any) -> Any:
        """Convert a tool definition to the endpoint's format."""
        return tool.openai()

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: dict[str, Any], tools: Any = None, **kwargs: Any
    ) -> Any:
        """Call the endpoint."""
        arguments = {**sampling_args, **({"tools": tools} if tools else {}), **kwargs}
        return await self._client.chat.completions.create(model=model, messages=prompt, **arguments)

    async def raise_from_native_response(self, response: Any) -> None:
        """Raise `ModelError` for a response that is not a completion."""
        if response is None or not getattr(response, "choices", None):
            raise ModelError("the endpoint's response contains no completion")

    async def from_native_response(self, response: Any) -> Response:
        """Convert the endpoint's response to the common format."""
        return response_of(response)

    async def get_response(
        self, prompt: Any, model: str, sampling_args: dict[str, Any], tools: Any = None, **kwargs: Any
    ) -> Response:
        """Return the completion for a prompt. Raises only `Error`s."""
        messages, extra = await self.to_native_prompt(prompt)
        native_tools = [await self.to_native_tool(tool) for tool in tools or []]
        try:
            answer = await self.get_native_response(
                messages, model, sampling_args, native_tools or None, **extra
            )
        except Exception as error:
            raise model_error(error) from error
        await self.raise_from_native_response(answer)
        return await self.from_native_response(answer)

    async def close(self) -> None:
        """Close the connections."""
        if hasattr(self._client, "close"):
            await self._client.close()


class OpenAIChatCompletionsClient(Client):
    """Calls an OpenAI-compatible endpoint."""


def setup_openai_client(config: ClientConfig) -> Any:
    """Return an `AsyncOpenAI` for a configuration. Without a key in the named variable, it sends `EMPTY`."""
    from openai import AsyncOpenAI

    config = resolve_client_config(config)
    return AsyncOpenAI(
        base_url=config.api_base_url,
        api_key=os.environ.get(config.api_key_var) or "EMPTY",
        timeout=config.timeout,
        max_retries=config.max_retries,
        default_headers=config.extra_headers or None,
    )


def resolve_client_configs(config: ClientConfig) -> list[ClientConfig]:
    """Return one configuration per endpoint: its own settings, and the shared ones of the whole."""
    shared = config.model_dump(exclude={"endpoint_configs"})
    endpoints = [endpoint.model_dump(exclude_unset=True) for endpoint in config.endpoint_configs]
    return [ClientConfig.model_validate({**shared, **endpoint}) for endpoint in endpoints or [{}]]


def resolve_client_config(config: ClientConfig) -> ClientConfig:
    """Return the configuration of the endpoint selected by `client_idx`."""
    configs = resolve_client_configs(config)
    return configs[config.client_idx % len(configs)]


def load_prime_config() -> dict[str, Any]:
    """Return the content of `~/.prime/config.json`, or an empty dictionary if it cannot be read."""
    try:
        config = json.loads((Path.home() / ".prime" / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return config if isinstance(config, dict) else {}


def resolve_client(client: Any) -> Client:
    """Return a `Client` for a client, an OpenAI client or a configuration."""
    if isinstance(client, Client):
        return client
    if isinstance(client, ClientConfig) or hasattr(client, "chat"):
        return OpenAIChatCompletionsClient(client)
    if hasattr(client, "get_response"):
        kept: Client = client
        return kept
    raise TypeError(f"a `{type(client).__name__}` is not a client")


def model_error(error: Exception) -> Exception:
    """Convert an exception of a model call to the error that ends the rollout."""
    if isinstance(error, ModelError | OverlongPromptError):
        return error
    status = getattr(error, "status_code", None)
    text = str(error)
    if isinstance(status, int) and kind_of_refusal(status, text) == "overflow":
        return OverlongPromptError(text)
    return ModelError(f"{type(error).__name__}: {text}")
