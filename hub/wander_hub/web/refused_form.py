"""A form that the API rejected, which its page shows again with its input."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from wander.wire import Problem

from wander_hub.web.text import fault_field


@dataclass
class RefusedForm:
    """A form that the API rejected, which its page shows again with its input."""

    name: str
    given: Mapping[str, list[str]]
    problem: Problem
    shown: bool = False
    """True after a page has shown the form."""

    def is_faulty(self, field: str) -> bool:
        """Return whether this field has an error."""
        return any(fault_field(error) == field for error in self.problem.errors or [])


CURRENT: ContextVar[RefusedForm | None] = ContextVar("CURRENT", default=None)
"""The rejected form that the current page shows again."""


def refused_form(name: str, at: Mapping[str, object]) -> RefusedForm | None:
    """Return the rejected form if it matches this name and target. Only the first one on a page gets it."""
    refused = CURRENT.get()
    if refused is None or refused.shown or refused.name != name:
        return None
    if any(refused.given.get(f"at_{key}") != [str(value)] for key, value in at.items()):
        return None
    refused.shown = True
    return refused
