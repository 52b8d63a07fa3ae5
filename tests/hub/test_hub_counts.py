"""Every count that a client names has a bound, in requests and in files, and costs the hub nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from wander.types import Rollout
from wander.wire import RunManifest
from wander.wire.postings import Checkpoint

HUGE = 2**70
Path = tuple[str, ...]


def integers(schema: Any, schemas: dict[str, Any], path: Path = (), seen: Path = ()) -> Iterator[Any]:
    """Yield path and schema of every integer below a JSON schema; `[]` stands for the items of a list."""
    if isinstance(schema, list):
        for one in schema:
            yield from integers(one, schemas, path, seen)
        return
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name not in seen:
            yield from integers(schemas[name], schemas, path, (*seen, name))
        return
    if schema.get("type") == "integer":
        yield path, schema
    for word in ("anyOf", "allOf", "oneOf", "prefixItems"):
        yield from integers(schema.get(word, []), schemas, path, seen)
    for name, one in schema.get("properties", {}).items():
        yield from integers(one, schemas, (*path, name), seen)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from integers(schema[word], schemas, (*path, "[]"), seen)


def is_bounded(schema: dict[str, Any]) -> bool:
    above, below = ("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")
    return all(any(name in schema for name in names) for names in (above, below))


async def test_all_integers_in_requests_have_bounds(hub):
    document = (await hub.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    found = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            bodies = operation.get("requestBody", {}).get("content", {}).values()
            sent = [body.get("schema", {}) for body in bodies]
            sent += [one["schema"] for one in operation.get("parameters", [])]
            for place, schema in integers(sent, schemas):
                found[method, path, *place] = schema
    assert ("post", "/api/v1/transfers/runs", "files", "[]", "size") in found
    assert len(found) >= 20
    assert [place for place, schema in found.items() if not is_bounded(schema)] == []


def put(document: Any, path: Path, value: int) -> Any:
    """Return a copy with the value at a path, whose missing parts are made."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if key == "[]" and isinstance(document, dict):
        return {**document, "more": put(None, rest, value)}
    if key == "[]":
        return [put((document or [None])[0], rest, value), *(document or [])[1:]]
    return {**(document or {}), key: put((document or {}).get(key), rest, value)}


@pytest.mark.full
async def test_no_integer_of_a_run_breaks_the_hub(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    files: dict[str, tuple[type[Any], Any]] = {
        "run.json": (RunManifest, manifest),
        "rollouts.jsonl": (Rollout, rollouts[0]),
        "checkpoints.jsonl": (Checkpoint, {"step": 1, "weights_sha256": "0" * 64}),
    }
    tried = 0
    for name, (model, document) in files.items():
        schema = model.model_json_schema(by_alias=True)
        places = dict.fromkeys(path for path, _ in integers(schema, schema.get("$defs", {})))
        assert places, name
        for place in places:
            for value in (HUGE, -HUGE, 2**31):
                tried += 1
                changed = put(copy.deepcopy(document), place, value)
                sent = changed if name == "run.json" else manifest
                sent = {**sent, "run_id": f"01JRUNCOUNT{tried:06d}"}
                lines, artifacts = rollouts, {}
                if name == "rollouts.jsonl":
                    lines = [changed, *rollouts[1:]]
                elif name == "checkpoints.jsonl":
                    sent, lines = {**sent, "kind": "training"}, []
                    artifacts = {name: json.dumps(changed).encode()}
                answer = await hub.post_run(sent, lines, artifacts=artifacts)
                assert answer.status_code in (201, 422), (name, place, value, answer.text)
                if answer.status_code == 201:
                    for page in (f"/runs/{sent['run_id']}", "/alice/reverse-text"):
                        shown = await hub.get(page, headers={"Accept": "text/html"})
                        assert shown.status_code == 200, (name, place, value, page)
    assert tried > 60
