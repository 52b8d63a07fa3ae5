"""Calls to other models from code inside a rollout that has its own OpenAI client.

Such a client (of a judge or an agent) finds in `OPENAI_BASE_URL` the endpoint of the host that started the
worker (`wander.worker.openai_proxy`). That endpoint has the key, counts and records the calls, and answers
from the record in a replay. A header of each request identifies the rollout.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from wander.clients import base

HEADER = "x-wander-rollout"
PUBLIC_KEY = base.OUTSIDE_CALLS
"""Key of a rollout's calls in its `info`: a list of objects with `digest` (of the request), `path`,
`request`, `status` and `response`."""
JUDGE_ANSWERS = base.JUDGE_ANSWERS
"""Key of the answers of the judge that a rubric called (`wander.rubrics.judge`)."""
SCRIPTED = "scripted"
"""Marks the answer of a judge that is a function in the environment's package. A replay calls it again."""

ROLLOUT: ContextVar[str] = ContextVar("wander_rollout", default="")
"""Id of the rollout whose code is running."""


@contextlib.contextmanager
def call_for(rollout_id: str | None) -> Iterator[None]:
    """Attribute the calls in a block to a rollout. None changes nothing."""
    if rollout_id is None:
        yield
        return
    token = ROLLOUT.set(rollout_id)
    try:
        yield
    finally:
        ROLLOUT.reset(token)


def attribute_openai_calls() -> None:
    """Make OpenAI clients send the rollout id. Does nothing before `openai` is imported, or if repeated."""
    library = sys.modules.get("openai")
    for name in ("OpenAI", "AsyncOpenAI"):
        cls = getattr(library, name, None)
        if cls is not None and not getattr(cls, "_wander_attributed", False):
            cls._wander_attributed = True
            cls.default_headers = _with_rollout(cls.default_headers)


def _with_rollout(usual: property) -> property:
    def default_headers(client: Any) -> dict[str, Any]:
        assert usual.fget is not None
        return {**usual.fget(client), HEADER: ROLLOUT.get()}

    return property(default_headers)
