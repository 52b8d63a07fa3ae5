"""Models of evaluations: clients with shared limits per endpoint, and one server at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wander_client.models.reference import (
    asks_endpoint,
    is_local_model,
    open_model,
    require_model,
    require_servable,
    servable,
)
from wander_client.models.server import ServeChoice, serve
from wander_client.names import is_scripted

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.clients.rate_limit import CallLimiter
    from wander.models.chat import ChatFormat

    from wander_client.context import Invocation
    from wander_client.environments.location import Location
    from wander_client.errors import ClientError

CACHE_FILE = "responses.sqlite"


@dataclass(frozen=True)
class ModelChoice:
    """The model of an evaluation, with its options."""

    model: str
    base_url: str | None
    key_variable: str
    call_timeout: float | None
    device: str | None
    cache: bool
    serve: ServeChoice | None
    """Server to start for the model; without one, an endpoint is called or the model is loaded here."""
    players: tuple[tuple[str, str], ...] = ()
    """Models of the other players, by player."""
    send_reasoning: bool | None = None
    """Whether an endpoint gets the model's earlier reasoning; None means only if the endpoint sent it."""
    merge_system: bool = True
    """Whether the system prompt is merged into the first user message if the model has no system role."""
    template_date: date | None = None
    """Date that the chat template of a local model shows; None means today."""

    def open(self, context: Invocation, spec: str, location: Location | None) -> Client:
        """Return the client for a model's name."""
        return open_model(
            context,
            spec,
            base_url=self._url_of(spec),
            key_variable=self.key_variable,
            location=location,
            device=self.device,
            timeout=self.call_timeout,
            send_reasoning=self.send_reasoning,
            merge_system=self.merge_system,
            template_date=self.template_date,
        )

    def require(self) -> None:
        """Raise the errors of the choice that can be found without loading or calling the model."""
        for _, spec in self.players:
            require_model(spec, self._url_of(spec), self.key_variable)
        if self.serve is None:
            require_model(self.model, self.base_url, self.key_variable)
        else:
            require_servable(self.model)

    @contextlib.asynccontextmanager
    async def join(
        self, context: Invocation, client: Client, location: Location | None
    ) -> AsyncIterator[Client]:
        """Yield the model's client together with those of the other players. Players are models in this
        process, models at the same endpoint, or functions in the environment's package, which run where the
        environment runs.
        """
        if not self.players:
            yield client
            return
        from wander.clients.players import PlayersClient

        async with contextlib.AsyncExitStack() as stack:
            player_clients: dict[str, Client | str] = {}
            for player, spec in self.players:
                player_client = self.open(context, spec, location)
                stack.push_async_callback(player_client.close)
                player_clients[player] = player_client
                if is_scripted(spec):
                    await player_client.check()
                    player_clients[player] = spec
            yield PlayersClient(client, player_clients)

    def _url_of(self, spec: str) -> str | None:
        return self.base_url if asks_endpoint(spec) else None


