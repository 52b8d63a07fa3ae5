"""The `wander` command: the only place that prints errors and chooses the exit status.

`wander --help` and `wander --version` import nothing heavy but click; every other line imports exactly the
module of its command.
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
"""Variable that click's completion scripts set when a shell asks for completions."""


class CommandLine:
    """One command line, with its output and its common options."""

    def __init__(self, output: Output, transport: httpx.BaseTransport | None = None) -> None:
        self.output = output
        self._transport = transport

    def begin(self, ctx: click.Context) -> None:
        """Make the command that is about to run the current one."""
        options = CommonOptions(
            mode=next((mode for mode in ("json", "quiet", "plain") if f"common_{mode}" in ctx.meta), None),
            color=ctx.meta.get("common_color", "auto"),
            progress="common_no_progress" not in ctx.meta,
            hub=ctx.meta.get("common_hub"),
        )
        mode = choose_mode(options.mode, os.environ, terminal=sys.stdout.isatty())
        if "RANK" in os.environ:  # one of several processes; others are spared the import of the SDK
            from wander.train.distributed import is_beside_main

            mode = "quiet" if is_beside_main() else mode
        command = "-".join(ctx.command_path.split()[1:])
        self.output = Output(mode, command=command, color=options.color, progress=options.progress)
        set_current(Invocation(options, self.output, self._transport))

    def suggest(self, parameter: str) -> list[str]:
        """Return values of a parameter for a shell's completion."""
        from wander_client.commands.shell.suggestions import suggest

        return suggest(parameter)


def main(argv: Sequence[str] | None = None, *, transport: httpx.BaseTransport | None = None) -> int:
    """Run one command line and return its exit status.

    `transport` carries the requests to the hub in place of the network.
    """
    # To look for plugins, pydantic reads the metadata of every installed package: 30 ms of each command.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # httpx imports a command line of its own, with rich and pygments, if they are there: 40 ms more.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    arguments = list(sys.argv[1:] if argv is None else argv)
    line = CommandLine(Output("json" if "--json" in arguments else "plain"), transport)
    try:
        with _treat_sigterm_as_interrupt():
            return _run(line, arguments)
    except BrokenPipeError:
        # The reader went away (`wander search | head`); nothing is left to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that catches everything
        from wander.train.distributed import join_world

        from wander_client.failures import explain

        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        explained = explain(error, line.output.command)
        # Of several processes of `wander train` the first tells of the failure that ends the others.
        if not join_world().outlast_main():
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
    """Treat SIGTERM as Ctrl-C, so that what is done is kept."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread: signals belong to whoever embeds us
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
