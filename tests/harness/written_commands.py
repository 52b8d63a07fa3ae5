"""The commands of `wander` and `wander-hub` in a text, compared with those that exist."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator

import click
from wander_client.commands import GROUPS, LazyGroup
from wander_hub.cli.main import app

PROGRAMS: dict[str, click.Group] = {"wander": LazyGroup(), "wander-hub": app}
SORT_ORDER = "-reward"
"""A value of `--sort`, which looks like an option."""


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each `wander` and `wander-hub` command of a shell line."""
    words: list[str] = []
    for word in [*shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True), ";"]:
        if set(word) <= set("();<>|&"):
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words and words[0] in PROGRAMS:
                yield words
            words = []
        else:
            words.append(word)


def unknown_parts(words: list[str]) -> list[str]:
    """Return the options of a command that it does not have; all its words where there is no such command."""
    program, *rest = words
    command: click.Command = PROGRAMS[program]
    ctx = click.Context(command, info_name=program, **command.context_settings)
    known = {"--help", "--version", SORT_ORDER, *flags_of(ctx)}
    for word in rest:
        if not isinstance(ctx.command, click.Group) or word in flags_of(ctx):
            continue
        found = default_command(ctx) if word.startswith("-") else ctx.command.get_command(ctx, word)
        if found is None:
            return words
        ctx = click.Context(found, parent=ctx, info_name=word)
        known |= flags_of(ctx)
    given = itertools.takewhile(lambda word: word != "--", rest)
    return [word for word in given if word.startswith("-") and word.partition("=")[0] not in known]


def default_command(ctx: click.Context) -> click.Command | None:
    """Return the command that a group of `wander` runs if none is named, or None."""
    group = GROUPS.get(ctx.info_name or "") if isinstance(ctx.command, LazyGroup) else None
    if group is None or group.default is None:
        return None
    return ctx.command.get_command(ctx, group.default)


def flags_of(ctx: click.Context) -> set[str]:
    return {flag for param in ctx.command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}