class ModelPool:
    """A pool of clients for evaluations that may play at the same time.

    If `concurrency` is given, clients of the same endpoint share this limit. A local or served model uses the
    whole machine, so its evaluations play one after the other. Evaluations of the loaded model come first.
    """

    def __init__(self, context: Invocation, concurrency: int | None = None) -> None:
        self._context = context
        self._concurrency = concurrency
        self._limiters: dict[str, CallLimiter] = {}
        self._machine = _Machine()
        self._loaded: tuple[Any, Any] | None = None
        """The key of the loaded model, with its client or server."""
        self._stack = contextlib.AsyncExitStack()

    def require(self, choice: ModelChoice) -> None:
        """Raise the errors of a choice before anything is loaded."""
        choice.require()

    @contextlib.asynccontextmanager
    async def client(
        self, choice: ModelChoice, location: Location | None, *, name: str, log_path: Path
    ) -> AsyncIterator[Client]:
        """Yield the client of an evaluation. `name` distinguishes its rollouts from those of other
        evaluations. `location` is needed only for models and players in the environment's package.
        """
        async with contextlib.AsyncExitStack() as stack:
            if choice.serve is not None:
                key: Any = (choice.model, choice.serve, choice.template_date, choice.merge_system)
                await stack.enter_async_context(self._machine.fill_with(key))
                client: Client = await self._serve(key, choice, log_path)
                stack.push_async_callback(client.close)
            elif choice.base_url is None and is_local_model(choice.model):
                key = ("local", choice.model, choice.device, choice.template_date, choice.merge_system)
                await stack.enter_async_context(self._machine.fill_with(key))
                client = await self._load(key, choice)
            else:
                client = choice.open(self._context, choice.model, location)
                stack.push_async_callback(client.close)
            self._share(client, name)
            if choice.cache and client.limiter is not None:
                from wander.clients.cache import CachingClient, ResponseCache

                cache = stack.enter_context(
                    contextlib.closing(ResponseCache(self._context.settings.cache_dir / CACHE_FILE))
                )
                client = CachingClient(client, cache)
            elif choice.cache:
                self._context.output.warn(f"`cache` has no effect: `{choice.model}` does not use an endpoint")
            yield await stack.enter_async_context(choice.join(self._context, client, location))

    def why_ended(self) -> ClientError | None:
        """Return why the running server stopped, or None if it is running or was never started."""
        server = None if self._loaded is None else self._loaded[1]
        return server[0].why_ended() if isinstance(server, tuple) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the loaded model or stop the server."""
        self._loaded = None
        await self._stack.aclose()

    def _share(self, client: Client, name: str) -> None:
        if self._concurrency is None or client.limiter is None:
            return
        from wander.clients.rate_limit import CallLimiter, SharedLimiter

        address = str(client.describe().get("base_url"))
        limiter = self._limiters.setdefault(address, CallLimiter(self._concurrency))
        client.limiter = SharedLimiter(limiter, name)

    async def _load(self, key: tuple[Any, ...], choice: ModelChoice) -> Client:
        if self._loaded is None or self._loaded[0] != key:
            await self._unload()
            client = choice.open(self._context, choice.model, None)
            self._stack.push_async_callback(client.close)
            self._loaded = (key, client)
        loaded: Client = self._loaded[1]
        return loaded

    async def _serve(self, key: tuple[Any, ...], choice: ModelChoice, log_path: Path) -> Client:
        from wander.clients.openai import ServedClient
        from wander.models.loading import weights_digest

        assert choice.serve is not None
        if self._loaded is None or self._loaded[0] != key:
            await self._unload()
            model = await asyncio.to_thread(servable, choice.model)
            template = await asyncio.to_thread(ServedTemplate.of, model, choice)
            server = await self._stack.enter_async_context(
                serve(self._context, model, choice.serve, log_path=log_path, template=template.pinned)
            )
            # There is no digest if the server downloads the model itself.
            digest = await asyncio.to_thread(
                lambda: weights_digest(Path(model)) if Path(model).is_dir() else None
            )
            self._loaded = (key, (server, digest, template))
        server, digest, template = self._loaded[1]
        # If the server parses tool calls, its own format applies.
        own = None if "--enable-auto-tool-choice" in choice.serve.arguments else template.form
        return ServedClient(
            *(server.model, server.base_url, server.described | template.described),
            *(digest, choice.call_timeout, own),
            send_reasoning=choice.send_reasoning,
            merge_system=choice.merge_system,
        )

    async def _unload(self) -> None:
        await self.__aexit__()
        self._stack = contextlib.AsyncExitStack()


@dataclass(frozen=True)
class ServedTemplate:
    """The chat template of a served model."""

    form: Callable[[], ChatFormat]
    """Loads the format that parses the model's turns."""
    pinned: str | None
    """Template for the server, because the original reads the clock; None keeps the server's own template."""
    described: dict[str, Any]
    """Fields for the manifest."""

    @classmethod
    def of(cls, model: str, choice: ModelChoice) -> ServedTemplate:
        """Return the template of a checkpoint folder, or of a repository that the server downloads."""
        from wander.errors import WanderError
        from wander.models.chat import ChatOptions
        from wander.models.loading import load_chat_format

        assert choice.serve is not None
        options = ChatOptions(choice.template_date, choice.merge_system)
        load = cache(lambda: load_chat_format(model, options))
        own = any(word.partition("=")[0] == "--chat-template" for word in choice.serve.arguments)
        if own or not Path(model).is_dir():
            return cls(load, None, {})
        try:
            form = load()
        except WanderError:  # such as a folder without a tokenizer, which the server reports
            return cls(load, None, {})
        if not form.shows_date:
            return cls(load, None, {})
        shown = {"template_date": form.describe()["template_date"]}
        return cls(load, form.template if form.pins_date else None, shown)


class GivenModel(ModelPool):
    """A pool with a client that the caller created. `close` chooses whether the pool closes it."""

    def __init__(self, context: Invocation, client: Client, *, close: bool) -> None:
        super().__init__(context)
        self._given = client
        if close:
            self._stack.push_async_callback(client.close)

    def require(self, choice: ModelChoice) -> None:
        """Accept any model name, because the client already exists."""

    @contextlib.asynccontextmanager
    async def client(
        self, choice: ModelChoice, location: Location | None, *, name: str, log_path: Path
    ) -> AsyncIterator[Client]:
        """Yield the client together with those of the other players."""
        async with choice.join(self._context, self._given, location) as client:
            yield client


class _Machine:
    """A queue for the machine. Evaluations of the loaded model come before the others."""

    def __init__(self) -> None:
        self._in_use = False
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def fill_with(self, key: Any) -> AsyncIterator[None]:
        """Wait for the machine, and keep it until the block ends. `key` identifies the model."""
        if self._in_use:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((key, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on(key)
                raise
        self._in_use = True
        try:
            yield
        finally:
            self._pass_on(key)

    def _pass_on(self, loaded: Any) -> None:
        self._waiting = [waiter for waiter in self._waiting if not waiter[1].done()]
        self._in_use = bool(self._waiting)
        if self._waiting:
            index = next((index for index, (key, _) in enumerate(self._waiting) if key == loaded), 0)
            self._waiting.pop(index)[1].set_result(None)
