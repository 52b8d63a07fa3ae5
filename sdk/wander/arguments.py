"""Arguments of `load_environment`, held against its signature before it is called."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from wander.errors import ArgumentsUnfit


def require_fitting(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise `ArgumentsUnfit` for an argument that the factory does not take, or not with such a value.

    A value is held against the annotation as strict JSON: `2` fits a float, `[1]` a tuple, `"2"` no int. Null
    fits wherever it is the default. What has no annotation, or one that means nothing to JSON, fits.
    """
    signature = inspect.signature(factory)
    taken = describe_accepted(signature)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        why = _explain_unbound(signature, arguments, error)
        raise ArgumentsUnfit(f"environment `{name}`: {why}", hint=taken) from error
    for key, annotation in _annotations(factory, signature):
        if key not in arguments or (arguments[key] is None and signature.parameters[key].default is None):
            continue
        problem = _misfit(annotation, arguments[key])
        if problem is not None:
            kind = _write_annotation(signature.parameters[key])
            raise ArgumentsUnfit(
                f"environment `{name}`: `{key}` must be `{kind}`, not `{_json(arguments[key])}` ({problem})",
                hint=taken,
            )


def describe_accepted(signature: inspect.Signature) -> str:
    """Return what a factory takes, in words: ``it takes `size: int = 3`, `level``` ."""
    shown = ", ".join(f"`{_show_parameter(parameter)}`" for parameter in signature.parameters.values())
    return f"it takes {shown}" if shown else "it takes no arguments"


def cause(error: BaseException) -> str:
    """Return an exception's type and message; of a failed validation the first problem, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{error.title}: {f'`{place}`: ' if place else ''}{first['msg']}"
    return f"{type(error).__name__}: {error}"


def _explain_unbound(signature: inspect.Signature, arguments: Mapping[str, Any], error: TypeError) -> str:
    """Say what does not bind: the unknown names, each with the one that it looks like, or what is missing."""
    parameters = signature.parameters
    unknown = [key for key in arguments if key not in parameters]
    if not unknown:
        return str(error)
    said = []
    for key in unknown:
        near = difflib.get_close_matches(key, parameters, n=1)
        said.append(f"there is no argument `{key}`" + (f", did you mean `{near[0]}`?" if near else ""))
    return "; ".join(said)


def _annotations(factory: Callable[..., Any], signature: inspect.Signature) -> Iterator[tuple[str, Any]]:
    try:
        hints = get_type_hints(factory, include_extras=True)
    except Exception:  # noqa: BLE001 - names that exist for a type checker alone; then nothing is known
        return
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for key, parameter in signature.parameters.items():
        if key in hints and parameter.kind not in variable:
            yield key, hints[key]


def _misfit(annotation: Any, value: Any) -> str | None:
    """Return why a value does not fit an annotation, or None."""
    try:
        adapter = TypeAdapter(annotation)
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        message = error.errors(include_url=False, include_input=False)[0]["msg"]
        return message[:1].lower() + message[1:]
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None  # a class of the author's own, or a value that is no JSON: for the factory to say
    return None


def _show_parameter(parameter: inspect.Parameter) -> str:
    name = str(parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty))
    kind = _write_annotation(parameter)
    default = "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
    if kind:
        return f"{name}: {kind}" + (f" = {default}" if default else "")
    return f"{name}={default}" if default else name


def _write_annotation(parameter: inspect.Parameter) -> str:
    """Return an annotation as its author wrote it; postponed ones are texts already."""
    if parameter.annotation is inspect.Parameter.empty:
        return ""
    if isinstance(parameter.annotation, str):
        return parameter.annotation
    return inspect.formatannotation(parameter.annotation)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)
