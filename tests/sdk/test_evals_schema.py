"""The JSON Schemas of the run record: that they are some, and that a version keeps taking its records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from wander.evals.store.schema import PARTS, VERSION, record_schema
from wander.wire import RUN_SCHEMA

GOLDEN = Path(__file__).with_name(f"run_record_{VERSION}.json")
CHANGED = (
    f"records of version {VERSION} would no longer be read: give new fields a default and keep what old ones "
    "may hold, or raise `VERSION` and `RUN_SCHEMA`"
)

Fields = dict[str, dict[str, list[str]]]
"""By model and field: what its value may be, and "required" where it must be there."""


def fields() -> Fields:
    found: Fields = {}
    for part in PARTS:
        schema = record_schema(part)
        for name, model in {part: schema, **schema.get("$defs", {})}.items():
            required = model.get("required", [])
            found[name] = {
                field: sorted(kinds(value) | ({"required"} & {"required" if field in required else ""}))
                for field, value in model.get("properties", {}).items()
            }
    return found


def kinds(value: dict[str, Any]) -> set[str]:
    if "anyOf" in value:
        return set().union(*map(kinds, value["anyOf"]))
    if "$ref" in value:
        return {str(value["$ref"]).rpartition("/")[2]}
    if "enum" in value or "const" in value:
        return {f"={one}" for one in value.get("enum", [value.get("const")])}
    inner = value.get("items") or value.get("additionalProperties")
    kind = str(value.get("type", "any"))
    return {f"{kind} of {one}" for one in kinds(inner)} if isinstance(inner, dict) else {kind}


def faults(golden: Fields, now: Fields) -> list[str]:
    """Return what keeps a record that fits `golden` from fitting `now`."""
    found = []
    for model, known in golden.items():
        for field in sorted({*known, *now.get(model, {})}):
            before, after = set(known.get(field, [])), set(now.get(model, {}).get(field, []))
            gone = before - after - {"required"}
            demanded = "required" in after and "required" not in before
            found += [f"{model}.{field}: {', '.join(sorted(gone))} is gone"] if gone else []
            found += [f"{model}.{field} must be there now"] if demanded else []
    return found


def test_stored_records_match_the_schema() -> None:
    golden: Fields = json.loads(GOLDEN.read_text())
    assert faults(golden, fields()) == [], CHANGED


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, ["m.a: integer is gone"]),
        ({"m": {"a": ["null", "string"]}}, ["m.a: integer is gone"]),
        ({"m": {"a": ["integer", "required"]}}, ["m.a must be there now"]),
        ({"m": {"a": ["integer"], "b": ["integer", "required"]}}, ["m.b must be there now"]),
        ({"m": {"a": ["integer", "null"], "b": ["string"]}, "new": {"c": ["integer", "required"]}}, []),
    ],
)
def test_incompatible_schema_changes_are_reported(now: Fields, said: list[str]) -> None:
    assert faults({"m": {"a": ["integer"]}}, now) == said


@pytest.mark.parametrize("part", PARTS)
def test_schemas_are_valid_json_schemas(part: str) -> None:
    schema = record_schema(part)
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False


def test_the_manifest_names_the_version() -> None:
    schema = record_schema("run")["properties"]["schema"]
    assert schema["const"] == RUN_SCHEMA == f"wander.run/{VERSION}"
