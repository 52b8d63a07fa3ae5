"""Transcripts of an environment, for training the tokenizer of a new policy."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from wander.clients.base import Client, ModelRequest
from wander.clients.scripted import ScriptedClient
from wander.errors import RunError
from wander.handle import EnvironmentHandle
from wander.models.chat import content_text
from wander.models.tokenizer import tools_message
from wander.seeding import derived_rng
from wander.types import Example, Message, Rollout

CONCURRENCY = 64
ENOUGH_TRANSCRIPTS = 1000
"""Number of transcripts after which a tokenizer does not improve any more."""
_PAIR = re.compile(r"<([A-Za-z_]\w*)>[^<]*</\1>")


def make_babbling_client(seed: int = 0) -> Client:
    """Return a client that fills the tags in the conversation with random digits and words from it.

    If tools are offered, it calls one half of the time, with similar arguments. It knows nothing about the
    environment, but most games last a few turns with it, which shows enough of their texts.
    """

    def babble(request: ModelRequest) -> str | Message:
        rng = derived_rng("babble", seed, request.seed)
        text = "\n".join(content_text(message.get("content")) for message in request.messages)
        words = re.findall(r"\w+", text) or ["0"]
        tags = list(dict.fromkeys(match.group(1) for match in _PAIR.finditer(text)))

        def say() -> str:
            return str(rng.randrange(10)) if rng.random() < 0.5 else rng.choice(words)

        def say_as(schema: dict[str, Any]) -> str | int:
            return rng.randrange(100) if schema.get("type") in ("integer", "number") else say()

        if request.tools and rng.random() < 0.5:
            function = rng.choice(request.tools)["function"]
            parameters = function["parameters"].get("properties", {})
            arguments = json.dumps({name: say_as(schema) for name, schema in parameters.items()})
            call = {"name": function["name"], "arguments": arguments}
            calls = [{"id": f"call_{request.turn}", "type": "function", "function": call}]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        return "".join(f"<{tag}>{say()}</{tag}>" for tag in tags) if tags else say()

    return ScriptedClient(babble, model="babble")


def transcript_of(rollout: Rollout) -> list[Message]:
    """Return the conversation of a rollout, with a message about the offered tools."""
    return [*tools_message(rollout.tools), *rollout.prompt, *rollout.completion]


async def read_examples(environment: EnvironmentHandle, count: int) -> list[Example]:
    """Return the training examples without a fault among the first `count`."""
    available = environment.info.train_examples
    read = await environment.examples("train", 0, count if available is None else min(count, available))
    return [example for example in read if example.fault is None]


async def play_transcripts(
    environment: EnvironmentHandle,
    client: Client,
    count: int,
    *,
    seed: int = 0,
    played: Callable[[int, int], None] | None = None,
) -> list[list[Message]]:
    """Play up to `count` training examples and return their conversations in order.

    Failed rollouts are included with the messages that they have. Raises `RunError` if no rollout has an
    assistant message. `played` is called with the number of finished rollouts and their total number.
    """
    examples = await read_examples(environment, count)
    gate = asyncio.Semaphore(CONCURRENCY)

    over = 0

    async def play(position: int) -> list[Message]:
        nonlocal over
        async with gate:
            rollout = await environment.rollout(
                client, examples[position], run_seed=seed, rollout_id=f"transcript/{position}"
            )
        over += 1
        if played is not None:
            played(over, len(examples))
        return transcript_of(rollout)

    transcripts = await asyncio.gather(*(play(position) for position in range(len(examples))))
    if not any(message.get("role") == "assistant" for messages in transcripts for message in messages):
        raise RunError("no rollout reached its first answer", hint="run `wander check` on the environment")
    return transcripts
