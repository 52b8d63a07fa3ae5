"""Calls of other models that code inside a rollout makes with an OpenAI client of its own.

Such a client (a judge's, an agent's) finds in `OPENAI_BASE_URL` the endpoint of the host that started the
worker (`wander.worker.openai_proxy`), which holds the key, counts, records, and answers from the record where
a rollout is played again. Each request says in a header which rollout makes it.
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
"""Key of the answers of the judge that a rubric asked (`wander.rubrics.judge`)."""
SCRIPTED = "scripted"
"""Marks the answer of a judge that is a function of the environment's package: a replay calls it again."""

ROLLOUT: ContextVar[str] = ContextVar("wander_rollout", default="")
"""The id of the rollout whose code runs."""


@contextlib.contextmanager
def call_for(rollout_id: str | None) -> Iterator[None]:
    """Let the calls of a block be those of a rollout; None changes nothing."""
    if rollout_id is None:
        yield
        return
    token = ROLLOUT.set(rollout_id)
    try:
        yield
    finally:
        ROLLOUT.reset(token)


def attribute_openai_calls() -> None:
    """Make OpenAI clients say which rollout calls; does nothing before `openai` is imported, or twice."""
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
