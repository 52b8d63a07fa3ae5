"""The `wander` command: the only place that prints errors and chooses the exit status.

`wander --help`, `wander --version` and `wander help exit-codes` import nothing heavy; every other line
imports exactly the module of its command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from wander_client import __version__
from wander_client.commands import (
    COMMANDS,
    FIRST_SCREEN,
    GROUPS,
    OTHER_NAMES,
    load,
    members,
    resolve,
    schema_of,
)
from wander_client.context import CommonOptions, Invocation, set_current
from wander_client.errors import EXIT_CODES, UsageError
from wander_client.terminal.output import MODES, Mode, Output, choose_mode
from wander_client.terminal.suggestions import choose, did_you_mean

if TYPE_CHECKING:
    import httpx

TOPICS = {
    "exit-codes": "what the exit status means",
    "reference": "every command with all its options, as Markdown",
}

COMMON_OPTIONS = (
    "common options, at any place:",
    "  --json --plain -q/--quiet --color auto|always|never --no-progress --hub URL --debug -h/--help",
)


def main(argv: Sequence[str] | None = None, *, transport: httpx.BaseTransport | None = None) -> int:
    """Run one command line and return its exit status.

    `transport` carries the requests to the hub in place of the network.
    """
    # To look for plugins, pydantic reads the metadata of every installed package: 30 ms of each command.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # httpx imports a command line of its own, with click, rich and pygments, if they are there: 40 ms more.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    arguments = list(sys.argv[1:] if argv is None else argv)
    output = Output("json" if "--json" in arguments else "plain")
    debug = "--debug" in arguments
    try:
        options, rest = take_common_options(arguments)
        mode = choose_mode(options.mode, os.environ, terminal=sys.stdout.isatty())
        if "RANK" in os.environ:  # one of several processes; others are spared the import of the SDK
            from wander.train.distributed import is_beside_main

            mode = "quiet" if is_beside_main() else mode
        output = Output(mode, color=options.color, progress=options.progress)
        with _treat_sigterm_as_interrupt():
            return _dispatch(Invocation(options, output, transport), rest)
    except BrokenPipeError:
        # The reader went away (`wander search | head`); nothing is left to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that catches everything
        from wander.train.distributed import join_world

        from wander_client.failures import explain

        if debug:
            import traceback

            traceback.print_exc()
        explained = explain(error, output.command)
        # Of several processes of `wander train` the first tells of the failure that ends the others.
        if not join_world().outlast_main():
            output.error(explained)
        return explained.status
    finally:
        set_current(None)


def take_common_options(arguments: Sequence[str]) -> tuple[CommonOptions, list[str]]:
    """Split the options that every command takes from the rest of the line; `--` ends the search."""
    mode: Mode | None = None
    values: dict[str, str] = {}
    progress = True
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest.extend([word, *words])
        elif word in ("--json", "--plain", "--quiet", "-q"):
            wanted: Mode = next((m for m in MODES if word == f"--{m}"), "quiet")
            mode = "json" if "json" in (mode, wanted) else wanted
        elif word == "--no-progress":
            progress = False
        elif word == "--debug":
            continue  # `main` looks for it itself, since this may fail
        elif name in ("--color", "--hub"):
            given = value if equals else next(words, None)
            if given is None or (given.startswith("--") and not equals):
                raise UsageError(f"`{name}` needs a value", hint="run `wander --help`")
            values[name] = given
        else:
            rest.append(word)
    color = choose("--color", values.get("--color", "auto"), ("auto", "always", "never"))
    return CommonOptions(mode, color, progress, values.get("--hub")), rest


def _dispatch(invocation: Invocation, arguments: list[str]) -> int:
    output = invocation.output
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        return _help(output, arguments[1:])
    if name in ("--version", "-V"):
        output.command = "version"
        output.answer({"wander": __version__, "python": sys.version.split()[0]}, f"wander {__version__}")
        return 0
    found = resolve(arguments)
    if found.is_group:
        if found.rest and found.rest[0] not in ("-h", "--help"):
            group, word = found.name, found.rest[0]
            hint = did_you_mean(word, members(group)) or f"run `wander {group} --help` for the list"
            message = f"`wander {group}` has no command `{word}`"
            raise UsageError(message, hint=hint, code="unknown_command")
        return _help_of_group(output, found.name)
    if not found.name:
        _unknown(name, _typed_names() | {"help": "help"}, "command")
    set_current(invocation)
    output.command = schema_of(found.name)
    return _run_command(output, found.name, found.rest)


def _run_command(output: Output, name: str, arguments: list[str]) -> int:
    return load(name).run(f"wander {name}", arguments, lambda text: output.answer({"help": text}, text))


def _help(output: Output, topics: list[str]) -> int:
    output.command = "help"
    if not topics:
        commands = {name: entry.summary for name, entry in COMMANDS.items()}
        output.answer({"commands": commands, "topics": TOPICS}, lambda: _overview(output))
        return 0
    topic = topics[0]
    if topic == "exit-codes":
        rows = [{"code": code, "meaning": text} for code, text in EXIT_CODES.items()]
        output.answer(
            {"exit_codes": rows}, "\n".join(f"{code:>4}  {text}" for code, text in EXIT_CODES.items())
        )
        return 0
    if topic == "reference":
        text = "\n".join(_reference())
        output.answer({"reference": text}, text)
        return 0
    # Without its default command: help is asked for the group.
    found = resolve([*topics, "--help"])
    if found.is_group:
        return _help_of_group(output, found.name)
    if not found.name:
        _unknown(topic, _typed_names() | {name: name for name in TOPICS}, "topic")
    return _run_command(output, found.name, ["--help"])


def _reference() -> Iterator[str]:
    """Yield the help of each command as Markdown, those of groups within commands after their own."""
    from wander_client.terminal.command import COMMON_HELP, CommandLine

    yield f"```text\n{COMMON_HELP.strip(chr(10))}\n```\n"
    for name in COMMANDS:
        command = load(name)
        pages = {name: command}
        if not isinstance(command, CommandLine):
            pages |= {f"{name} {word}": one for word, one in command.commands.items()}
        for path, one in pages.items():
            line = f"wander {path}"
            page = one.help(line, whole=True) if isinstance(one, CommandLine) else one.help(line)
            yield f"## {line}\n\n```text\n{page.removesuffix(COMMON_HELP).rstrip()}\n```\n"


def _overview(output: Output) -> None:
    output.line("Publish, install, evaluate and train on environments for language models.")
    output.line()
    for example in (
        "wander new my-env                        start an environment",
        "wander install admin/tictactoe           get one by name",
        "wander eval admin/tictactoe -m smollm2   evaluate a model on it",
        "wander post runs/RUN                     put the result on the leaderboard",
    ):
        output.line(f"  {example}")
    output.line()
    output.line("commands:", style="bold")
    for name in FIRST_SCREEN:
        output.line(f"  {name:<12} {COMMANDS[name].summary}")
    output.line(f"  {'help':<12} show the help of a command, a group or a topic")
    output.line()
    output.line("more commands:", style="bold")
    rest = {name: group.summary for name, group in GROUPS.items()}
    rest |= {
        name: one.summary for name, one in COMMANDS.items() if " " not in name and name not in FIRST_SCREEN
    }
    for name, summary in rest.items():
        output.line(f"  {name:<12} {summary}")
    output.line()
    for line in (
        *COMMON_OPTIONS,
        "  --version",
        "",
        "more: `wander COMMAND --help`, `wander help exit-codes`",
    ):
        output.line(line)


def _help_of_group(output: Output, group: str) -> int:
    output.command = "help"
    commands, about = members(group), GROUPS[group]

    def show() -> None:
        output.line(f"Usage: wander {group} COMMAND [OPTIONS]")
        output.line()
        output.line(f"  {about.summary[:1].upper()}{about.summary[1:]}.")
        if about.default is not None:
            output.line()
            output.line(f"  Without a word it is `wander {group} {about.default}`.")
        output.line()
        output.line("Commands:")
        for name, summary in commands.items():
            output.line(f"  {name:<12} {summary}")
        output.line()
        for line in COMMON_OPTIONS:
            output.line(line)
        output.line()
        output.line(f"more: `wander {group} COMMAND --help`")

    output.answer({"commands": {f"{group} {name}": said for name, said in commands.items()}}, show)
    return 0


def _typed_names() -> dict[str, str]:
    """Return what may stand first on a line, with the name that is shown for it."""
    first = {name.partition(" ")[0]: name.partition(" ")[0] for name in COMMANDS}
    return {**OTHER_NAMES, **first}


def _unknown(name: str, known: dict[str, str], what: str) -> NoReturn:
    hint = did_you_mean(name, known, shown=known) or "run `wander --help` for the list"
    raise UsageError(f"no {what} is called `{name}`", hint=hint, code=f"unknown_{what}")


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
