"""Commands and groups of click with the hub's wording of help and usage errors."""

from __future__ import annotations

from typing import Any

import click

_TIMES = "`2026-01-31` or `2026-01-31T18:00:00`"


class Integer(click.IntRange):
    """A range of integers with the metavar `N`, which help and errors describe in words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with a sentence that states the range."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"must be a whole number ({self._describe_range()}), got `{value}`", param, ctx)

    def _describe_range(self) -> str:
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in the help."""
        return "N"


class Choice(click.Choice[str]):
    """Words to choose from; an error lists them in the hub's wording."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or fail with a sentence that lists all words."""
        if value in self.choices:
            return super().convert(value, param, ctx)
        *most, last = (f"`{word}`" for word in self.choices)
        self.fail(f"must be {', '.join(most)} or {last}, got `{value}`", param, ctx)


class Command(click.Command):
    """A command whose help describes `--help` like every other option."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the help option with a text in lower case."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "show this help"
        return option


class Group(Command, click.Group):
    """A group that lists complete summaries of its commands, in lower case and in declaration order."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in declaration order."""
        return list(self.commands)

    def summaries(self) -> dict[str, str]:
        """Return the summary of each command by name."""
        texts = {name: command.get_short_help_str(1000) for name, command in self.commands.items()}
        return {name: f"{text[:1].lower()}{text[1:]}".rstrip(".") for name, text in texts.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a command line; click suggests similar names if it does not exist."""
        names = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in names:
            raise click.NoSuchCommand(args[0], possibilities=names, ctx=ctx)
        return super().resolve_command(ctx, args)


def refuse_unless(used: bool, option: str, *, needs: str) -> None:
    """Raise a usage error if the user typed an option that has no effect without others."""
    source = click.get_current_context().get_parameter_source(option)
    if not used and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"`--{option}` requires {needs}", click.get_current_context())


def explain_usage(error: click.UsageError) -> tuple[str, str]:
    """Return the message and the hint for a command line that click rejects."""
    from wander.errors import did_you_mean, suggest_option  # imported late, to show help faster
    from wander.types import start_lower

    path = error.ctx.command_path if error.ctx is not None else "wander-hub"
    hint, message = None, error.message.rstrip(".")
    if isinstance(error, click.NoSuchCommand):
        message = f"`{path}` has no command `{error.command_name}`"
        hint = did_you_mean(error.command_name, error.possibilities or ())
    elif isinstance(error, click.NoSuchOption):
        message = f"unknown option `{error.option_name}`"
        flags = [flag for param in error.ctx.command.params for flag in param.opts] if error.ctx else []
        hint = suggest_option(error.option_name, flags)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        is_argument = isinstance(error.param, click.Argument)
        name = error.param.human_readable_name if is_argument else max(error.param.opts, key=len)
        if isinstance(error, click.MissingParameter):
            message = f"missing {'argument' if is_argument else 'option'} `{name}`"
        elif isinstance(error.param.type, click.DateTime):
            message = f"`{name}` must be a time such as {_TIMES}"
        else:
            message = f"`{name}`: {message}"
    return start_lower(message), hint or f"run `{path} --help`"
