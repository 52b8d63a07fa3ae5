"""`wander worker`: serve an environment from this machine to runs on other machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument, Option


def worker(
    environment: Annotated[str, Argument(help="owner/name[@version], or ./folder")],
    listen: Annotated[
        str, Option(metavar="HOST:PORT|unix:///PATH", help="address to listen on")
    ] = "127.0.0.1:7100",
    token_file: Annotated[Path | None, Option(help="file with the token that callers must send")] = None,
    workers: Annotated[
        int | None, Option(min=1, help="concurrent processes  [default: one per core]")
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        Option("--pass-env", help="environment variable to pass to the environment; repeatable"),
    ] = None,
    log: Annotated[Path | None, Option(help="log file for the output of the environment")] = None,
) -> None:
    """Serve an environment from this machine to `wander eval` or `wander train` on another machine.

    \b
    openssl rand -hex 32 > token
    wander worker admin/tictactoe --listen 0.0.0.0:7100 --token-file token

    \b
    # then, on the machine with the model and its API key, and with a copy of the token file:
    wander eval admin/tictactoe -m NAME --worker tcp://HOST:7100 --worker-token-file token

    Each connection gets its own process, and Ctrl-C stops all of them. Messages are not encrypted. On a
    shared network, listen on a socket that only you can open (`--listen unix:///PATH`) or on 127.0.0.1, and
    forward it with `ssh -L`.
    """
    from wander.worker.remote.address import parse_listen, parse_socket

    from wander_client.environments.location import default_log, locate
    from wander_client.environments.sandbox import warn_unconfined

    if current().settings.sandbox:
        raise UsageError(
            f"the setting `sandbox` is on, but `wander worker` cannot run `{environment}` in a sandbox",
            hint="run the worker in a container, with `WANDER_SANDBOX=0`",
        )
    if parse_socket(listen) is None:
        parse_listen(listen)
    location = locate(current(), environment)
    warn_unconfined(current(), location)
    log_path = (log or default_log(current(), location)).expanduser().resolve()
    words = [
        *(str(location.python), "-P", "-m", "wander.worker", "--listen", listen),
        *("--environment", location.target, "--workers", str(workers or os.cpu_count() or 1)),
        *("--log", str(log_path)),
    ]
    if token_file is not None:
        words += ["--token-file", str(token_file.expanduser().resolve())]
    for name in pass_env or []:
        words += ["--pass-env", name]
    current().output.note(f"playing {location.label}; log: {log_path}")
    sys.stderr.flush()
    # Replace this process by the environment's interpreter, which then receives signals and sets the exit
    # status.
    os.execv(words[0], words)  # noqa: S606 - no shell takes part
