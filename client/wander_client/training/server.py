"""A vLLM server for a training run (`[inference] engine = "vllm-server"` without an `url`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.models.server import ServeChoice, served

if TYPE_CHECKING:
    from wander.train.config import InferenceSection

    from wander_client.context import Invocation

DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens the endpoints that take weights; the server listens on loopback only."""


@contextlib.contextmanager
def training_server(context: Invocation, checkpoint: Path, section: InferenceSection) -> Iterator[str]:
    """Serve a checkpoint until the block ends, and yield the server's address."""
    from wander.train.rollouts.source import LoopThread

    choice = ServeChoice(
        arguments=server_arguments(section), python=section.python, environment=tuple(DEV_MODE.items())
    )
    thread = LoopThread()
    serving = served(context, str(checkpoint), choice, log_path=checkpoint.parent / "server.log")
    try:
        server = thread.run(serving.__aenter__())
        try:
            yield server.base_url
        finally:
            thread.run(serving.__aexit__(None, None, None))
    finally:
        thread.close()


def server_arguments(section: InferenceSection) -> tuple[str, ...]:
    """Return what a server is started with so that it can be trained with; the settings' own come last."""
    arguments = ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    if section.sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
    if section.sleep:
        arguments += ["--enable-sleep-mode", "--gpu-memory-utilization", str(section.memory)]
    return (*arguments, *section.arguments)
