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
from typing import Any

from websockets.asyncio.client import unix_connect

from wander.errors import WanderError
from wander.rollout.garbage import fewer_collections
from wander.worker.channel import OPTIONS, Channel
from wander.worker.child.guard import keep_from_children, take_no_interrupts
from wander.worker.child.service import Service, load
from wander.worker.command import listen_options, listened
from wander.worker.protocol import Load
from wander.worker.running import RUNNING, new_note

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
    parser.add_argument("--note", type=int, help="with --fd: descriptor of the file of `running.py`")
    host.add_argument("--listen", metavar="HOST:PORT", help="serve hosts on other machines")
    parser.add_argument("--lifeline", type=int, help="descriptor of a pipe that closes when the host ends")
    listen_options(parser.add_argument_group("with --listen"))
    given = parser.parse_args()
    if given.listen is not None:
        return listened(given)
    if given.lifeline is not None:
        threading.Thread(target=_watch, args=(given.lifeline,), name="lifeline", daemon=True).start()
    take_no_interrupts()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    service, asked = loop.run_until_complete(_greeted(given.socket, given.fd, given.lifeline, given.note))
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


async def _greeted(
    path: str | None, fd: int | None, lifeline: int | None, note: int | None
) -> tuple[Service, Load | None]:
    where: dict[str, Any] = {"path": path} if fd is None else {"sock": socket.socket(fileno=fd)}
    connection = await unix_connect(uri="ws://localhost/", proxy=None, **where, **OPTIONS)
    own = connection.transport.get_extra_info("socket").fileno()
    keep_from_children([own] if lifeline is None else [own, lifeline])
    if path is not None:
        note = new_note(Path(path).with_name(RUNNING))
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
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
