"""A function's schema, its documentation, and the arguments that come back from a model."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict
from wander.envs.tool.schema import (
    FunctionTool,
    InvalidArguments,
    documentation,
    parse_arguments,
)
from wander.errors import ConfigError


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    title: str
    floor: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Order(BaseModel):
    title: str
    parts: list[Order] = []


def everything(
    query: str,
    color: Color,
    place: Place,
    point: Point,
    order: Order,
    count: int = 3,
    mode: Literal["fast", "slow"] = "fast",
    maybe: float | None = None,
    schema: dict[str, list[int]] | None = None,
    _private: int | str = 1,
    copy: Annotated[int, Field(ge=0), "how many copies"] = 1,
    untyped=None,
) -> str:
    """Search for things.

    Over several lines.

    Args:
        query: what to look for,
            in words
        count (int): how many

    Returns:
        str: what was found
    """
    return query


def google(a: int, b: str = "x") -> int:
    """Add.

    Args:
        a: the first
        b (str, optional): the second
    """
    return a


def numpy(a: int, b: str = "x") -> int:
    """Add.

    Parameters
    ----------
    a : int
        the first
    b : str, optional
        the second
    """
    return a


def sphinx(a: int, b: str = "x") -> int:
    """Add.

    :param a: the first
    :param b: the second
    :returns: the sum
    """
    return a


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_every_docstring_style_gives_the_same_schema(function):
    schema = FunctionTool(function).schema()["function"]
    assert schema["description"] == "Add."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "the first"},
            "b": {"type": "string", "description": "the second", "default": "x"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_every_kind_of_type_has_its_schema():
    function = FunctionTool(everything).schema()["function"]
    parameters = function["parameters"]
    properties = parameters["properties"]
    assert function["description"] == "Search for things.\n\nOver several lines."
    assert parameters["required"] == ["query", "color", "place", "point", "order"]
    assert properties["query"] == {"type": "string", "description": "what to look for, in words"}
    assert properties["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["maybe"] == {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
    assert properties["_private"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert properties["copy"] == {
        "type": "integer",
        "minimum": 0,
        "default": 1,
        "description": "how many copies",
    }
    assert properties["untyped"] == {"default": None}
    assert parameters["$defs"]["Color"] == {"type": "string", "enum": ["red", "blue"]}
    assert parameters["$defs"]["Place"]["properties"] == {
        "title": {"type": "string"},
        "floor": {"type": "integer"},
    }, "generated titles go, a parameter called `title` stays"
    assert parameters["$defs"]["Order"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Order"}
    json.dumps(function)


def test_arguments_become_what_the_function_expects():
    given_values = {
        "query": 7,
        "color": "blue",
        "place": {"title": "hall", "floor": "2"},
        "point": {"x": 1},
        "order": {"title": "a", "parts": [{"title": "b"}]},
        "schema": '{"rows": [1, "2"]}',
        "_private": "text",
    }
    assert FunctionTool(everything).checked(given_values) == {
        "query": "7",
        "color": Color.BLUE,
        "place": {"title": "hall", "floor": 2},
        "point": Point(1.0),
        "order": Order(title="a", parts=[Order(title="b")]),
        "schema": {"rows": [1, 2]},
        "_private": "text",
    }, "only what was given, in the order of the signature"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "a: Field required"),
        ({"a": "many"}, "a: Input should be a valid integer"),
        ({"a": 1, "c": 2}, "c: Extra inputs are not permitted"),
        ({"a": "{"}, "a: Input should be a valid integer"),
        ({"a": [1]}, "a: Input should be a valid integer"),
    ],
)
def test_wrong_arguments_are_explained(arguments, told):
    with pytest.raises(InvalidArguments, match="wrong arguments for `google`") as caught:
        FunctionTool(google).checked(arguments)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        (json.dumps(json.dumps(json.dumps({"a": 1}))), {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        (None, {}),
    ],
)
def test_arguments_are_read_in_every_format(raw, expected):
    assert parse_arguments(raw) == expected


@pytest.mark.parametrize(
    "raw", ['{"a": ', "[1]", "3", 3, '{"a": NaN}', "[" * 100_000, json.dumps("just text"), "9" * 5000]
)
def test_arguments_that_are_not_an_object_are_rejected(raw):
    with pytest.raises(InvalidArguments):
        parse_arguments(raw)


@given(st.text())
def test_any_argument_text_is_handled(text):
    try:
        read = parse_arguments(text)
    except InvalidArguments:
        return
    assert isinstance(read, dict)


def lists(a: list[int]) -> list[int]:
    return a


def maps(a: dict[str, list[float]]) -> dict[str, list[float]]:
    return a


def unions(a: int | list[str] | None) -> Any:
    return a


def tuples(a: tuple[int, str]) -> Any:
    return a


def sets(a: set[int]) -> Any:
    return a


def nested(a: list[Place]) -> Any:
    return a


PLACES = st.fixed_dictionaries({"title": st.text(), "floor": st.integers(-(2**60), 2**60)})
ROUND_TRIPS = {
    lists: st.lists(st.integers(-(2**60), 2**60)),
    maps: st.dictionaries(st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False))),
    unions: st.none() | st.integers() | st.lists(st.text()),
    tuples: st.tuples(st.integers(), st.text()),
    sets: st.sets(st.integers()),
    nested: st.lists(PLACES),
}


@pytest.mark.parametrize("function", ROUND_TRIPS, ids=lambda each: each.__name__)
@given(data=st.data())
async def test_values_of_every_type_are_passed_unchanged(function, data):
    value = data.draw(ROUND_TRIPS[function])
    encoded = json.dumps({"a": TypeAdapter(Any).dump_python(value, mode="json")})
    tool = FunctionTool(function)
    assert await tool.call(tool.checked(parse_arguments(encoded))) == value


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True).filter(lambda name: name.isidentifier())
ANNOTATIONS = st.sampled_from(
    [int, str, float, bool, list[int], int | None, Literal["x"], dict[str, int], Any]
)


@given(st.dictionaries(NAMES, st.tuples(ANNOTATIONS, st.booleans()), max_size=6))
def test_any_signature_has_a_schema(parameters):
    import inspect
    import keyword

    parameters = {name: each for name, each in parameters.items() if not keyword.iskeyword(name)}
    kind = inspect.Parameter.KEYWORD_ONLY

    def function(**given_values):
        return given_values

    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, kind, default=None if optional else inspect.Parameter.empty)
            for name, (_, optional) in parameters.items()
        ]
    )
    function.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    schema = FunctionTool(function).schema()["function"]["parameters"]
    assert list(schema["properties"]) == list(parameters)
    assert schema.get("required", []) == [name for name, (_, optional) in parameters.items() if not optional]
    assert schema["additionalProperties"] is False


@given(st.text())
def test_any_docstring_is_handled(text):
    def function(a: int) -> int:
        return a

    function.__doc__ = text
    assert FunctionTool(function).schema()["function"]["parameters"]["required"] == ["a"]


async def test_anything_callable_can_be_a_tool():
    class Box:
        """About the box."""

        def put(self, item: str) -> str:
            """Put something in.

            Args:
                item: what to put
            """
            return item

        def __call__(self, size: int) -> int:
            """Resize."""
            return size

    async def later(a: int) -> int:
        return a + 1

    put = FunctionTool(Box().put)
    assert put.name == "put"
    assert put.parameters["properties"]["item"]["description"] == "what to put"
    called = FunctionTool(Box(), name="resize")
    assert (called.description, called.parameters["required"]) == ("Resize.", ["size"])
    partial = FunctionTool(functools.partial(google, b="fixed"))
    assert partial.name == "google"
    assert partial.parameters["required"] == ["a"]
    assert await FunctionTool(later).call({"a": 1}) == 2


async def test_functions_with_keyword_arguments_accept_any_argument():
    def log(level: str, **fields: Any) -> dict[str, Any]:
        return {"level": level, **fields}

    tool = FunctionTool(log)
    assert tool.parameters["additionalProperties"] is True
    assert await tool.call(tool.checked({"level": "info", "user": 3})) == {"level": "info", "user": 3}


def test_defaults_that_are_not_json_are_omitted_from_the_schema():
    missing = object()

    def find(a: int, b: Any = missing, c: float = math.inf) -> Any:
        return b

    tool = FunctionTool(find)
    assert "default" not in tool.parameters["properties"]["b"]
    assert tool.checked({"a": 1}) == {"a": 1}
    json.dumps(tool.schema(), allow_nan=False)


def test_skipped_parameters_are_hidden_and_rejected():
    def write(text: str, path: Path_) -> None:
        """Write.

        Args:
            text: what
            path: where
        """

    write.__annotations__["path"] = object
    tool = FunctionTool(write, args_to_skip=["path"])
    assert list(tool.parameters["properties"]) == ["text"]
    with pytest.raises(InvalidArguments, match="path: Extra inputs"):
        tool.checked({"text": "a", "path": "/etc/passwd"})
    with pytest.raises(ConfigError, match="no parameter `nowhere` to skip"):
        FunctionTool(write, args_to_skip=["nowhere"])


class Path_:
    """A type that pydantic knows nothing about."""


def positional(a: int, /) -> int:
    return a


def variadic(*a: int) -> int:
    return 0


def opaque(a: Path_) -> int:
    return 0


def unresolved(a: Nowhere) -> int:  # noqa: F821
    return 0


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (positional, "positional parameter `a`"),
        (variadic, "positional parameter `a`"),
        (opaque, "have no JSON schema"),
        (unresolved, "cannot be resolved"),
        (lambda a: a, "cannot be the name of a tool"),
        ("text", "must be callable"),
    ],
)
def test_functions_that_no_model_could_call_are_rejected(function, told):
    with pytest.raises(ConfigError, match=told):
        FunctionTool(function)


def test_undocumented_functions_describe_nothing():
    assert documentation(lists) == ("", {})
