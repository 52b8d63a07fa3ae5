"""A schema whose fields say what they are called: options of the command line, keys of suites.

Everything about a setting stands beside its field, and is derived from there wherever it is needed:

    patience: Annotated[float, Option("--patience", "to wait", FREE, MODEL, metavar="SECONDS")] = 5.0

is an option `--patience SECONDS`, a key `patience` of `[defaults]`, `[[eval]]` and `[models]`, and may change
when a run goes on.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import click

from wander_client.errors import UsageError, name_option
from wander_client.terminal.command import Option as Described
from wander_client.terminal.command import new_parameter
from wander_client.terminal.suggestions import choose


class Mark(Enum):
    """What is true of a setting, or of one of its options."""

    FREE = "may change when a run goes on, as it changes no rollout"
    EVAL = "is a key of `[defaults]` and `[[eval]]`"
    MODEL = "is a key of `[defaults]`, `[[eval]]` and `[models]`"
    FILE = "is a key at the top of a suite's file"
    BESIDE = "may stand on the command line beside a suite's file"
    SAMPLED = "means nothing where every line is played once, greedily"


FREE, EVAL, MODEL, FILE, BESIDE, SAMPLED = Mark
KEYWORDS = {"num_examples": "n", "price": "prices"}
"""Keywords of Python that are not called as their key."""
TABLES = {"file": {FILE}, "defaults": {EVAL, MODEL}, "eval": {EVAL, MODEL}, "models": {MODEL}}
"""Which marks make a key of which table of a suite's file; `file` is its top."""


class Option(Described):
    """An option of the command line, and a key of suites, that says a setting or a part of it.

    `key` names its value, by default as the first long flag does. `kind` is the value's type on the command
    line and `suite` that in a suite, by default that of the field, or with `several` that or a list of it;
    `shown` is the default in the help, by default that of the field. `needs` names the setting without which
    it means nothing, and `pattern` is what a suite's word must look like. The rest is as for every option.
    Without flags it is an argument.
    """

    def __init__(
        self,
        flags: str,
        help: str = "",
        *marks: Mark | str,
        key: str = "",
        kind: Any = None,
        suite: Any = None,
        several: bool = False,
        shown: Any = None,
        needs: str = "",
        pattern: str | None = None,
        **more: Any,
    ) -> None:
        words = flags.split()
        super().__init__(*words, help=help, **more)
        self.is_argument = not words
        long = next((word[2:] for word in words if word.startswith("--")), "")
        self.key = key or long.partition("/")[0].replace("-", "_")
        self.word = words[0].partition("/")[0] if words else ""
        self.marks, self.kind, self.suite, self.shown, self.needs = marks, kind, suite, shown, needs
        self.several, self.pattern = several, pattern

    def named(self, value: Any = None) -> str:
        """Return the option, with a value unless that is None, as an error names it."""
        word = "" if value is False else self.word
        return name_option(KEYWORDS.get(self.key, self.key), value, word=word)


@dataclass(frozen=True)
class Rule:
    """How a field is read, written and compared where its value is not simply that of its option."""

    read: Callable[[dict[str, Any]], Any] | None = None
    """Returns its value from those of its options that were given, by key."""
    write: Callable[[Any], str] | None = None
    """Returns the words that ask for a value."""
    same: Callable[[Any, Any], bool] = lambda asked, held: bool(asked == held)
    """Tells whether the value that is asked for is the one that a run has."""


@dataclass(frozen=True)
class Setting:
    """A field of a schema with its options."""

    name: str
    kind: Any
    default: Any
    options: list[Option]
    rule: Rule
    free: bool
    """Whether it may change when a run goes on."""

    def read(self, said: Mapping[str, Any]) -> Any:
        """Return the value that options say; raises `UsageError` for a word that it cannot be."""
        given = {option.key: said[option.key] for option in self.options if option.key in said}
        for option in self.options:
            value = given.get(option.key)
            least = option.min
            if least is not None and isinstance(value, int | float) and value < least:
                raise UsageError(option.named(value) + f" is less than {least}")
        if self.rule.read is not None:
            return self.rule.read(given)
        (value,) = given.values()
        choices = _literals(self.kind)
        if choices and value not in (*choices, None):
            choose(self.options[0].word, value, choices)
        return value

    def differences(self, said: Mapping[str, Any], held: Any) -> list[str]:
        """Return a line for each value that is asked for and that a run does not have."""
        from wander.types import SamplingArgs

        asked = self.read(said)
        if isinstance(asked, dict | SamplingArgs):
            asked, held = (each if isinstance(each, dict) else each.given() for each in (asked, held))
            return [
                _difference(self._write(value, key), self._write(held[key], key) if key in held else None)
                for key, value in asked.items()
                if key not in held or held[key] != value
            ]
        lacking = (held is None or held is False) and self.rule.write is None
        return [
            _difference(self._write(value), None if lacking else self._write(held))
            for value in (asked if isinstance(asked, list) else [asked])
            if not self.rule.same(value, held)
        ]

    def _write(self, value: Any, part: str | None = None) -> str:
        """Return the words that ask for a value, or for one value of a table."""
        if self.rule.write is not None:
            return self.rule.write(value)
        if part is None:
            return self.options[0].named(value)
        from wander.errors import Wording

        words = {option.key: option.word for option in self.options}
        typed = f"{words.get(part)} {value}"
        if part == self.name or part not in words:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            typed = f"{words[self.name]} {part}={text}"
        return Wording(f"`{typed}`", f'`{self.name}={{"{part}": {value!r}}}`')


