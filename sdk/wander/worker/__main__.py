"""`python -m wander.worker --socket PATH` (or `--fd N`): run one environment for the host that listens there.

Started by `wander.worker.host.environment`; not meant for people. Only `--listen HOST:PORT` is: it serves
hosts on other machines (`wander.worker.listener`). Standard output and error are the host's log file.
The process ends when the host closes the connection, says so, or dies: `--lifeline` is a pipe whose other end
only the host holds, watched from a thread, so that even an environment that never yields cannot outlive its
host.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from websockets.asyncio.client import connect, unix_connect

from wander.errors import ConfigError, WanderError
from wander.rollout.faults import without_keyboard
from wander.rollout.garbage import fewer_collections
from wander.worker.channel import OPTIONS, Channel
from wander.worker.child.service import Service, load
from wander.worker.note import NOTE_BYTES, NOTE_FILE
from wander.worker.protocol import Load

_LAST_SECONDS = 6.0
"""How long an orphaned worker may tear down before it is ended."""


def main() -> int:
    """Serve one host; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m wander.worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    host = parser.add_mutually_exclusive_group(required=True)
    host.add_argument("--socket", help="Unix socket on which the host listens")
    host.add_argument("--fd", type=int, help="inherited descriptor of a socket that is connected to the host")
    parser.add_argument("--note", type=int, help="with --fd: descriptor of the file of `note.py`")
    host.add_argument("--listen", metavar="HOST:PORT", help="serve hosts on other machines")
    parser.add_argument("--lifeline", type=int, help="descriptor of a pipe that closes when the host ends")
    add = parser.add_argument_group("with --listen").add_argument
    add("--token-file", type=Path, metavar="FILE", help="holds the token that hosts must give")
    add(
        "--environment",
        metavar="NAME|FOLDER",
        help="serve this one alone; a folder is served in no other way",
    )
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time (default: one a core)")
    add("--pass-env", action="append", default=[], metavar="NAME", help="variable the environment may see")
    add("--log", type=Path, default=Path("wander-worker.log"), help="takes what the environments print")
    given = parser.parse_args()
    if given.lifeline is not None:
        threading.Thread(target=_watch, args=(given.lifeline,), name="lifeline", daemon=True).start()
    if given.listen is not None:
        return _listen(given)
    with contextlib.suppress(ValueError):  # not the main thread
        # The terminal's Ctrl-C is the host's to handle. A handler, since an ignored signal would stay ignored
        # in the programs that the environment starts.
        signal.signal(signal.SIGINT, lambda *_: None)
    without_keyboard()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    service, asked = loop.run_until_complete(_greet(given.socket, given.fd, given.lifeline, given.note))
    if asked is None:
        return 1
    # Outside of the running loop, since environments are known to call `asyncio.run` while they load.
    try:
        environment = load(asked)
    except WanderError as error:
        loop.run_until_complete(service.refuse(error))
        return 1
    asyncio.set_event_loop(loop)
    # What is loaded now stays: no collection need look through it again.
    gc.collect()
    gc.freeze()
    with fewer_collections():
        closed = loop.run_until_complete(service.serve(environment, end=_end_group))
    if not closed:
        _end_group()
    return 0


async def _greet(
    path: str | None, fd: int | None, lifeline: int | None, note: int | None
) -> tuple[Service, Load | None]:
    uri, options = "ws://localhost/", {"proxy": None, **OPTIONS}
    if fd is None:
        connection = await unix_connect(path, uri, **options)
    else:
        connection = await connect(uri, sock=socket.socket(fileno=fd), **options)
    own = connection.transport.get_extra_info("socket").fileno()
    kept = (own,) if lifeline is None else (own, lifeline)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)

    def cut_off() -> None:
        """Keep a forked child from speaking to the host, and from keeping its connections open."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in kept:
            # The number stays taken, so that nothing else comes to stand under it.
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=cut_off)
    if path is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        note = os.open(Path(path).with_name(NOTE_FILE), flags, 0o600)
        os.ftruncate(note, NOTE_BYTES)
    elif note is not None:
        os.set_inheritable(note, False)
    service = Service(Channel(connection), note)
    return service, await service.greet()


def _watch(lifeline: int) -> None:
    """Wait until the host is gone; then give the worker a little time and end it with all it started."""
    while os.read(lifeline, 1):
        pass
    time.sleep(_LAST_SECONDS)
    _end_group()


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):  # it ends below in any case
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _listen(given: argparse.Namespace) -> int:
    """Serve hosts until a signal; return the exit status."""
    from wander.worker.listener import (  # costs what a single worker does not need
        ListenerOptions,
        serve_hosts,
    )
    from wander.worker.remote.address import parse_listen, parse_socket, read_token

    try:
        socket_path = parse_socket(given.listen)
        host, port = parse_listen(given.listen) if socket_path is None else ("", 0)
        options = ListenerOptions(
            host,
            port,
            token=None if given.token_file is None else read_token(given.token_file),
            log_path=given.log.expanduser().resolve(),
            serves=given.environment,
            most=given.workers,
            environ=tuple(given.pass_env),
            socket=socket_path,
        )
        asyncio.run(serve_hosts(options, _say))
    except ConfigError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"hint: {error.hint}")
        return 2
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
