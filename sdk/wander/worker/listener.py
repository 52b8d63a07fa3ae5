"""`python -m wander.worker --listen HOST:PORT`, or `unix:///PATH`: workers for hosts on other machines.

Each connection gets its own worker: this process starts it, forwards all messages in both directions,
and ends it with everything that it started when the host closes the connection or vanishes. So several hosts,
and several workers of one host, can be served at the same time, up to a limit. This process does not run any
environment code, so its event loop responds to the hosts' heartbeats no matter how busy the workers are.

A host must send the token, which is compared before anything else is read. Messages are not encrypted. Across
a shared network, forward a Unix socket or a loopback port with `ssh -L` (docs/workers.md#workers).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State

from wander.errors import ConfigError, LoadError, WanderError
from wander.wire.package_index import is_loopback
from wander.worker.channel import OPTIONS, send_frame
from wander.worker.host.link import LocalLink, WorkerOptions
from wander.worker.host.session import CLOSE_SECONDS, EXIT_SECONDS
from wander.worker.protocol import PROTOCOL, Fault, LastWords, Load, LoadFailed, WorkerRefused, to_worker
from wander.worker.remote.heartbeat import HOST_PING_SECONDS, HOST_SILENT_PINGS, heartbeat, keep_alive

_REASON_BYTES = 120
"""Maximum size of a close reason. A websocket's close frame holds at most 123 bytes."""
_WHERE_LETTERS = 30
_MOST_WAITING = 65_536
"""Maximum number of a host's messages that its worker has not read yet. No host has more rollouts in
flight."""


@dataclass(frozen=True)
class ListenerOptions:
    """Address to listen on, access rules, and the environment to serve."""

    host: str
    port: int
    """Port. 0 means any free port."""
    token: str | None
    log_path: Path
    """File for all output of the environments."""
    serves: str | None = None
    """Name of an installed environment, or a project folder or Python file, which every worker loads. With
    None, the host chooses among the environments installed here."""
    most: int = os.cpu_count() or 1
    """Maximum number of workers at a time."""
    environ: tuple[str, ...] = ()
    """Names of this process's environment variables to pass to the environment."""
    socket: str | None = None
    """Path of a Unix socket to listen on instead of host and port. Only its owner may connect."""

    def __post_init__(self) -> None:
        if self.token is None and self.socket is None and not is_loopback(self.host):
            raise ConfigError(
                f"`{self.host}` can be reached from other machines, so a token is needed",
                hint="create a token with `openssl rand -hex 32 > token` and add `--token-file token`",
            )
        if self.most < 1:
            raise ConfigError(f"`--workers` must be at least 1, not {self.most}")


