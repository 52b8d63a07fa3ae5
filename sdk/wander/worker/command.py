"""The command line of a listening worker."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from wander.errors import ConfigError
from wander.worker.address import parse_listen, read_token

_USAGE = 2


def listen_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that belong to `--listen`."""
    add = group.add_argument
    add("--token-file", type=Path, metavar="FILE", help="holds the token that hosts must give")
    add(
        "--environment",
        metavar="NAME|FOLDER",
        help="serve this one alone; a folder is served in no other way",
    )
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time (default: one a core)")
    add("--pass-env", action="append", default=[], metavar="NAME", help="variable the environment may see")
    add("--log", type=Path, default=Path("wander-worker.log"), help="takes what the environments print")


def listened(given: argparse.Namespace) -> int:
    """Serve hosts until a signal; return the exit status."""
    from wander.worker.listener import ListenerOptions, listen

    try:
        host, port = parse_listen(given.listen)
        options = ListenerOptions(
            host,
            port,
            token=None if given.token_file is None else read_token(given.token_file),
            log_path=given.log.expanduser().resolve(),
            serves=given.environment,
            most=given.workers,
            environ=tuple(given.pass_env),
        )
        asyncio.run(listen(options, _say))
    except ConfigError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"hint: {error.hint}")
        return _USAGE
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
