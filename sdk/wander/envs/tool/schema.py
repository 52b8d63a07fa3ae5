"""Python functions as tools: the JSON schema for the model, and the validation of the model's arguments.

The schema comes from the signature (through pydantic, which supports enums, literals, unions, containers,
typed dictionaries, dataclasses and models) and from the docstring in Google, NumPy or Sphinx style. The same
model validates and coerces the arguments.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from wander.errors import ConfigError
from wander.types import refuse_constant

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Function names that OpenAI-compatible endpoints accept."""

MAX_DECODINGS = 3
"""Maximum number of times that JSON text inside JSON text is decoded."""


class ToolCallError(Exception):
    """A call that cannot be made as the model wrote it. The model receives the message."""


class UnknownTool(ToolCallError):
    """The model called a tool that the environment does not offer."""


class InvalidArguments(ToolCallError):
    """The arguments are not JSON, or do not match the tool's parameters."""


class Tool(ABC):
    """A tool that an environment can offer to a model: a Python function, or a tool of an MCP server."""

    name: str

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the function schema in OpenAI's format."""

    @abstractmethod
    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the validated arguments. Raises `InvalidArguments`."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the tool with validated arguments. Exceptions of the tool are not caught."""


class FunctionTool(Tool):
    """A sync or async function, offered to the model under its name.

    `args_to_skip` names parameters that the model neither sees nor may pass, because the environment fills
    them in. Raises `ConfigError` for functions whose parameters cannot be filled from a JSON object.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        args_to_skip: Iterable[str] = (),
    ) -> None:
        if not callable(function):
            raise ConfigError(f"a tool must be callable, got `{function!r}`")
        self.function = function
        own_names = (
            getattr(named, "__name__", None) for named in (function, getattr(function, "func", None))
        )
        self.name = name or next(filter(None, own_names), type(function).__name__)
        if not TOOL_NAME.fullmatch(self.name):
            raise ConfigError(
                f"`{self.name}` cannot be the name of a tool",
                hint="use 1 to 64 letters, digits, `_` and `-`; lambdas need a name of their own",
            )
        parameters = _parameters(function, self.name)
        self.skipped = frozenset([args_to_skip] if isinstance(args_to_skip, str) else args_to_skip)
        unknown = sorted(self.skipped - set(parameters))
        if unknown:
            raise ConfigError(
                f"tool `{self.name}` has no parameter `{unknown[0]}` to skip",
                hint=f"its parameters are {', '.join(f'`{name}`' for name in parameters) or 'none'}",
            )
        summary, documented = documentation(function)
        self.description = summary if description is None else description
        self._names = {
            f"argument_{position}": parameter
            for position, parameter in enumerate(parameters)
            if parameter not in self.skipped
            and parameters[parameter].kind is not inspect.Parameter.VAR_KEYWORD
        }
        self._model, self.parameters = _argument_model(function, self.name, self._names, documented)

    def schema(self) -> dict[str, Any]:
        """Return the function schema in OpenAI's format."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those arguments that were passed, validated and coerced.

        If a string does not validate, it is decoded as JSON and validated again, because models often write
        `"[1, 2]"` for `[1, 2]`. Raises `InvalidArguments`.
        """
        try:
            valid = self._model.model_validate(arguments)
        except ValidationError as first:
            valid = self._check_again(arguments, first)
        except RecursionError as error:
            raise InvalidArguments("the arguments are nested too deeply") from error
        values = {
            self._names[field]: getattr(valid, field) for field in valid.model_fields_set & set(self._names)
        }
        return {
            **{name: values[name] for name in self._names.values() if name in values},
            **(valid.model_extra or {}),
        }

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with validated arguments. Exceptions of the function are not caught."""
        result = self.function(**arguments)
        return await result if inspect.isawaitable(result) else result

    def _check_again(self, arguments: Mapping[str, Any], first: ValidationError) -> BaseModel:
        """Validate again, with the failing strings decoded from JSON."""
        decoded = dict(arguments)
        for name in {error["loc"][0] for error in first.errors(include_url=False) if error["loc"]}:
            if isinstance(name, str) and isinstance(decoded.get(name), str):
                with contextlib.suppress(ValueError, RecursionError):  # not JSON, so it remains a string
                    decoded[name] = json.loads(decoded[name], parse_constant=refuse_constant)
        try:
            return self._model.model_validate(decoded)
        except (ValidationError, RecursionError):
            faults = []
            for fault in first.errors(include_url=False)[:10]:
                where = ".".join(map(str, fault["loc"])) or "arguments"
                faults.append(f"{where}: {fault['msg']}")
            message = f"wrong arguments for `{self.name}`: {'; '.join(faults)}"
            raise InvalidArguments(message) from first


