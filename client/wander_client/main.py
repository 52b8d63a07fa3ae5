"""The `wander` command. Only this module prints errors and chooses the exit status.

For `wander --help` and `wander --version`, click is the only large import. Other command lines import only
the module of their command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from wander_client import __version__
from wander_client.commands import LazyGroup
from wander_client.context import CommonOptions, Invocation, set_current
from wander_client.terminal.command import explain_usage
from wander_client.terminal.output import Output, choose_mode

if TYPE_CHECKING:
    import httpx

COMPLETION = "_WANDER_COMPLETE"
"""Variable that click's completion scripts set when the shell asks for completions."""


class CommandLine:
    """A command line with its output and common options."""

    def __init__(self, output: Output, transport: httpx.BaseTransport | None = None) -> None:
        self.output = output
        self._transport = transport

    def begin(self, ctx: click.Context) -> None:
        """Set up the state of the command that is about to run."""
        options = CommonOptions(
            mode=next((mode for mode in ("json", "quiet", "plain") if f"common_{mode}" in ctx.meta), None),
            color=ctx.meta.get("common_color", "auto"),
            progress="common_no_progress" not in ctx.meta,
            hub=ctx.meta.get("common_hub"),
        )
        mode = choose_mode(options.mode, os.environ, terminal=sys.stdout.isatty())
        if (
            "RANK" in os.environ
        ):  # launched as several processes; the check avoids importing the SDK otherwise
            from wander.train.distributed import is_secondary_process

            mode = "quiet" if is_secondary_process() else mode
        command = "-".join(ctx.command_path.split()[1:])
        self.output = Output(mode, command=command, color=options.color, progress=options.progress)
        set_current(Invocation(options, self.output, self._transport))

    def suggest(self, parameter: str) -> list[str]:
        """Return completions for a parameter."""
        from wander_client.commands.shell.suggestions import suggest

        return suggest(parameter)


def main(argv: Sequence[str] | None = None, *, transport: httpx.BaseTransport | None = None) -> int:
    """Run a command line and return its exit status.

    `transport` replaces the network for requests to the hub, for tests.
    """
    # pydantic would read the metadata of every installed package to find plugins: 30 ms per command.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # httpx would import its own command line with rich and pygments: 40 ms more per command.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    arguments = list(sys.argv[1:] if argv is None else argv)
    line = CommandLine(Output("json" if "--json" in arguments else "plain"), transport)
    try:
        with _treat_sigterm_as_interrupt():
            return _run(line, arguments)
    except BrokenPipeError:
        # The reader closed the pipe, as in `wander search | head`, so nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the only handler for all errors
        from wander.train.distributed import join_world

        from wander_client.failures import explain

        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        explained = explain(error, line.output.command)
        # If `wander train` runs in several processes, the main process reports the error for all of them.
        if not join_world().wait_for_main_failure():
            line.output.error(explained)
        return explained.status
    finally:
        set_current(None)


def _run(line: CommandLine, arguments: list[str]) -> int:
    wander = LazyGroup()
    wander.params.append(
        click.Option(
            ["--version", "-V"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="show the version",
        )
    )
    if COMPLETION in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(wander, {"obj": line}, "wander", COMPLETION, os.environ[COMPLETION])
    try:
        with wander.make_context("wander", arguments, obj=line) as ctx:
            return wander.invoke(ctx) or 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        raise explain_usage(error, arguments) from error


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        output = ctx.obj.output
        output.command = "version"
        output.answer({"wander": __version__, "python": sys.version.split()[0]}, f"wander {__version__}")
        ctx.exit()


@contextlib.contextmanager
def _treat_sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that finished work is saved."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread, so the embedding program handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
