"""The models of one or several evaluations: clients that share an endpoint's bound, one server at a time."""

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
    """A model as an evaluation asks for it."""

    model: str
    base_url: str | None
    key_variable: str
    call_timeout: float | None
    device: str | None
    cache: bool
    serve: ServeChoice | None
    """What it is served with meanwhile; None asks an endpoint, or loads it in this process."""
    players: tuple[tuple[str, str], ...] = ()
    """Who plays beside it, by player."""
    send_reasoning: bool | None = None
    """Whether an endpoint gets the model's earlier reasoning back; None: if it sent it."""
    merge_system: bool = True
    """Whether the system prompt becomes part of the first user message if the model has no system role."""
    template_date: date | None = None
    """The date that the chat template of a local model shows; None means today's."""

    def open(self, context: Invocation, spec: str, location: Location | None) -> Client:
        """Return the client that a model's name means."""
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
        """Raise what is wrong with it, as far as that can be known without loading or asking it."""
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
        """Yield the model's client with those of who plays beside it: models in this process, others at the
        model's endpoint, and functions of the environment's package, which play where it runs.
        """
        if not self.players:
            yield client
            return
        from wander.clients.players import PlayersClient

        async with contextlib.AsyncExitStack() as stack:
            others: dict[str, Client | str] = {}
            for player, spec in self.players:
                other = self.open(context, spec, location)
                stack.push_async_callback(other.close)
                others[player] = other
                if is_scripted(spec):
                    await other.check()
                    others[player] = spec
            yield PlayersClient(client, others)

    def _url_of(self, spec: str) -> str | None:
        return self.base_url if asks_endpoint(spec) else None


class ModelPool:
    """Opens the clients of evaluations that may play at the same time.

    Clients of one endpoint share the bound on its calls where `concurrency` is given. A model in this
    process, or one that is served, fills the machine: such evaluations play one after the other, those of
    the model that is loaded before the others.
    """

    def __init__(self, context: Invocation, concurrency: int | None = None) -> None:
        self._context = context
        self._concurrency = concurrency
        self._limiters: dict[str, CallLimiter] = {}
        self._machine = _Machine()
        self._held: tuple[Any, Any] | None = None
        """What fills the machine: what it is, and the client or the server."""
        self._stack = contextlib.AsyncExitStack()

    def require(self, choice: ModelChoice) -> None:
        """Raise what is wrong with a choice before anything is loaded."""
        choice.require()

    @contextlib.asynccontextmanager
    async def client(
        self, choice: ModelChoice, location: Location | None, *, name: str, log_path: Path
    ) -> AsyncIterator[Client]:
        """Yield the client of an evaluation; `name` keeps its rollouts apart from those of others.

        Only models and players of an environment's package need its location.
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
                self._context.output.warn(f"`cache` keeps answers of endpoints; `{choice.model}` has none")
            yield await stack.enter_async_context(choice.join(self._context, client, location))

    def why_ended(self) -> ClientError | None:
        """Tell why the server that is held does not answer any more; None while it runs, or without one."""
        server = None if self._held is None else self._held[1]
        return server[0].why_ended() if isinstance(server, tuple) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End what is left: the model in this process, or the server."""
        self._held = None
        await self._stack.aclose()

    def _share(self, client: Client, name: str) -> None:
        if self._concurrency is None or client.limiter is None:
            return
        from wander.clients.rate_limit import CallLimiter, SharedLimiter

        address = str(client.describe().get("base_url"))
        whole = self._limiters.setdefault(address, CallLimiter(self._concurrency))
        client.limiter = SharedLimiter(whole, name)

    async def _load(self, key: tuple[Any, ...], choice: ModelChoice) -> Client:
        if self._held is None or self._held[0] != key:
            await self._let_go()
            client = choice.open(self._context, choice.model, None)
            self._stack.push_async_callback(client.close)
            self._held = (key, client)
        loaded: Client = self._held[1]
        return loaded

    async def _serve(self, key: tuple[Any, ...], choice: ModelChoice, log_path: Path) -> Client:
        from wander.clients.openai import ServedClient
        from wander.models.loading import weights_digest

        assert choice.serve is not None
        if self._held is None or self._held[0] != key:
            await self._let_go()
            model = await asyncio.to_thread(servable, choice.model)
            template = await asyncio.to_thread(ServedTemplate.of, model, choice)
            server = await self._stack.enter_async_context(
                serve(self._context, model, choice.serve, log_path=log_path, template=template.pinned)
            )
            # A model that the server fetches itself has no weights here.
            digest = await asyncio.to_thread(
                lambda: weights_digest(Path(model)) if Path(model).is_dir() else None
            )
            self._held = (key, (server, digest, template))
        server, digest, template = self._held[1]
        # Who has the server read calls wants them as it reads them.
        own = None if "--enable-auto-tool-choice" in choice.serve.arguments else template.form
        return ServedClient(
            *(server.model, server.base_url, server.described | template.described),
            *(digest, choice.call_timeout, own),
            send_reasoning=choice.send_reasoning,
            merge_system=choice.merge_system,
        )

    async def _let_go(self) -> None:
        await self.__aexit__()
        self._stack = contextlib.AsyncExitStack()


@dataclass(frozen=True)
class ServedTemplate:
    """The chat template of a model that is served."""

    form: Callable[[], ChatFormat]
    """Reads the model's turns."""
    pinned: str | None
    """The template that the server is given, as its own would ask the clock; None leaves it its own."""
    described: dict[str, Any]
    """What the manifest says about it."""

    @classmethod
    def of(cls, model: str, choice: ModelChoice) -> ServedTemplate:
        """Return the template of a checkpoint's folder, or of a repository that the server fetches."""
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
        except WanderError:  # a folder without a tokenizer; the server says what it thinks of that
            return cls(load, None, {})
        if not form.shows_date:
            return cls(load, None, {})
        shown = {"template_date": form.describe()["template_date"]}
        return cls(load, form.template if form.pins_date else None, shown)


class GivenModel(ModelPool):
    """A client that a program has made, in place of one that a name means; `close` says who closes it."""

    def __init__(self, context: Invocation, client: Client, *, close: bool) -> None:
        super().__init__(context)
        self._given = client
        if close:
            self._stack.push_async_callback(client.close)

    def require(self, choice: ModelChoice) -> None:
        """Take any name for the model: its client is there."""

    @contextlib.asynccontextmanager
    async def client(
        self, choice: ModelChoice, location: Location | None, *, name: str, log_path: Path
    ) -> AsyncIterator[Client]:
        """Yield the client, with those of who plays beside it."""
        async with choice.join(self._context, self._given, location) as client:
            yield client


class _Machine:
    """Lets one evaluation at a time have the machine: of those that wait, one of the model that is loaded."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def fill_with(self, key: Any) -> AsyncIterator[None]:
        """Have the machine while the block runs, with the model that `key` tells."""
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((key, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on(key)
                raise
        self._taken = True
        try:
            yield
        finally:
            self._pass_on(key)

    def _pass_on(self, loaded: Any) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        self._taken = bool(self._waiting)
        if self._waiting:
            place = next((place for place, (key, _) in enumerate(self._waiting) if key == loaded), 0)
            self._waiting.pop(place)[1].set_result(None)
