"""`wander help`: the help of a command, the exit statuses, or all commands as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import click

from wander_client.commands import COMMANDS, LazyGroup
from wander_client.context import current
from wander_client.errors import EXIT_CODES
from wander_client.terminal.command import Argument


def show_help(
    words: Annotated[list[str] | None, Argument(help="a command, a group or a topic")] = None,
) -> None:
    """Show the help of a command, a group or a topic.

    \b
    wander help runs compare
    wander help exit-codes     what the exit status means
    wander help reference      every command with all its options, as Markdown
    """
    output = current().output
    if words == ["exit-codes"]:
        rows = [{"code": code, "meaning": text} for code, text in EXIT_CODES.items()]
        lines = [f"{code:>4}  {text}" for code, text in EXIT_CODES.items()]
        output.answer({"exit_codes": rows}, "\n".join(lines))
    elif words == ["reference"]:
        text = "\n".join(f"## {path}\n\n```text\n{page}\n```\n" for path, page in _pages())
        output.answer({"reference": text}, text)
    else:
        text = _context(words or []).get_help()
        output.answer({"help": text}, text)


def _context(words: list[str]) -> click.Context:
    """Return the context of a command; raises `UsageError` if the command is unknown."""
    wander = LazyGroup()
    ctx = click.Context(wander, info_name="wander", **wander.context_settings)
    for word in words:
        group = ctx.command
        if not isinstance(group, click.Group):
            ctx.fail(f"`{ctx.command_path}` has no commands")
        name, command, _ = group.resolve_command(ctx, [word])
        if command is not None:
            ctx = click.Context(command, parent=ctx, info_name=name, **command.context_settings)
    return ctx


def _pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the help text of each command; a group is followed by its commands."""
    for name in COMMANDS:
        contexts = [_context(name.split())]
        if isinstance(group := contexts[0].command, click.Group):
            contexts += [_context([*name.split(), word]) for word in group.commands]
        for ctx in contexts:
            yield ctx.command_path, ctx.get_help()
