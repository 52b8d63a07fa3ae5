"""A client that answers from a script: a list of replies, or a function of the request.

It is used for tests, for demonstrations without a model, and for scripted players in environment packages.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ConfigError, LoadError, ModelError, did_you_mean
from wander.modules import import_file
from wander.types import Message, Usage

Reply = str | Message | ModelResponse
Script = Callable[[ModelRequest], Reply | Awaitable[Reply]]


class ScriptedClient(Client):
    """Answers from a script, deterministically.

    Every rollout reads a list from its start, and gets `ModelError` when the list is exhausted. A function,
    sync or async, receives the request. A reply is a text, an assistant message, or a whole response.
    """

    def __init__(self, replies: Sequence[Reply] | Script, model: str = "scripted") -> None:
        if isinstance(replies, str):
            replies = [replies]
        self.model = model
        self.replies = replies
        self._positions: dict[str, int] = {}

    def begin(self, rollout_id: str) -> None:
        """Start the rollout at the first reply."""
        self._positions[rollout_id] = 0

    def end(self, rollout_id: str) -> None:
        """Forget the rollout's position."""
        self._positions.pop(rollout_id, None)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next reply; raises `ModelError` if the list is exhausted or the function raises."""
        if callable(self.replies):
            try:
                reply: Any = self.replies(request)
                return _response(await reply if inspect.isawaitable(reply) else reply)
            except ModelError:
                raise
            except Exception as error:
                message = f"the scripted function raised `{type(error).__name__}: {error}`"
                raise ModelError(message) from error
        position = self._positions.get(request.rollout_id, 0)
        if position >= len(self.replies):
            raise ModelError(
                f"the script has {len(self.replies)} replies and rollout `{request.rollout_id}` "
                f"asked for number {position + 1}"
            )
        self._positions[request.rollout_id] = position + 1
        return _response(self.replies[position])


def scripted_client_from_spec(spec: str, package: str | None = None) -> ScriptedClient:
    """Return a client that runs the function named by a spec; the spec becomes the client's model name.

    `scripted:package.module:function` runs a function that maps a request to a reply.
    `scripted:package.module:factory?key=value&...` calls the factory with these arguments (JSON values, or
    text) and runs the function that it returns. The module may also be the path of a `.py` file, and the
    prefix `scripted:` is optional. If `package` is given, only functions of that package are allowed. Raises
    `ConfigError` and `LoadError`.
    """
    target, is_factory, query = spec.removeprefix("scripted:").partition("?")
    module_name, _, function_name = target.rpartition(":")
    if not module_name or not function_name:
        raise ConfigError(
            f"`{target or spec}` does not name a function",
            hint="write it as `scripted:package.module:function`",
        )
    own = package and package.partition(".")[0]
    if own and module_name.partition(".")[0] != own:
        raise ConfigError(
            f"`{spec}` is not a function of `{own}`: a player's script must be in the environment's package",
            hint=f"write it as `scripted:{own}.module:function`",
        )
    if module_name.endswith(".py"):
        module = import_file(Path(module_name).expanduser().resolve())
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            raise LoadError(
                f"there is no module `{missing}`"
                + ("" if missing == module_name else f", which `{module_name}` imports"),
                hint="install the package where `wander` runs, or name the `.py` file by its path"
                if missing == module_name.partition(".")[0]
                else None,
            ) from error
        except Exception as error:
            raise LoadError(f"importing `{module_name}` raised `{type(error).__name__}: {error}`") from error
    script = getattr(module, function_name, None)
    if not callable(script) or (own and str(getattr(script, "__module__", "")).partition(".")[0] != own):
        raise LoadError(
            f"`{module_name}` has no function `{function_name}`",
            hint=did_you_mean(
                function_name, [name for name, value in vars(module).items() if callable(value)]
            ),
        )
    if function_name == "load_environment":
        raise ConfigError(
            f"`{spec}` is not a player: it creates the environment",
            hint="name a function that takes a request and returns a reply",
        )
    if is_factory:
        arguments: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        for key, value in arguments.items():
            with contextlib.suppress(ValueError):  # an argument that is not JSON stays a text
                arguments[key] = json.loads(value)
        try:
            script = script(**arguments)
        except Exception as error:
            raise ConfigError(f"`{spec}` raised `{type(error).__name__}: {error}`") from error
        if not callable(script):
            raise ConfigError(f"`{spec}` returned a `{type(script).__name__}`, not a function of the request")
    _require_player(spec, script, made=bool(is_factory))
    return ScriptedClient(script, model=f"scripted:{spec.removeprefix('scripted:')}")


def _require_player(spec: str, script: Callable[..., Any], *, made: bool) -> None:
    """Raise `ConfigError` if the function cannot be called with a request as its only argument."""
    with contextlib.suppress(ValueError):  # some functions that are not written in Python lack a signature
        try:
            inspect.signature(script).bind(None)
        except TypeError as error:
            raise ConfigError(
                f"`{spec}` {'does not return' if made else 'is not'} a function of a request: {error}",
                hint="a player is a function that takes a request and returns a reply; name a function that "
                f"creates a player with its arguments: `{spec.partition('?')[0]}?key=value`",
            ) from error


def _written(message: Message) -> ModelResponse:
    usage = Usage()
    return ModelResponse.assemble(
        message=message,
        finish_reason="stop",
        usage=usage,
        tokens=None,
        left_out=None,
        seconds=None,
        cached=False,
    )


def _response(reply: Any) -> ModelResponse:
    """Return a reply in any of its forms as a whole response."""
    if isinstance(reply, ModelResponse):
        return reply.model_copy(deep=True)
    if isinstance(reply, str):
        return _written({"role": "assistant", "content": reply})
    if isinstance(reply, dict):
        return _written({"role": "assistant", **reply})
    hint = "name a function that creates players with its arguments, or with `?`: `scripted:MODULE:FUNCTION?`"
    raise ModelError(
        f"not a player: a scripted reply must be text, a message or a response, got `{type(reply).__name__}`",
        hint=hint if callable(reply) else None,
    )
