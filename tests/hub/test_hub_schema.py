"""The hub keeps what its OpenAPI document promises: schemathesis makes up good requests and bad ones.

In CI every operation gets a few; `pytest -m slow tests/hub/test_hub_schema.py` sends many.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient
from wander_hub import app as hub_app
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.rights.tokens import first_administrator
from wander_hub.settings import Settings

pytestmark = pytest.mark.full

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/toml")
def toml(context: object, value: object) -> bytes:
    """Send what is made up as it is: mostly no TOML at all."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def filled(tmp_path_factory, migrated_database, make_wheel) -> Iterator[tuple[object, str]]:
    """A hub with one environment, and an administrator's token."""
    hub = Settings(data=tmp_path_factory.mktemp("schema"), bundled_packages=False)
    shutil.copy(migrated_database, hub.data / "hub.db")
    database = Database(hub.resolved_database_url)
    with database.write() as session:
        token = first_administrator(session) or ""
    app = create_app(hub, database=database)
    spec = make_wheel()
    body = spec.build()
    with pytest.MonkeyPatch.context() as patch:
        # The search of the docs parses Python in a thread, and Hypothesis parses some too. At the same time,
        # Python 3.11 may fail with "AST constructor recursion depth mismatch".
        patch.setattr(hub_app, "_SEARCH_SECONDS", 3600.0)
        with TestClient(app) as client:
            answer = client.post(
                "/admin/legacy/",
                data={":action": "file_upload", "sha256_digest": hashlib.sha256(body).hexdigest()},
                files={"content": (spec.wheel_name, body)},
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == 200, answer.text
            yield app, token


def failures_of(filled, examples: int) -> list[str]:
    """Return what the hub did against its document."""
    app, token = filled
    known = {"Authorization": f"Bearer {token}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    found: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode, senders in (
            (GenerationMode.POSITIVE, (known, {})),
            (GenerationMode.NEGATIVE, (known,)),
        ):
            if mode is GenerationMode.NEGATIVE and not _can_be_wrong(operation):
                continue
            try:
                _probe(operation, mode, senders, examples)
            except FailureGroup as failures:
                found += [f"{operation.label} ({mode.value}): {one}" for one in failures.exceptions]
    return found


def _can_be_wrong(operation) -> bool:
    """Tell whether requests have a part that can be wrong. Every string is right in a path.

    If nothing can be wrong, Schemathesis searches for a second and then gives up.
    """
    strings = [
        parameter.location == "path" and parameter.definition["schema"].keys() == {"type", "title"}
        for parameter in operation.iter_parameters()
    ]
    return bool(operation.body) or not all(strings)


def _probe(operation, mode, senders, examples: int) -> None:
    """Send each request with the headers of every sender: to make it up takes longer than to answer it."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def once(case):
        for headers in senders:
            response = case.call(headers=headers)
            # Another spelling of an address redirects: `test_hub_interface` tells where that leads.
            if response.status_code not in (301, 308):
                case.validate_response(response, checks=CHECKS, headers=headers)

    once()


@pytest.mark.timeout(1200)  # every operation of the hub, in minutes
def test_the_hub_keeps_its_document(filled):
    assert failures_of(filled, examples=2) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_hub_keeps_its_document_at_length(filled):
    assert failures_of(filled, examples=60) == []