def _difference(asked: str, held: str | None) -> str:
    return asked + (": the run was started without it" if held is None else ": the run has " + held)


@functools.cache
def settings_in(schema: type) -> dict[str, Setting]:
    """Return the fields of a schema with what their annotations say, by name."""
    found = {}
    for name, (kind, said) in _fields_of(schema).items():
        options = [each for each in said if isinstance(each, Option)]
        for option in options:
            option.key, option.kind = option.key or name, option.kind or kind
        rule = next((each for each in said if isinstance(each, Rule)), Rule())
        free = FREE in said or any(FREE in option.marks for option in options)
        own = getattr(schema, "model_fields", {}).get(name)
        default = own.default if own else getattr(schema, name, None)
        found[name] = Setting(name, kind, default, options, rule, free)
    return found


def _fields_of(schema: type) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the types of a class's annotated fields, and what is said beside them."""
    records = getattr(schema, "model_fields", {})
    fields: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for owner in (each for each in reversed(schema.__mro__) if not each.__module__.startswith("pydantic")):
        for name, kind in inspect.get_annotations(owner, eval_str=True).items():
            described = hasattr(kind, "__metadata__")
            whole, *said = get_args(kind) if described else (kind,)
            fields[name] = records[name].annotation if name in records else whole, tuple(said)
    return fields


def options_in(*schemas: type) -> dict[str, Option]:
    """Return the options of schemas by key, in the order of their fields."""
    fields = [field for schema in schemas for field in settings_in(schema).values()]
    return {option.key: option for field in fields for option in field.options}


def find_mentioned(schema: type, said: Mapping[str, Any]) -> list[Setting]:
    """Return the fields of which options, or keys of a suite, say something."""
    fields = settings_in(schema).values()
    return [field for field in fields if any(option.key in said for option in field.options)]


MOST = 2**53
"""The largest number in a suite; every program that reads JSON knows it exactly."""


def suite_keys(schema: type, table: str) -> dict[str, Any]:
    """Return the fields of a suite's table, all optional, as `pydantic.create_model` takes them."""
    from pydantic import Field

    keys: dict[str, Any] = {}
    for field in settings_in(schema).values():
        for option in field.options:
            if TABLES[table].intersection(option.marks):
                kind: Any = field.kind if len(field.options) == 1 else option.kind
                # The command line allows a millisecond at least; a suite any time at all.
                kinds = (kind, *get_args(kind))
                most = (option.max or MOST) if int in kinds else None
                bound = Field(gt=0) if float in kinds else Field(ge=option.min, le=most)
                suite: Any = Annotated[kind, bound]
                if option.suite is not None:
                    suite = Annotated[
                        option.suite, bound if option.suite is int else Field(pattern=option.pattern)
                    ]
                elif option.several:
                    suite = field.kind | list[field.kind]  # type: ignore[name-defined]  # a value
                keys[option.key] = suite | None, None
    return keys


def parameters_in(*schemas: type) -> list[click.Parameter]:
    """Return the parameters of a command that says what schemas hold."""
    parameters = []
    for field in (field for schema in schemas for field in settings_in(schema).values()):
        for option in field.options:
            # The help shows the default; what was not typed is taken from the schema, not from here.
            own = field.default if option is field.options[0] else None
            shown = own if option.shown is None else option.shown
            default = shown if isinstance(shown, str | int | float) else None
            parameters.append(new_parameter(option.key, option.kind, option, default))
    return parameters


def _literals(kind: Any) -> list[Any]:
    """Return the words that a type allows; empty for one that allows any."""
    literal = [each for each in (kind, *get_args(kind)) if get_origin(each) is Literal]
    return [word for each in literal for word in get_args(each)]
