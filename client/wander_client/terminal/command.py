"""Declare click commands by the signatures of functions:

    def show(
        run: Annotated[str | None, Argument(help="folder or id")] = None,
        limit: Annotated[int, Option("-n", "--limit", min=1, help="rows")] = 30,
    ) -> int | None: ...

Values can be str, int, float, bool (a flag), Path, `Literal` or a list of these, each `| None` or not. A
parameter that is annotated with a dataclass stands for all its fields. A parameter of type `Typed` receives
the values that the user typed. docs/decisions/command-lines.md explains why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import choose, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


Function = TypeVar("Function", bound=Callable[..., int | None])
_METAVARS = {int: "N", float: "NUMBER"}
HELP = {"help_option_names": ["-h", "--help"]}


class Typed(dict[str, Any]):
    """Values that the user typed, by parameter name. Defaults are not included."""


class Option:
    """An option's flags and help text. By default, the flag is `--` and the parameter's name.

    `--on/--off` declares a flag with its opposite. `settings` are passed to `click.Option`.
    """

    is_argument = False

    def __init__(
        self, *flags: str, help: str = "", min: float | None = None, max: float | None = None, **settings: Any
    ) -> None:
        self.flags, self.help, self.min, self.max, self.settings = flags, help, min, max, settings


class Argument(Option):
    """An argument's help text."""

    is_argument = True


Yes = Annotated[bool, Option("--yes", "-y", help="do not ask for confirmation")]
EnvironmentArguments = Annotated[
    list[str] | None, Option("-a", "--arg", metavar="KEY=VALUE", help="environment argument; repeatable")
]
EnvironmentArgumentsJSON = Annotated[
    str | None, Option("--args", help="environment arguments, a JSON object")
]
WorkerAddresses = Annotated[
    list[str] | None,
    Option(
        "--worker", metavar="tcp://HOST:PORT", help="run the rollouts on this `wander worker`; repeatable"
    ),
]
WorkerTokenFile = Annotated[str | None, Option(metavar="FILE", help="file with the token of --worker")]


class Integer(click.IntRange):
    """A range of integers, which help and errors describe in words instead of as `1<=x<=64`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with a sentence that states the range."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"must be a whole number{_range_note(self.min, self.max)}, got `{value}`", param, ctx)

    def _describe_range(self) -> str:
        return _describe_bounds(self.min, self.max)


class _Choice(click.Choice[str]):
    """Words to choose from, which the error lists in backticks, with a suggestion."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or raise `UsageError` with the known words."""
        if value not in self.choices and param is not None and not (ctx and ctx.resilient_parsing):
            choose(max(param.opts, key=len), value, self.choices)
        return super().convert(value, param, ctx)