def parse_arguments(raw: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as a dictionary. Endpoints send them in several forms.

    Accepts JSON text, repeatedly encoded JSON text, a dictionary, and a missing value. Raises
    `InvalidArguments`.
    """
    value = raw
    for _ in range(MAX_DECODINGS):
        if not isinstance(value, str):
            break
        if not value.strip():
            return {}
        try:
            value = json.loads(value, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg} at character {error.pos}"
            raise InvalidArguments(f"the arguments are not valid JSON ({reason}): {value[:500]}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArguments(f"the arguments must be a JSON object, got: {str(raw)[:500]}")
    return value


def documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring's descriptions of the function and of each parameter."""
    text = inspect.getdoc(_written_code(function)) or ""
    if not text:
        return "", {}
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(text)
    except (ParseError, ValueError, IndexError, KeyError, TypeError, AttributeError):
        return text, {}
    described = {
        name.strip().lstrip("*"): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
    }
    return (parsed.description or "").strip(), {name: value for name, value in described.items() if value}


def _written_code(function: Callable[..., Any]) -> Any:
    """Return the object with docstring and annotations.

    For a callable object, this is its class's `__call__`.
    """
    inner = getattr(function, "func", function)
    return inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the signature of tool `{name}` cannot be read: {error}") from error
    for parameter in parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigError(
                f"tool `{name}` has the positional parameter `{parameter.name}`, "
                "which a JSON object cannot fill",
                hint="give every parameter a name that can be passed as a keyword",
            )
    return parameters


def _argument_model(
    function: Callable[..., Any], tool: str, names: Mapping[str, str], documented: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, Any]]:
    """Build the pydantic model of the arguments and its schema. `names` maps fields to parameters.

    Fields have neutral names, so that a parameter called `schema` or `_x` cannot clash with pydantic's own
    names.
    """
    hints = _hints(function, tool)
    parameters = inspect.signature(function).parameters
    fields: dict[str, Any] = {}
    for field, name in names.items():
        annotation, default = hints.get(name, Any), parameters[name].default
        # `Annotated[int, "how many"]`
        texts = (text for text in getattr(annotation, "__metadata__", ()) if isinstance(text, str))
        argument_field = Field(
            default=... if default is inspect.Parameter.empty else default,
            alias=name,
            description=documented.get(name) or next(texts, None),
        )
        fields[field] = (annotation, argument_field)
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    config = ConfigDict(extra="allow" if takes_more else "forbid", coerce_numbers_to_str=True)
    try:
        model = create_model(f"{tool} arguments", __config__=config, **fields)
        schema = model.model_json_schema(by_alias=True, schema_generator=_QuietSchema)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        raise ConfigError(
            f"the parameters of tool `{tool}` have no JSON schema: {str(error).splitlines()[0]}",
            hint="use types that JSON can represent, or name the parameter in `args_to_skip` of a "
            "`StatefulToolEnv`",
        ) from error
    schema.pop("description", None)
    schema.setdefault("properties", {})
    without_titles(schema)
    return model, schema


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    inner = _written_code(function)
    if inspect.isclass(inner):
        inner = inner.__init__
    try:
        return get_type_hints(inner, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the annotations of tool `{name}` cannot be resolved: {error}",
            hint="import the types that the annotations name where the function is defined",
        ) from error


class _QuietSchema(GenerateJsonSchema):
    """Omits defaults that JSON cannot represent without a warning, because they concern only the function."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

    def encode_default(self, dft: Any) -> Any:
        """Return the default as JSON. Rejects the infinities, which pydantic accepts."""
        value = super().encode_default(dft)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return value


def without_titles(schema: Any) -> None:
    """Remove pydantic's generated titles in place. They repeat names, and cost tokens in every prompt."""
    if isinstance(schema, list):
        for item in schema:
            without_titles(item)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            for item in value.values():
                without_titles(item)
        elif key not in ("default", "const", "enum", "examples", "example"):
            without_titles(value)