class Listener:
    """Serves hosts until `stop` is set."""

    def __init__(self, options: ListenerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._busy: set[ServerConnection] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen for hosts. Raises `ConfigError` if that is not possible."""
        options = self._options
        # This class reports a refused connection on a single line.
        quiet = logging.getLogger("wander.worker.listener")
        quiet.setLevel(logging.CRITICAL)
        listen = partial(serve, host=options.host, port=options.port)
        place = f"{options.host}:{options.port}"
        if options.socket is not None:
            listen, place = partial(unix_serve, path=options.socket), options.socket
        before = os.umask(0o177)  # the socket must belong to its owner only from its first moment
        try:
            server = await listen(
                self._serve,
                process_request=self._admit,
                # Web pages in a browser must not connect to this machine.
                origins=[None],
                logger=quiet,
                # `_pass_on` limits the queue. If reading stopped, the host's heartbeats would not be
                # answered.
                max_queue=None,
                **OPTIONS,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on `{place}`: {error.strerror or error}") from error
        finally:
            os.umask(before)
        async with server:
            self._say(f"listening on {_place(server)}")
            await stop.wait()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return a refusal for a wrong token or if all workers are in use. None admits the connection."""
        given = " ".join(request.headers.get_all("Authorization")).removeprefix("Bearer ")
        token = self._options.token
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            problem = "no token was given" if not given else "the token is wrong"
            self._say(f"refused {_peer(connection)}: {problem}")
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"{problem}\n")
        self._busy = {host for host in self._busy if host.state is not State.CLOSED}
        if len(self._busy) >= self._options.most:
            busy = f"all {self._options.most} workers are in use"
            self._say(f"refused {_peer(connection)}: {busy}")
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{busy}\n")
        self._busy.add(connection)
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        """Serve one host with one worker, from its connection to its end."""
        keep_alive(connection)
        heart = asyncio.create_task(heartbeat(connection, HOST_PING_SECONDS, HOST_SILENT_PINGS))
        self._say(f"{_peer(connection)} connected")
        ending = "was stopped"
        try:
            ending = await self._worker(connection)
        except WanderError as error:
            self._say(f"{_peer(connection)}: {error}")
            ending = str(error)
        finally:
            heart.cancel()
            code = CloseCode.NORMAL_CLOSURE if ending == "" else CloseCode.INTERNAL_ERROR
            await connection.close(code, ending.encode()[:_REASON_BYTES].decode("utf-8", "ignore"))
            self._busy.discard(connection)
            self._say(f"{_peer(connection)} left" + (f": its worker {ending}" if ending else ""))

    async def _worker(self, host: ServerConnection) -> str:
        """Run a worker for the host. Return how it ended by itself, or "" if the host ended it."""
        options = self._options
        started = WorkerOptions(None, Load(), options.environ, options.log_path, startup_timeout=0.0)
        link = await LocalLink.open(started)
        passing = asyncio.create_task(self._pass_on(host, link))
        exited = asyncio.create_task(link.process.wait())
        gone = asyncio.create_task(host.wait_closed())
        try:
            await asyncio.wait({exited, gone, passing}, return_when=asyncio.FIRST_COMPLETED)
            # The worker's last message may still be on its way.
            await asyncio.wait({passing}, timeout=1.0)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, gone):
                task.cancel()
            await asyncio.gather(passing, gone, return_exceptions=True)
            # A worker without a connection tears its environment down if it still can.
            closing = asyncio.create_task(link.disconnect())
            await link.process.end(grace=EXIT_SECONDS if exited.done() else CLOSE_SECONDS)
            words = link.last_words()
            await asyncio.gather(closing, exited, return_exceptions=True)
            await link.close()
        if host.close_code is not None or link.process.returncode == 0:
            return ""
        words = words or LastWords(play=None, seconds=0.0)
        details = {"ending": link.process.ending(), "where": words.where[:_WHERE_LETTERS]}
        return words.model_copy(update=details).model_dump_json(exclude_defaults=True)

    async def _pass_on(self, host: ServerConnection, link: LocalLink) -> None:
        """Forward messages in both directions until one side closes its connection."""
        worker = await link.wait_for_connection()
        waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)

        async def from_the_host() -> None:
            first = await host.recv(decode=False)
            answer = self._answer_load(first)
            if isinstance(answer, LoadFailed):
                await host.send(answer.model_dump_json().encode())
                return
            await worker.send(answer)
            while True:
                frame = await host.recv(decode=False)
                if waiting.full():
                    raise ConfigError(f"the host is {_MOST_WAITING:,} messages ahead of its worker")
                waiting.put_nowait(frame)

        async def to_the_worker() -> None:
            while True:
                await send_frame(worker, await waiting.get())

        async def to_the_host() -> None:
            while True:
                await send_frame(host, await worker.recv(decode=False))

        directions = (from_the_host(), to_the_worker(), to_the_host())
        relays = [asyncio.create_task(way) for way in directions]
        try:
            done, _ = await asyncio.wait(relays, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with contextlib.suppress(ConnectionClosed):  # the normal end of a relay
                    task.result()
        finally:
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    def _answer_load(self, line: bytes) -> bytes | LoadFailed:
        """Return the host's first message with the served environment filled in, or why it is refused."""
        try:
            request = to_worker.validate_json(line)
        except ValidationError:
            reason = f"the host sent an invalid message for protocol {PROTOCOL}, which this worker uses"
            raise LoadError(reason, hint="install the same wander-sdk on both machines") from None
        if isinstance(request, WorkerRefused):
            return line
        if not isinstance(request, Load):
            raise LoadError("the host did not start with a load request")
        served, wanted = self._options.serves, request.target
        folder = Path(request.path).name if request.path else None
        place = Path(served or "").expanduser()
        update: dict[str, Any] = {"path": None}
        if served is None:
            if wanted is None:
                return _failure(
                    "folders are not sent to other machines",
                    hint="start the worker there with the folder: `wander worker FOLDER --listen ...`",
                )
        elif place.exists() and (place.is_dir() or place.suffix == ".py"):
            # A host that does not name a folder gets the served folder. A requested name must match, because
            # runs record it.
            if wanted or folder not in (None, place.resolve().name):
                reason = f"this worker serves the folder `{place.name}`, not `{wanted or folder}`"
                return _failure(reason, hint="request the folder that it serves")
            update = {"target": None, "path": str(place.resolve())}
        elif wanted is None and folder is not None:
            reason = f"this worker serves `{served}`, not the folder `{folder}`"
            return _failure(
                reason, hint="request the environment that it serves, or start the worker with the folder"
            )
        elif wanted is not None and _plain(wanted) != _plain(served):
            reason = f"this worker serves `{served}`, not `{wanted}`"
            return _failure(reason, hint="request the environment that it serves")
        else:
            update["target"] = wanted or served
        return request.model_copy(update=update).model_dump_json().encode()


async def serve_hosts(options: ListenerOptions, say: Callable[[str], None]) -> None:
    """Serve hosts until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Listener(options, say).run(stop)


def _failure(message: str, hint: str) -> LoadFailed:
    return LoadFailed(fault=Fault(type="LoadError", message=message, hint=hint))


def _plain(name: str) -> str:
    """Return an environment's name without owner and version, normalized as in a package index."""
    return name.rpartition("/")[2].partition("@")[0].replace("_", "-").replace(".", "-").lower()


def _peer(connection: ServerConnection) -> str:
    host, port, *_ = connection.remote_address or ("a process here", 0)
    return f"{host}:{port}" if port else host


def _place(server: Server) -> str:
    name = next(iter(server.sockets)).getsockname()
    if isinstance(name, str):
        return f"unix://{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"tcp://{host}:{name[1]}"