class _Number(click.FloatRange):
    """A range of floats, described in words, that rejects `nan`, which click accepts in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with contextlib.suppress(click.BadParameter):
            if not math.isnan(number := float(super().convert(value, param, ctx))):
                return number
        self.fail(f"must be a number{_range_note(self.min, self.max)}, got `{value}`", param, ctx)

    def _describe_range(self) -> str:
        return _describe_bounds(self.min, self.max)


def read_date(option: str, text: str) -> datetime:
    """Return the date or time that an option got, in UTC if it has no zone. Raises `UsageError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write `2026-01-31` or `2026-01-31T18:00:00Z`"
        raise UsageError(f"`{option} {text}` is not a date", hint=hint) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def require_date(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Return the text of an option, unchanged, if it is a date or a time. Raises `UsageError`.

    It is the `callback` of options whose text another program reads.
    """
    if text is not None and not ctx.resilient_parsing:
        read_date(max(option.opts, key=len), text)
    return text


def _describe_bounds(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f"at least {low}" if high is None else f"{low} to {high}"


def _range_note(low: float | None, high: float | None) -> str:
    bounds = _describe_bounds(low, high)
    return f" ({bounds})" if bounds else ""


def new_parameter(name: str, kind: Any, described: Option, default: Any = inspect.Parameter.empty) -> Any:
    """Return a click option or argument for a parameter of this type."""
    kinds = [part for part in get_args(kind) if part is not type(None)]
    kind = kinds[0] if type(None) in get_args(kind) else kind
    many = get_origin(kind) is list
    kind = get_args(kind)[0] if many else kind
    settings: dict[str, Any] = {"help": described.help, "required": default is inspect.Parameter.empty}
    if kind is not bool:
        settings["type"] = _type(kind, described)
    if kind in (str, Path):
        settings["shell_complete"] = _suggest
    if described.is_argument:
        return click.Argument([name], nargs=-1 if many else 1, **settings, **described.settings)
    if kind in _METAVARS:
        settings["metavar"] = _METAVARS[kind]
    if kind is bool:
        settings["is_flag"] = True
    elif isinstance(default, str | int | float) and default != "":
        settings |= {"default": default, "show_default": True}
    flags = described.flags or (f"--{name.replace('_', '-')}",)
    return click.Option([*flags, name], multiple=many, **{**settings, **described.settings})


def _type(kind: Any, described: Option) -> click.ParamType[Any]:
    low, high = described.min, described.max
    if get_origin(kind) is Literal:
        return _Choice(get_args(kind))
    if kind is int:
        return Integer(_int(low), _int(high))
    if kind is float:
        return _Number(low, high)
    return click.Path(path_type=Path) if kind is Path else click.STRING


def _int(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _suggest(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values that start with this text; if no value matches, complete file names."""
    from click.shell_completion import CompletionItem

    values = ctx.obj.suggest(param.name)
    items = [CompletionItem(value) for value in values if value.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value of a common option in the context."""
    if value:
        ctx.meta[param.name or ""] = value


_COMMON: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--json", {"is_flag": True, "help": "print one JSON object on stdout"}),
    ("--plain", {"is_flag": True, "help": "no color, tab-separated tables"}),
    ("-q --quiet", {"is_flag": True, "help": "print only results and errors"}),
    ("--color", {"type": _Choice(["auto", "always", "never"]), "help": "when to use color"}),
    ("--no-progress", {"is_flag": True, "help": "do not show progress on stderr"}),
    ("--hub", {"metavar": "URL", "help": "the hub: its URL, or a name from your settings file"}),
    ("--debug", {"is_flag": True, "help": "show the traceback of an error"}),
)


@functools.cache
def common_options() -> list[click.Parameter]:
    """Return the options that every command and group has."""
    return [
        click.Option(
            [*flags.split(), f"common_{flags.split('--')[1].replace('-', '_')}"],
            expose_value=False,
            callback=_store,
            **settings,
        )
        for flags, settings in _COMMON
    ]


class _CommonCommand(click.Command):
    """A command or group with the common options, whose help follows the output mode."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *common_options(), help_option]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
            option.help = "show this help"
        return option


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        output, text = ctx.obj.output, ctx.get_help()
        output.command = "help"
        output.answer({"help": text}, text)
        ctx.exit()


class Command(_CommonCommand):
    """A command that calls a function with the typed values. The function's defaults apply to all others."""

    def __init__(
        self,
        function: Callable[..., int | None],
        name: str | None = None,
        help: str | None = None,
    ) -> None:
        self._function = function
        super().__init__(
            name or function.__name__.replace("_", "-"),
            params=list(parameters_of(function)),
            help=inspect.cleandoc(help or function.__doc__ or ""),
            context_settings=HELP,
        )

    def invoke(self, ctx: click.Context) -> int | None:
        """Call the function, and return its exit status."""
        ctx.obj.begin(ctx)
        typed = Typed(
            (name, list(value) if isinstance(value, tuple) else value)
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        )
        return self._function(**_arguments(self._function, typed))


class CommandGroup(_CommonCommand, click.Group):
    """A group of commands."""

    def __init__(self, help: str, name: str | None = None) -> None:
        super().__init__(name, help=inspect.cleandoc(help), context_settings=HELP)

    def command(self, name: str | None = None) -> Callable[[Function], Function]:  # type: ignore[override]
        """Add a function to the group as a command. The default name is the function's name."""

        def add(function: Function) -> Function:
            self.add_command(Command(function, name))
            return function

        return add

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in declaration order."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if no command is given."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command with this name.

        Raises `UsageError` with a suggestion if the command is unknown.
        """
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            words = self.meanings(ctx)
            hint = (
                did_you_mean(args[0], words, shown=words) or f"run `{ctx.command_path} --help` for the list"
            )
            message = f"`{ctx.command_path}` has no command `{args[0]}`"
            raise UsageError(message, hint=hint, code="unknown_command")
        return super().resolve_command(ctx, args)

    def meanings(self, ctx: click.Context) -> Mapping[str, str]:
        """Return the words to compare a mistyped command with, and the command to suggest for each."""
        return {name: name for name in self.list_commands(ctx)}

    def sections(self, ctx: click.Context) -> Mapping[str, Mapping[str, str]]:
        """Return the help's sections, each with names and summaries of commands."""
        summaries = {name: command.get_short_help_str(1000) for name, command in self.commands.items()}
        # Lower case and no period, like the summaries of `wander --help` and the help of options.
        plain = {name: f"{text[:1].lower()}{text[1:]}".rstrip(".") for name, text in summaries.items()}
        return {"Commands": plain}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the full summaries without importing the commands."""
        for title, rows in self.sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def parameters_of(function: Callable[..., Any]) -> Iterator[click.Parameter]:
    """Yield the click parameters for the signature of a function or dataclass."""
    for parameter in _signature(function).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from parameters_of(kind)
        elif kind is not Typed:
            kind, described, *_ = get_args(kind)
            yield new_parameter(parameter.name, kind, described, parameter.default)


def _arguments(function: Callable[..., Any], typed: Typed) -> dict[str, Any]:
    """Return the arguments for calling a function or dataclass."""
    values: dict[str, Any] = {}
    for name, parameter in _signature(function).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            values[name] = kind(**_arguments(kind, typed))
        elif kind is Typed:
            values[name] = typed
        elif name in typed:
            values[name] = typed[name]
    return values


def refuse_options(*names: str, because: str) -> None:
    """Raise `UsageError` if the user typed one of these options, which the command would ignore.

    - `names`: names of the options' parameters.
    - `because`: the rest of the sentence that begins with the option.
    """
    ctx = click.get_current_context()
    for param in ctx.command.get_params(ctx):
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            flag = max(param.opts, key=len)
            raise UsageError(f"`{flag}` {because}", hint=f"remove `{flag}`")


def explain_usage(error: click.UsageError, words: Sequence[str]) -> UsageError:
    """Convert click's error to a `UsageError` that names the flag as the user typed it."""
    from wander.types import start_lower  # late: most command lines are parsed without the SDK

    ctx = error.ctx
    path = "wander" if ctx is None else ctx.command_path
    hint, message = None, error.message.rstrip(".")
    if isinstance(error, click.NoSuchOption):
        from wander.errors import suggest_option  # late: most command lines are parsed without the SDK

        message = f"unknown option `{error.option_name}`"
        flags = [] if ctx is None else [flag for param in ctx.command.get_params(ctx) for flag in param.opts]
        longer = [f"`{flag}`" for flag in flags if flag.startswith(error.option_name)]
        hint = f"did you mean {' or '.join(longer)}?" if longer else suggest_option(error.option_name, flags)
        if "--set" in flags:
            unflagged = "pass settings that have no option with `--set KEY=VALUE`"
            hint = f"{hint} Or {unflagged}" if hint else unflagged
    elif isinstance(error, click.BadParameter) and error.param is not None:
        missing = isinstance(error, click.MissingParameter)
        kind = "argument" if isinstance(error.param, click.Argument) else "option"
        name = _typed_name(error.param, words)
        message = f"missing {kind} `{name}`" if missing else f"`{name}`: {message}"
    return UsageError(start_lower(message), hint=hint or f"run `{path} --help`")


def _typed_name(param: click.Parameter, words: Sequence[str]) -> str:
    if isinstance(param, click.Argument):
        return param.human_readable_name
    flags = (*param.opts, *param.secondary_opts)
    typed = (flag for word in reversed(words) for flag in flags if _names(word, flag))
    return next(typed, max(param.opts, key=len))


def _names(word: str, flag: str) -> bool:
    """Return whether a word of the command line is this flag, with or without its value."""
    return word.partition("=")[0] == flag if flag.startswith("--") else word.startswith(flag)
