"""How a command module makes its typer application, the same for all: plain help, no completion code."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import typer
from typer.core import TyperGroup

COMMON_HELP = """\b
Common options:
  --json           one JSON object on stdout
  --plain          no colour, tab-separated tables
  -q, --quiet      the answer and errors only
  --color WHEN     auto, always or never
  --no-progress    no progress on stderr
  --hub URL        the hub to use, or its name in the settings file
  --debug          show the traceback of an error"""


def command_app(help: str | None = None, *, group: bool = False, default: str | None = None) -> typer.Typer:
    """Return an application; with `group=True` its commands stay sub-commands even if there is only one.

    `default` names the sub-command that is meant when the line has none.
    """
    kind = type("DefaultGroup", (_DefaultGroup,), {"default": default}) if default else _Group
    app = typer.Typer(
        cls=kind,
        help=help,
        epilog=COMMON_HELP,
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=False,
    )
    if group or default:
        app.callback()(_keep_group)
    return app


Answer = TypeVar("Answer")


def spread_options(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Make the fields of a dataclass among a function's parameters options of the command.

    They are declared as typer's parameters are; the function gets them as one value.
    """
    signature = inspect.signature(function, eval_str=True)
    kinds = {name: each.annotation for name, each in signature.parameters.items()}
    kinds = {name: kind for name, kind in kinds.items() if dataclasses.is_dataclass(kind)}
    groups = {name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()}

    @functools.wraps(function)
    def command(**given: Any) -> Answer:
        for name, fields in groups.items():
            given[name] = kinds[name](**{field: given.pop(field) for field in fields})
        return function(**given)

    spread = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        for parameter in groups.get(each.name, {each.name: each}).values()
    ]
    shown: Any = command
    shown.__signature__ = signature.replace(parameters=spread)
    shown.__annotations__ = {each.name: each.annotation for each in spread}
    return command


def find_typed_options(context: typer.Context) -> dict[str, Any]:
    """Return the options and arguments that stand on the command line, by the name of their parameter."""
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


class _Group(TyperGroup):
    """Lists its commands with the whole first sentence of their help, which wraps instead of being cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=400)) for name, one in commands if one])


class _DefaultGroup(_Group):
    """Takes a line without a sub-command (nothing, options, a folder) as that of the default one."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """Put the default sub-command before such a line."""
        words = list(args)
        first = words[0] if words else ""
        helped = first in ("-h", "--help")
        if not helped and first not in self.commands and (first[:1] in ("", "-") or Path(first).is_dir()):
            words.insert(0, self.default)
        parsed: list[str] = super().parse_args(ctx, words)
        return parsed


def _keep_group() -> None:
    pass
