"""How a command module makes its typer application, the same for all: plain help, no completion code."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

COMMON_HELP = """\b
Common options:
  --json           one JSON object on stdout
  --plain          no colour, tab-separated tables
  -q, --quiet      the answer and errors only
  --color WHEN     auto, always or never
  --no-progress    no progress on stderr
  --hub URL        the hub to use, or its name in the settings file
  --debug          show the traceback of an error"""


ALL = "--help-all"


def command_app(help: str | None = None, *, group: bool = False) -> typer.Typer:
    """Return an application; with `group=True` its commands stay sub-commands even if there is only one."""
    app = typer.Typer(
        cls=_Group,
        help=help,
        epilog=COMMON_HELP,
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=False,
    )
    if group:
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


class SectionedCommand(TyperCommand):
    """Shows the options of no section in `--help`, and those of all sections in `--help-all`.

    The section of an option is its `rich_help_panel`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `--help-all` for `--help` of everything."""
        words = args[: args.index("--")] if "--" in args else args
        if ALL in words:
            ctx.meta[ALL] = True
            args = ["--help"]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (record := one.get_help_record(ctx)) is not None:
                usual = "Arguments" if one.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(one, "rich_help_panel", None) or usual, []).append(record)
        further = [name for name in sections if name not in ("Arguments", "Options")]
        if further and not ctx.meta.get(ALL):
            number = sum(len(sections.pop(name)) for name in further)
            sections["Options"].append((ALL, f"{number} more: {', '.join(map(str.lower, further))}"))
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _keep_group() -> None:
    pass
