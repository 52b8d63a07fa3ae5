"""How a command says its options and arguments, and how a line is read: by the signature of a function.

    def show(
        run: Annotated[str | None, Argument(help="folder or id")] = None,
        limit: Annotated[int, Option("-n", "--limit", min=1, help="rows")] = 30,
    ) -> int | None: ...

Kinds are str, int, float, bool (a flag), Path, `Literal` and lists of these, each `| None` or not. A
parameter that is a dataclass stands for its fields, and one that is `Typed` gets what was typed. Nothing here
takes long to import, which is why it is here: docs/decisions/command-lines.md.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import choose, did_you_mean

COMMON_HELP = """\
  Common options:
    --json           one JSON object on stdout
    --plain          no colour, tab-separated tables
    -q, --quiet      the answer and errors only
    --color WHEN     auto, always or never
    --no-progress    no progress on stderr
    --hub URL        the hub to use, or its name in the settings file
    --debug          show the traceback of an error"""

HELP = ("-h", "--help")
ALL = "--help-all"
Function = TypeVar("Function", bound=Callable[..., int | None])
_MISSING = inspect.Parameter.empty
_METAVARS = {"int": "N", "float": "NUMBER", "Path": "PATH"}


class Typed(dict[str, Any]):
    """What was typed on the line, by the name of the parameter; without the defaults."""


class Option:
    """What is said of an option beside its parameter; without flags it is `--` and the parameter's name."""

    is_argument = False

    def __init__(
        self,
        *flags: str,
        help: str = "",
        min: float | None = None,
        max: float | None = None,
        metavar: str | None = None,
        section: str | None = None,
        hidden: bool = False,
        alone: str | None = None,
        parser: Callable[[str], Any] | None = None,
    ) -> None:
        """`--on/--off` is a flag with its opposite.

        `section` has it shown by `--help-all` alone, `alone` is the value of an option that stands without
        one, and a `parser` raises `ValueError` with what is asked for.
        """
        self.flags, self.help, self.min, self.max = flags, help, min, max
        self.metavar, self.section, self.hidden = metavar, section, hidden
        self.alone, self.parser = alone, parser


class Argument(Option):
    """What is said of an argument beside its parameter."""

    is_argument = True


Yes = Annotated[bool, Option("--yes", "-y", help="do not ask for confirmation")]


class Parameter:
    """An option or an argument of a command."""

    def __init__(self, name: str, kind: Any, said: Option, default: Any = _MISSING) -> None:
        self.name, self.said, self.default = name, said, default
        kinds = [each for each in get_args(kind) if each is not type(None)]
        kind = kinds[0] if type(None) in get_args(kind) else kind
        self.many = get_origin(kind) is list
        """Whether it takes several values."""
        self.kind: Any = get_args(kind)[0] if self.many else kind
        self.choices = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        self.is_flag = self.kind is bool
        self.is_argument = said.is_argument
        pairs = [flag.partition("/") for flag in said.flags or (f"--{name.replace('_', '-')}",)]
        self.flags = [] if self.is_argument else [on for on, _, _ in pairs]
        self.opposites = [] if self.is_argument else [off for _, _, off in pairs if off]
        self.required = default is _MISSING
        self.word = max(self.flags, key=len) if self.flags else name.upper()
        """What it is called in the help and in errors."""

    def read(self, word: str) -> Any:
        """Return the value that a word says; raises `UsageError` for one that it cannot be."""
        if self.choices:
            return choose(self.word, word, self.choices)
        try:
            value = (self.said.parser or self.kind)(word)
        except ValueError as error:
            plain = {int: "a whole number", float: "a number"}
            needed = str(error) if self.said.parser else plain[self.kind]
            raise UsageError(f"`{self.word} {word}`: {needed} is needed") from None
        low, high = self.said.min, self.said.max
        fits = (low is None or value >= low) and (high is None or value <= high)
        if self.said.parser is None and not fits:
            raise UsageError(f"`{self.word} {word}`: a number {self._bounds()} is needed")
        return value

    def _bounds(self) -> str:
        low, high = self.said.min, self.said.max
        if high is None:
            return "" if low is None else f"of {low:g} or more"
        return f"of {high:g} or less" if low is None else f"from {low:g} to {high:g}"

    def _metavar(self) -> str:
        kind = "|".join(self.choices) or _METAVARS.get(self.kind.__name__, "TEXT")
        return self.said.metavar or kind

    def usage(self) -> str:
        """Return an argument as the line `Usage:` shows it."""
        word = self.word if self.required else f"[{self.word}]"
        return f"{word}..." if self.many else word

    def row(self) -> tuple[str, str]:
        """Return what the help says of it: its words, and what it is for."""
        words = ", ".join(sorted(self.flags, key=len)) or f"{self.word}{'...' if self.many else ''}"
        if self.flags and not self.is_flag:
            words += f" {self._metavar()}"
        shows_default = not self.is_flag and self.default not in (None, _MISSING, "")
        facts = [f"default: {self.default}"] if shows_default else []
        facts += [bounds.removeprefix("of ")] if (bounds := self._bounds()) else []
        facts += ["required"] if self.required else []
        more = f"[{'; '.join(facts)}]" if facts else ""
        return " / ".join([words, *self.opposites]), "  ".join(filter(None, (self.said.help, more)))


