"""Every example in the help of `wander` and `wander-hub` uses commands and options that exist.

`test_help_examples.py` runs the examples. This also covers those that it cannot run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from written_commands import PROGRAMS, commands, unknown_parts

EXPLANATION = re.compile(r"\s{2,}|\s[#<]\s?")
"""What follows an example on its line: an explanation, a comment or an input."""


def help_texts(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    yield command.help or ""
    if isinstance(command, click.Group):
        ctx = click.Context(command, parent=parent)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from help_texts(child, ctx)


@pytest.mark.parametrize("program", PROGRAMS)
def test_examples_use_options_that_exist(program: str) -> None:
    lines = [line.strip() for text in help_texts(PROGRAMS[program]) for line in text.splitlines()]
    examples = [EXPLANATION.split(line)[0] for line in lines if line.startswith(f"{program} ")]
    unknown = {example: unknown_parts(words) for example in examples for words in commands(example)}
    assert len(examples) > 20
    assert {example: words for example, words in unknown.items() if words} == {}
