"""Every example in the help of `wander` and `wander-hub` uses commands and options that exist.

`test_help_examples.py` runs the examples. This also covers those that it cannot run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from wander_client.commands import GROUPS, LazyGroup
from wander_hub.cli.main import app

PROGRAMS: dict[str, click.Group] = {"wander": LazyGroup(), "wander-hub": app}
END_OF_COMMAND = re.compile(r"\s{2,}|\s[#<>|]\s")
"""What follows an example on its line: an explanation, a comment or a redirection."""
SORT_ORDER = "-reward"
"""A value of `--sort`, which looks like an option."""


def help_texts(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    yield command.help or ""
    if isinstance(command, click.Group):
        ctx = click.Context(command, parent=parent)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from help_texts(child, ctx)


def unknown_words(program: str, words: list[str]) -> list[str]:
    """Return the command and the options of an example that do not exist."""
    command: click.Command = PROGRAMS[program]
    path: list[str] = []
    ctx = click.Context(command)
    known = {SORT_ORDER, *flags_of(command, ctx)}
    while isinstance(command, click.Group):
        if words and not words[0].startswith("-"):
            name = words.pop(0)
        elif (group := GROUPS.get(" ".join(path))) is not None and group.default is not None:
            name = group.default
        else:
            break
        child = command.get_command(ctx, name)
        if child is None:
            return [name]
        path.append(name)
        command, ctx = child, click.Context(child, parent=ctx)
        known |= flags_of(command, ctx)
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


def flags_of(command: click.Command, ctx: click.Context) -> set[str]:
    return {flag for param in command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_examples_use_options_that_exist(program: str) -> None:
    lines = [line.strip() for text in help_texts(PROGRAMS[program]) for line in text.splitlines()]
    examples = [END_OF_COMMAND.split(line)[0] for line in lines if line.startswith(f"{program} ")]
    unknown = {example: unknown_words(program, shlex.split(example)[1:]) for example in examples}
    assert len(examples) > 20
    assert {example: words for example, words in unknown.items() if words} == {}
