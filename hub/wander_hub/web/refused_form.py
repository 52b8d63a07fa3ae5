"""A form that the API refused, which its page shows again with its input."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from wander.wire import Problem

from wander_hub.web.text import fault_field


@dataclass
class RefusedForm:
    """A form that the API refused, which its page shows again with its input."""

    name: str
    given: Mapping[str, list[str]]
    problem: Problem
    shown: bool = False
    """Whether a page found the form among its own."""

    def is_faulty(self, field: str) -> bool:
        """Return whether the problem is about this field."""
        return any(fault_field(error) == field for error in self.problem.errors or [])


CURRENT: ContextVar[RefusedForm | None] = ContextVar("CURRENT", default=None)
"""The form that the page which is drawn now shows again."""


def refused_form(name: str, at: Mapping[str, object]) -> RefusedForm | None:
    """Return the refused form if it is this one, of the page's forms with the same address the first."""
    refused = CURRENT.get()
    if refused is None or refused.shown or refused.name != name:
        return None
    if any(refused.given.get(f"at_{key}") != [str(value)] for key, value in at.items()):
        return None
    refused.shown = True
    return refused
