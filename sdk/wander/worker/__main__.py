"""`python -m wander.worker --socket PATH` (or `--fd N`): run one environment for the host that listens there.

`wander.worker.host.environment` starts this program. People only use it with `--listen HOST:PORT`, which
serves hosts on other machines (`wander.worker.listener`). Standard output and error go to the host's log
file. The process exits when the host closes the connection, asks it to exit, or dies: `--lifeline` is a pipe
whose other end only the host holds. A thread watches it, so even an environment that never yields cannot
outlive its host.
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
from wander.system.descriptors import raise_file_limit
from wander.worker.channel import OPTIONS, Channel
from wander.worker.child.service import Service, load
from wander.worker.note import NOTE_BYTES, NOTE_FILE
from wander.worker.protocol import Load

_LAST_SECONDS = 6.0
"""Seconds that an orphaned worker gets for its teardown."""


def main() -> int:
    """Serve one host and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m wander.worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    host = parser.add_mutually_exclusive_group(required=True)
    host.add_argument("--socket", help="Unix socket that the host listens on")
    host.add_argument("--fd", type=int, help="inherited descriptor of a socket connected to the host")
    parser.add_argument("--note", type=int, help="with --fd: descriptor of the shared note file")
    host.add_argument("--listen", metavar="HOST:PORT", help="serve hosts on other machines")
    parser.add_argument("--lifeline", type=int, help="descriptor of a pipe that closes when the host exits")
    add = parser.add_argument_group("with --listen").add_argument
    add("--token-file", type=Path, metavar="FILE", help="file with the token that hosts must send")
    add(
        "--environment",
        metavar="NAME|FOLDER",
        help="environment to serve (default: any installed one); required to serve a folder",
    )
    add(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="maximum number of processes (default: one per core)",
    )
    add(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable to pass to the environment",
    )
    add("--log", type=Path, default=Path("wander-worker.log"), help="file for the output of the environments")
    options = parser.parse_args()
    raise_file_limit()
    if options.lifeline is not None:
        threading.Thread(target=_watch, args=(options.lifeline,), name="lifeline", daemon=True).start()
    if options.listen is not None:
        return _listen(options)
    with contextlib.suppress(ValueError):  # not the main thread
        # The host handles the terminal's Ctrl-C. This is a handler because an ignored signal would also be
        # ignored in the programs that the environment starts.
        signal.signal(signal.SIGINT, lambda *_: None)
    without_keyboard()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    service, request = loop.run_until_complete(
        _greet(options.socket, options.fd, options.lifeline, options.note)
    )
    if request is None:
        return 1
    # Outside of the running loop, because environments may call `asyncio.run` while they load.
    try:
        environment = load(request)
    except WanderError as error:
        loop.run_until_complete(service.refuse(error))
        return 1
    asyncio.set_event_loop(loop)
    # Everything loaded by now stays in memory, so exclude it from later garbage collections.
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
    connection_fd = connection.transport.get_extra_info("socket").fileno()
    private = (connection_fd,) if lifeline is None else (connection_fd, lifeline)
    for descriptor in private:
        os.set_inheritable(descriptor, False)

    def cut_off() -> None:
        """Disconnect a forked child, so that it cannot send messages or keep connections open."""
        null_device = os.open(os.devnull, os.O_RDWR)
        for descriptor in private:
            # The descriptor's number stays taken, so that no other file can get it.
            with contextlib.suppress(OSError):
                os.dup2(null_device, descriptor, inheritable=False)
        os.close(null_device)

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
    """Wait until the host is gone, give the worker some time, and end it with everything that it started."""
    while os.read(lifeline, 1):
        pass
    time.sleep(_LAST_SECONDS)
    _end_group()


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):  # this process exits below in any case
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _listen(arguments: argparse.Namespace) -> int:
    """Serve hosts until a signal arrives, and return the exit status."""
    from wander.worker.listener import (  # costs what a single worker does not need
        ListenerOptions,
        serve_hosts,
    )
    from wander.worker.remote.address import parse_listen, parse_socket, read_token

    try:
        socket_path = parse_socket(arguments.listen)
        host, port = parse_listen(arguments.listen) if socket_path is None else ("", 0)
        options = ListenerOptions(
            host,
            port,
            token=None if arguments.token_file is None else read_token(arguments.token_file),
            log_path=arguments.log.expanduser().resolve(),
            serves=arguments.environment,
            most=arguments.workers,
            environ=tuple(arguments.pass_env),
            socket=socket_path,
        )
        asyncio.run(serve_hosts(options, _say))
    except ConfigError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"\nhint: {error.hint}")
        return 2
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
