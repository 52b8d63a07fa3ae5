"""Options of a command as the fields of a dataclass, for commands with more of them than a function bears."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

import typer

Options = TypeVar("Options")


def takes_options(
    kind: type[Options],
) -> Callable[[Callable[[typer.Context, Options], int]], Callable[..., int]]:
    """Make a function of (context, options) a command whose options are the fields of a dataclass.

    Each field is annotated as typer has it: `Annotated[int, typer.Option("-n", help="...")] = 20`.
    """

    def decorate(function: Callable[[typer.Context, Options], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(context: typer.Context, **given: Any) -> int:
            return function(context, kind(**given))

        hints = get_type_hints(kind, include_extras=True)
        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        for field in fields(kind):  # type: ignore[arg-type]  # a dataclass, which no annotation can say
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=hints[field.name],
                )
            )
        shown: Any = command
        shown.__signature__ = inspect.Signature(parameters, return_annotation=int)
        shown.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate
