"""Checks whether an environment can play the examples of a sealed task set, before anyone sees them."""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wander_client.environments.opening import open_environment, read_content
from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import Example

    from wander_client.context import Invocation
    from wander_client.environments.location import Location

_AT_ONCE = 16


class RefusedRow(NamedTuple):
    """A row that an environment cannot play."""

    row: int
    """Number of the row, from 1."""
    reason: str


def set_from(path: Path) -> bytes:
    """Return the file of a set for a file of rows; a file that is a set already is returned unchanged.

    Raises `UsageError` for a file that is not JSON Lines.
    """
    from wander.wire.transfers import make_set, read_rows, read_set
    from wander.wire.untrusted_text import RefusedText

    content = read_content(path).removeprefix(codecs.BOM_UTF8)  # which editors on Windows write
    try:
        rows = read_rows(content)
        if rows and rows[0].keys() == {"salt"}:
            read_set(content)
            return content
    except RefusedText as error:
        hint = "write one JSON object per line, with the columns that the environment's dataset has"
        if error.too_large:
            hint = "split the examples into several sets"
        raise UsageError(f"`{path}` cannot be sealed: {error}", hint=hint, code="bad_set") from error
    if not rows:
        raise UsageError(f"`{path}` has no examples", hint="write one JSON object per line", code="bad_set")
    return make_set(rows)


async def find_refused(
    context: Invocation, location: Location, set_file: Path, sandbox: SandboxPolicy | None
) -> tuple[int, list[RefusedRow]]:
    """Return the number of examples in a set, and the rows that the environment cannot load or play.

    Each example is played once by a player that answers with an empty text.
    """
    from wander.clients.scripted import ScriptedClient

    client, turns = ScriptedClient(lambda request: ""), asyncio.Semaphore(_AT_ONCE)
    async with open_environment(context, location, sandbox=sandbox, set_file=set_file) as opened:
        examples = await opened.handle.examples("eval")

        async def try_example(example: Example) -> RefusedRow | None:
            if example.fault is not None:
                return RefusedRow(example.index + 1, example.fault)
            async with turns:
                rollout = await opened.handle.rollout(client, example)
            failure = rollout.failure
            if failure is None or failure.boundary == "model":
                return None
            return RefusedRow(example.index + 1, f"{failure.type}: {failure.message}")

        results = await asyncio.gather(*map(try_example, examples))
    return len(examples), [result for result in results if result is not None]
