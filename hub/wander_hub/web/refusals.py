"""A form that was refused, as its page gives it back: what is wrong in plain words, and what was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from html import unescape
from typing import Any

from markupsafe import Markup, escape
from wander.wire import Problem

_INPUT = re.compile(r"<input [^>]*>")
_SELECT = re.compile(r'(<select [^>]*name="([^"]+)"[^>]*>)(.*?)</select>', re.DOTALL)
_OPTION = re.compile(r'<option(?: value="([^"]*)")?(?: selected)?>([^<]*)')
_ATTRIBUTE = re.compile(r' ([a-z-]+)="([^"]*)"')
_TYPED = ("text", "search", "number")
"""Kinds of fields that are given back; a password is none, and neither is a code that is good once."""
_PLAIN = (
    (r"^(?:Field required|Input should be a valid string)$", "is missing"),
    (r"^Input should be a valid (?:integer|number).*", "must be a whole number"),
    (r"^String should have at least 1 character$", "is empty"),
    (r"^String should have at least (\d+) characters?$", r"must have at least \1 characters"),
    (r"^String should have at most (\d+) characters?$", r"must have at most \1 characters"),
    (r"^String should match pattern.*", "is not written as this has to be"),
    (r"^List should have at least 1 item.*", "needs at least one"),
    (r"^Input should be greater than or equal to (\S+)$", r"must be at least \1"),
    (r"^Input should be less than or equal to (\S+)$", r"must be at most \1"),
    (r"^Input should be a valid (\w+).*", r"must be a \1"),
    (r"^(?:Input|String|List|Value) should (?:be|have) ", "must be "),
    (r"^(?:Value|Assertion) error, ", ""),
)


@dataclass
class Refused:
    """A form, what stood in it, and why nothing came of it."""

    form: str
    given: Mapping[str, Sequence[str]]
    problem: Problem
    shown: bool = False
    """Whether a page found the form among its own, and shows it again."""

    def fill(self, fields: Markup) -> Markup:
        """Return fields as the templates write them, with what was typed."""
        text = _INPUT.sub(lambda found: self._type(found[0]), fields)
        return Markup(_SELECT.sub(self._choose, text))  # noqa: S704 - what was typed is escaped

    def _type(self, tag: str) -> str:
        has = {name: unescape(value) for name, value in _ATTRIBUTE.findall(tag)}
        name, kind = has.get("name", ""), has.get("type")
        if kind in ("checkbox", "radio"):
            tag = tag.replace(" checked", "")
            return tag.replace(">", " checked>") if has.get("value") in self.given.get(name, ()) else tag
        if name not in self.given or kind not in _TYPED or has.get("autocomplete") == "one-time-code":
            return tag
        wrong = any(_field(one) == name for one in self.problem.errors or [])
        tag = re.sub(r' value="[^"]*"', "", tag).removesuffix(">")
        return f'{tag} value="{escape(self.given[name][0])}"{" aria-invalid=true" if wrong else ""}>'

    def _choose(self, found: re.Match[str]) -> str:
        wanted = self.given.get(found[2], ())

        def mark(option: re.Match[str]) -> str:
            value = option[2] if option[1] is None else option[1]
            given = f' value="{option[1]}"' if option[1] is not None else ""
            return f"<option{given}{' selected' if unescape(value) in wanted else ''}>{option[2]}"

        return f"{found[1]}{_OPTION.sub(mark, found[3]) if wanted else found[3]}</select>"


CURRENT: ContextVar[Refused | None] = ContextVar("CURRENT", default=None)
"""The form that is given back by the page that is drawn now."""


def refused_form(name: str, at: Mapping[str, object]) -> Refused | None:
    """Return what was refused of a form where a page draws it, the first of those that fit."""
    refused = CURRENT.get()
    if refused is None or refused.shown or refused.form != name:
        return None
    if any(list(refused.given.get(f"at_{key}", ())) != [str(value)] for key, value in at.items()):
        return None
    refused.shown = True
    return refused


def in_plain_words(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a field: its name, and what it has to be."""
    told = str(error["msg"])
    for pattern, words in _PLAIN:
        told, found = re.subn(pattern, words, told)
        if found:
            break
    return f"{_field(error).replace('_', ' ')} {told}".strip()


def _field(error: Mapping[str, Any]) -> str:
    """Return the field that an error is about; nothing where it is about all of them."""
    names = [str(one) for one in error["loc"][1:]]
    return next((one for one in reversed(names) if not one.isdigit()), "")
