"""How a command module makes its typer application, the same for all: plain help, no completion code."""

from __future__ import annotations

from typing import Any

import typer

COMMON_HELP = """\b
Common options:
  --json           one JSON object on stdout
  --plain          no colour, tab-separated tables
  -q, --quiet      the answer and errors only
  --color WHEN     auto, always or never
  --no-progress    no progress on stderr
  --hub URL        the hub to use, or its name in the settings file
  --debug          show the traceback of an error"""


def command_app(help: str | None = None, *, group: bool = False) -> typer.Typer:
    """Return an application; with `group=True` its commands stay sub-commands even if there is only one."""
    app = typer.Typer(
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


def typed_options(context: typer.Context) -> dict[str, Any]:
    """Return the options and arguments that stand on the command line, by the name of their parameter."""
    return {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def _keep_group() -> None:
    pass
