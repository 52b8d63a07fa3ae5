"""Every field of every wire model has a pattern or a bound."""

from __future__ import annotations

import importlib
import pkgutil
import string
from collections.abc import Iterator
from typing import Any

import pytest
import wander.wire
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from wander.wire import fields
from wander.wire.environments import FileInfo, VersionDetail
from wander.wire.run_record import EnvironmentPin

FREE = {
    "AllowedChange.before",
    "AllowedChange.after",
    "TokenizerParts.added_tokens",
    "TokenizerParts.decoder",
    "_Vocabulary.vocab",
}
"""Settings before and after a change, of any type: they are printed and nothing else. What numbers the tokens
of a model's tokenizer is only hashed, and the gate bounds its text."""


def wire_models() -> Iterator[type[BaseModel]]:
    for found in pkgutil.iter_modules(wander.wire.__path__):
        module = importlib.import_module(f"wander.wire.{found.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, BaseModel)
                and value.__module__ == module.__name__
            ):
                yield value


def unbounded(schema: dict[str, Any], where: str) -> Iterator[str]:
    """Yield the texts and whole numbers in the schema of a field that nothing bounds."""
    kind = schema.get("type")
    if kind == "string" and not {"pattern", "maxLength", "enum", "const", "format"} & schema.keys():
        yield where
    if kind == "integer" and not {"maximum", "exclusiveMaximum", "enum", "const"} & schema.keys():
        yield where
    if kind == "object" and "additionalProperties" in schema and "propertyNames" not in schema:
        yield where
    if not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "const", "enum"}:
        yield where
    inner = [each for key in ("anyOf", "oneOf", "allOf", "prefixItems") for each in schema.get(key, [])]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for each in inner:
        yield from unbounded(each, where)


@pytest.mark.parametrize(
    "model", sorted(wire_models(), key=lambda each: each.__name__), ids=lambda m: m.__name__
)
def test_every_field_has_a_pattern_or_a_bound(model: type[BaseModel]) -> None:
    model.model_rebuild()
    free = {
        where
        for name, field in model.model_json_schema().get("properties", {}).items()
        for where in unbounded(field, f"{model.__name__}.{name}")
    }
    assert free - FREE == set()


def test_the_test_finds_a_field_without_a_bound() -> None:
    class Loose(BaseModel):
        text: str | None
        texts: list[str]
        by_name: dict[str, float]
        number: int
        pair: tuple[str, int]
        anything: Any

    found = {
        where
        for name, field in Loose.model_json_schema()["properties"].items()
        for where in unbounded(field, name)
    }
    assert found == {"text", "texts", "by_name", "number", "pair", "anything"}


NO_NAMES = [
    "", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "a\n", "\na", " a", "a ", "a\x00", "~", "~root",
    "-a", ".ssh", ".bashrc", "a/../../b", "a" * 300, "é", "a\u202eb", "%2e%2e", "$HOME", "${HOME}", "C:",
    "a:b", "*", "a|b", "nul\x7f",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_NAMES)
@pytest.mark.parametrize(
    "kind",
    [fields.OwnerName, fields.ProjectName, fields.FileName, fields.Sha256, fields.Release],
)
def test_fields_used_as_paths_are_plain_names(kind: Any, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


@given(text=st.text(max_size=30))
def test_file_names_cannot_leave_their_folder(text: str) -> None:
    try:
        TypeAdapter(fields.FileName).validate_python(text)
    except ValidationError:
        return
    assert set(text) <= set(string.ascii_letters + string.digits + "._+!-")
    assert not text.startswith(".")


@pytest.mark.parametrize(
    "version", ["1", "0.1.0", "1!2.0", "1.0a1", "1.0rc2.post3.dev4", "2026.11.1+local.1", "1.0.dev0"]
)
def test_versions_follow_the_standard(version: str) -> None:
    from packaging.version import Version

    assert TypeAdapter(fields.Release).validate_python(version) == str(Version(version))
    for wrong in (f"v{version}", f"{version}/", f" {version}", f"{version}\n", version + "." + "9" * 100):
        with pytest.raises(ValidationError):
            TypeAdapter(fields.Release).validate_python(wrong)


@pytest.mark.parametrize(
    "changed",
    [
        {"sha256": "../../x"},
        {"sha256": "A" * 64},
        {"filename": "../a.whl"},
        {"filename": ".bashrc"},
        {"size": -1},
        {"size": 2**70},
        {"url": "http://h/a b"},
        {"url": "\n"},
        {"url": None},
    ],
)
def test_a_file_of_a_version_is_checked(changed: dict[str, Any]) -> None:
    sound = {
        "filename": "a-1-py3-none-any.whl", "kind": "wheel", "size": 1, "sha256": "a" * 64,
        "url": "/x", "uploaded_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    FileInfo.model_validate(sound)
    with pytest.raises(ValidationError):
        FileInfo.model_validate(sound | changed)


@pytest.mark.parametrize("place", [("..", "b", "1"), ("a", "../b", "1"), ("a", "b", "../1"), ("A", "b", "1")])
def test_a_published_environment_pin_has_plain_names(place: tuple[str, str, str]) -> None:
    owner, name, version = place
    info = {"name": "anything at all", "kind": "single_turn"}
    EnvironmentPin.model_validate({"name": "../local", "info": info})
    with pytest.raises(ValidationError):
        EnvironmentPin.model_validate({"owner": owner, "name": name, "version": version, "info": info})
    with pytest.raises(ValidationError):
        VersionDetail.model_validate({"owner": owner, "name": name, "version": version})
