"""What errors say to whoever calls from Python: keywords of the call in place of options of the command.

`--rollouts 4` becomes `rollouts=4`. The keys of options come from the schema of the command, and a keyword
is what the signature of the call has under that key, so nothing here has to be kept up.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wander.types import SamplingArgs

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import did_you_mean

Call = Callable[..., Any]
KEYS = {"n": "num_examples", "prices": "price", "url": "hub"}
"""What keywords of Python are called among the command's keys, where it is something else."""
_NAMES = {key: name for name, key in KEYS.items()}
_COMMANDS = {"wander eval": "env.evaluate(model, {})", "wander train": "wander.train(env, {})"}
"""What goes on with a run; any other command is what a user types in a terminal."""
_OPTION = re.compile(r"--?[a-z]")
_QUOTED = re.compile(r"`([^`\n]+)`")

_calls: list[Call] = []
"""All calls that Python has: what an error says may be a keyword of an earlier one, such as `load`."""


class UnknownKeyword(UsageError, TypeError):
    """A call has no such keyword."""


def require_keywords(call: Call, given: Mapping[str, Any]) -> None:
    """Raise `UnknownKeyword`, with the near name, for what a call does not take."""
    parameters = inspect.signature(call).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            of = "" if call.__name__ == "__init__" else f" of `{call.__name__}`"
            known = ", ".join(f"`{each}`" for each in _keywords(call))
            hint = find_near(call, name) or f"it takes {known}"
            raise UnknownKeyword(f"there is no argument `{name}`{of}", hint=hint)


def find_near(call: Call, name: str) -> str | None:
    """Return the hint with the keyword that a wrong one stands for: the command's word for it, or alike."""
    known = _keywords(call)
    if name in SamplingArgs.model_fields and "sampling" in known:
        return f'write `sampling={{"{name}": ...}}`'
    meant = _name_of(_option_keys().get(f"--{name.replace('_', '-')}", name), known)
    if meant is not None:
        return f"did you mean `{meant}`?"
    return did_you_mean(name, known)


def speak_python(text: str, *calls: Call) -> str:
    """Return a text with the options in it as keywords of some calls, or else of one that Python has."""
    return _QUOTED.sub(lambda found: f"`{_rewrite(found[1], (*calls, *_calls))}`", text)


def register(call: Call) -> None:
    """Have the keywords of a call known."""
    _calls.append(call)


def _rewrite(quoted: str, calls: Sequence[Call]) -> str:
    words = _split(quoted)
    command = next((one for one in _COMMANDS if quoted.startswith(f"{one} --")), None)
    if command is not None:
        words = words[len(command.split()) :]
    elif not quoted.startswith("-"):
        name = _name_of(_field_keys().get(quoted, ""), _keywords(calls[0]) if calls else ())
        return name or quoted
    keywords = _as_keywords(words, calls)
    if keywords is None:
        return quoted
    return _COMMANDS[command].format(", ".join(keywords)) if command else ", ".join(keywords)


def _as_keywords(words: list[str], calls: Sequence[Call]) -> list[str] | None:
    """Return options with their values as keywords; None where one of them is nothing that Python has."""
    found: list[str] = []
    while words:
        word, *words = words
        word, equals, value = word.partition("=")
        values = [value] if equals else []
        while words and not _OPTION.match(words[0]):
            values.append(words.pop(0))
        keyword = _as_keyword(word, " ".join(values), calls)
        if keyword is None:
            return None
        found.append(keyword)
    return found


def _as_keyword(word: str, value: str, calls: Sequence[Call]) -> str | None:
    key = _option_keys().get(word, word.lstrip("-").replace("-", "_"))
    for one in calls:
        known = _keywords(one)
        if key == "all" and "n" in known:
            return 'n="all"'
        if (name := _name_of(key, known)) is not None:
            if value:
                return f"{name}={_literal(value)}"
            return f"{name}=True" if "bool" in str(known[name].annotation) else name
        if key.startswith("no_") and key[3:] in known:
            return f"{key[3:]}=False"
        if key in SamplingArgs.model_fields and "sampling" in known:
            return f'sampling={{"{key}": {_literal(value)}}}' if value else f'sampling={{"{key}": ...}}'
    return None


def _name_of(key: str, known: Iterable[str]) -> str | None:
    return next((name for name in known if name in (key, _NAMES.get(key))), None)


def _literal(value: str) -> str:
    """Return a value of the command line as Python writes it; `KEY=VALUE` is a mapping."""
    key, equals, rest = value.partition("=")
    if equals and key.isidentifier():
        return f'{{"{key}": {_literal(rest)}}}'
    try:
        return repr(json.loads(value))
    except ValueError:
        return json.dumps(value, ensure_ascii=False)


def _keywords(call: Call) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(call).parameters
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: one for name, one in parameters.items() if one.kind in named and name != "self"}


def _split(quoted: str) -> list[str]:
    try:
        return shlex.split(quoted)
    except ValueError:  # an apostrophe that closes nothing
        return quoted.split()


@functools.cache
def _field_keys() -> dict[str, str]:
    """Return the settings of an evaluation that are called otherwise than the key of their option."""
    from wander_client.evaluate.schema import settings_in
    from wander_client.evaluate.settings import EvaluationSettings

    fields = settings_in(EvaluationSettings).values()
    return {field.name: field.options[0].key for field in fields if field.options}


@functools.cache
def _option_keys() -> dict[str, str]:
    """Return the options of `wander eval` with the keys of their values."""
    from wander_client.evaluate.options import CommandFlags, EvaluationOptions
    from wander_client.evaluate.schema import options_in

    options = options_in(EvaluationOptions, CommandFlags)
    return {word: key for key, option in options.items() for word in (option.word, *option.flags)}