class CommandLine:
    """A function that is run by a line."""

    def __init__(
        self,
        function: Callable[..., int | None],
        parameters: Sequence[Parameter] = (),
        *,
        help: str | None = None,
    ) -> None:
        """With `parameters` the function gets what was typed of them as its one argument."""
        self._function, self._given = function, bool(parameters)
        self.text = inspect.cleandoc(help or function.__doc__ or "")
        self.parameters = list(parameters) or list(_parameters(function))
        self.summary = " ".join(self.text.partition("\n\n")[0].split())

    def run(self, path: str, words: Sequence[str], show: Callable[[str], None]) -> int:
        """Run a line, of which `path` are the words before these; `show` prints the help."""
        if asked := _asked_help(words):
            show(self.help(path, whole=asked == ALL))
            return 0
        try:
            typed = self.parse(words)
        except UsageError as error:
            error.hint = error.hint or f"run `{path} --help`"
            raise
        if self._given:
            return self._function(typed) or 0
        return self._function(**_arguments(self._function, typed)) or 0

    def parse(self, words: Sequence[str]) -> Typed:
        """Return what was typed, by parameter; raises `UsageError` for a line that is wrong."""
        typed, rest = Typed(), list(reversed(words))
        places: list[str] = []
        flags = {flag: each for each in self.parameters for flag in (*each.flags, *each.opposites)}
        while rest:
            word = rest.pop()
            if word == "--":
                places += reversed(rest)
                break
            if len(word) < 2 or word[0] != "-":
                places.append(word)
                continue
            flag, equals, value = word.partition("=") if word[1] == "-" else (word[:2], word[2:], word[2:])
            if flag not in flags:
                raise _unknown(flag, flags)
            one = flags[flag]
            if one.is_flag:
                if equals and word[1] == "-":
                    raise UsageError(f"`{flag}` takes no value")
                rest += [f"-{value}"] if value else []
                typed[one.name] = flag not in one.opposites
                continue
            if not equals and one.said.alone is not None and (not rest or rest[-1].startswith("-")):
                value = one.said.alone
            elif not equals:
                if not rest:
                    raise UsageError(f"`{flag}` needs a value")
                value = rest.pop()
            _put(typed, one, value)
        self._place(typed, places)
        return typed

    def _place(self, typed: Typed, words: list[str]) -> None:
        """Give arguments their words, and refuse what is too much or too little."""
        left = list(reversed(words))
        for one in self.parameters:
            while one.is_argument and left and (one.many or one.name not in typed):
                _put(typed, one, left.pop())
            if one.required and one.name not in typed:
                raise UsageError(f"`{one.word}` is missing")
        if left:
            raise UsageError(f"`{left[-1]}` is one word too many")

    def help(self, path: str, *, whole: bool) -> str:
        """Return the help, `whole` with the options of all sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for one in self.parameters:
            if not one.said.hidden:
                usual = "Arguments" if one.is_argument else "Options"
                sections.setdefault(one.said.section or usual, []).append(one.row())
        further = list(sections)[2:]
        if further and not whole:
            number = sum(len(sections.pop(name)) for name in further)
            sections["Options"].append((ALL, f"{number} more: {', '.join(map(str.lower, further))}"))
        sections["Options"].append((", ".join(HELP), "show this help"))
        arguments = [one.usage() for one in self.parameters if one.is_argument]
        return _page(" ".join([path, "[OPTIONS]", *arguments]), self.text, sections)


class CommandGroup:
    """Commands that are typed after a word."""

    def __init__(self, help: str) -> None:
        self.text = inspect.cleandoc(help)
        self.commands: dict[str, CommandLine] = {}

    def command(self, name: str | None = None) -> Callable[[Function], Function]:
        """Make a function a command of the group, by default of its own name."""

        def add(function: Function) -> Function:
            self.commands[name or function.__name__.replace("_", "-")] = CommandLine(function)
            return function

        return add

    def run(self, path: str, words: Sequence[str], show: Callable[[str], None]) -> int:
        """Run the command that a line names first."""
        name = words[0] if words else ""
        if name in self.commands:
            return self.commands[name].run(f"{path} {name}", words[1:], show)
        if _asked_help(words[:1]):
            show(self.help(path))
            return 0
        hint = did_you_mean(name, self.commands) or f"run `{path} --help`"
        if not name:
            raise UsageError(f"`{path}` needs a command", hint=hint)
        raise UsageError(f"`{path}` has no command `{name}`", hint=hint, code="unknown_command")

    def help(self, path: str) -> str:
        """Return the help."""
        rows = [(name, one.summary) for name, one in self.commands.items()]
        return _page(f"{path} COMMAND [OPTIONS]", self.text, {"Commands": rows})


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def _parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    for each in _signature(function).parameters.values():
        kind = each.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _parameters(kind)
        elif kind is not Typed:
            kind, said, *_ = get_args(kind)
            yield Parameter(each.name, kind, said, each.default)


def _arguments(function: Callable[..., Any], typed: Typed) -> dict[str, Any]:
    """Return what a function, or a dataclass among its parameters, is called with."""
    given: dict[str, Any] = {}
    for name, each in _signature(function).parameters.items():
        kind = each.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            given[name] = kind(**_arguments(kind, typed))
        elif kind is Typed:
            given[name] = typed
        elif name in typed:
            given[name] = typed[name]
    return given


def _put(typed: Typed, one: Parameter, word: str) -> None:
    value = one.read(word)
    typed[one.name] = [*typed.get(one.name, []), value] if one.many else value


def _asked_help(words: Iterable[str]) -> str | None:
    """Return the word of a line that asks for help."""
    words = list(words)
    words = words[: words.index("--")] if "--" in words else words
    return next((word for word in words if word in (*HELP, ALL)), None)


def _unknown(flag: str, known: Iterable[str]) -> UsageError:
    """Offer `--num-examples` for `--num`, rather than what is spelled alike."""
    longer = [f"`{one}`" for one in known if one.startswith(flag)]
    hint = f"did you mean {' or '.join(longer)}?" if longer else did_you_mean(flag, known)
    return UsageError(f"there is no option `{flag}`", hint=hint)


def _page(usage: str, text: str, sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return a page of help; a paragraph that begins with a line of `\\b` keeps its lines."""
    import textwrap

    try:
        columns = os.get_terminal_size().columns
    except OSError:  # no terminal reads it
        columns = 80
    width = max(min(columns, 80) - 2, 50)
    lines = textwrap.wrap(usage, width, initial_indent="Usage: ", subsequent_indent="         ")
    for paragraph in text.split("\n\n"):
        kept = paragraph.startswith("\b")
        found = paragraph.splitlines()[1:] if kept else textwrap.wrap(" ".join(paragraph.split()), width - 2)
        lines += ["", *(f"  {line}" for line in found)]
    for title, rows in sections.items():
        if rows:
            lines += ["", f"{title}:", *_rows(rows, width)]
    return "\n".join([*lines, "", COMMON_HELP])


def _rows(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield words and what they are for, in two columns."""
    import textwrap

    first = min(max(len(words) for words, _ in rows), 30) + 4
    for words, about in rows:
        lines = textwrap.wrap(about, width - first) or [""]
        if len(words) + 4 > first:
            yield f"  {words}"
        else:
            yield f"  {words:<{first - 2}}{lines.pop(0)}".rstrip()
        yield from (f"{'':{first}}{line}" for line in lines)
