"""The whole HTTP interface: every route known, guarded and documented; every error a problem."""

from __future__ import annotations

import re

import httpx
import psycopg
import pytest
from asgi_client import asgi_client
from fastapi.routing import iter_route_contexts
from live_hub import free_port
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from wander_hub.app import create_app
from wander_hub.http.boundary import ByBody, find_mutating_routes
from wander_hub.http.limits import RequestLimits
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings

MUTATING = {"POST", "PUT", "PATCH", "DELETE"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A hub that asks no other index, so that no route depends on the internet."""
    return settings.model_copy(update={"upstream_index": None})


def routes(hub) -> list[tuple[str, str]]:
    """Return (method, path) of every route of the running application."""
    app = hub.client._transport.app
    return [
        (method, context.path)
        for context in iter_route_contexts(app.routes)
        for method in sorted(context.methods or ())
    ]


def filled(path: str) -> str:
    values = {"owner": "alice", "name": "reverse-text", "project": "reverse-text", "version": "0.1.0"}
    return re.sub(r"{(\w+)[^}]*}", lambda match: values.get(match[1], "1"), path)


async def test_each_mutating_route_requires_a_token(hub):
    app = hub.client._transport.app
    proving = {one[:2] for one in find_mutating_routes(app.routes) if isinstance(one[2], ByBody)}
    assert (await hub.client.post("/_/oidc/mint-token", headers=hub.auth())).status_code in (404, 422)
    mutating = [one for one in routes(hub) if one[0] in MUTATING and one not in proving]
    assert ("POST", "/{owner}/legacy/") in mutating
    app.state.limits = RequestLimits(hub.settings.model_copy(update={"failures_per_minute": 0}))
    for method, path in mutating:
        for headers in ({}, {"Authorization": "Bearer wnd_wrong"}, {"Authorization": "Digest x"}):
            answer = await hub.client.request(method, filled(path), headers=headers, content=b"")
            assert answer.status_code == 401, (method, path)
            assert answer.json()["code"] in ("token_required", "bad_token")
            assert "www-authenticate" in answer.headers


def spellings(path: str) -> set[str]:
    """Return other spellings of the filled path of a route."""
    right = filled(path)
    capitals = filled(re.sub(r"(^|})[^{]*", lambda fixed: fixed[0].upper(), path)).replace("alice", "Alice")
    is_of_file = "{name}" in path and "{owner}" not in path
    names = capitals if is_of_file else capitals.replace("reverse-text", "Reverse_Text")
    slashed = {one.rstrip("/") + ("" if one.endswith("/") else "/") for one in (right, capitals, names)}
    doubled = {one.replace("/", "//")[1:] for one in (right, names)}
    return {one for one in slashed | doubled | {capitals, names} if one} - {right}


async def test_other_spellings_redirect_in_every_route(hub):
    served = set()
    for method, path in routes(hub):
        right = filled(path) + ("/" if path.endswith("/legacy") else "")
        for wrong in spellings(path) - {"/simple/namespaces/"}:  # a project may have the name
            answer = await hub.client.request(method, f"{wrong}?a=%2F&b=c", follow_redirects=False)
            if path.rstrip("/") == "/{owner}/legacy" and answer.status_code not in (301, 308):
                served.add((method, answer.status_code))  # twine refuses redirects
                continue
            status = 301 if method in ("GET", "HEAD") else 308
            assert answer.status_code == status, (method, path, wrong, answer.text)
            assert answer.headers["location"] == f"{right}?a=%2F&b=c", (method, path, wrong)
    assert served == {("POST", 401)}


@pytest.mark.parametrize("path", ["//evil.example", "/%5Cevil.example/", "///", "/%2F%2Fevil.example/A/B/C/"])
async def test_no_spelling_redirects_to_another_host(hub, path):
    answer = await hub.get(f"{hub.client.base_url}{path}", follow_redirects=False)
    location = answer.headers.get("location", "/")
    assert httpx.URL("http://hub/").join(location).host == "hub"
    assert not location.startswith(("//", "/\\"))


async def test_reads_change_nothing_and_do_not_fail(hub):
    for method, path in routes(hub):
        if method not in ("GET", "HEAD"):
            continue
        answer = await hub.client.request(method, filled(path), headers={"Accept": "*/*"})
        assert answer.status_code < 500, (method, path, answer.text)
        assert answer.headers["x-request-id"]


@pytest.mark.full
async def test_responses_to_authenticated_requests_are_not_cached(hub, make_wheel, run_of):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    private = make_wheel(name="secret", files={"secret.py": b"def load_environment(): ...\n"})
    hidden = {"wander_visibility": "private"}
    assert (await hub.upload(private.build(), private.wheel_name, fields=hidden)).status_code == 200
    paths = {filled(path) for method, path in routes(hub) if method == "GET"}
    paths |= {"/alice/secret", "/alice/simple/secret/", f"/alice/files/secret/{private.wheel_name}"}
    paths |= {f"/alice/files/secret/{private.wheel_name}.metadata", f"/runs/{manifest['run_id']}"}
    open_file = f"/alice/files/reverse-text/{make_wheel().wheel_name}"
    kept = set()
    for path in sorted({*paths, open_file}):
        for accept in ("*/*", "text/html"):
            headers = {**hub.auth(), "Accept": accept}
            answer = await hub.get(path, headers=headers)
            again = await hub.get(path, headers={**headers, "If-None-Match": answer.headers.get("etag", "x")})
            for one in (answer, again):
                if one.headers["cache-control"] != "private, no-store":
                    assert one.headers["cache-control"] == "public, max-age=31536000, immutable", path
                    kept.add(path)
    assert open_file in kept
    assert not any("secret" in path for path in kept)
    refused = await hub.get("/api/v1/whoami", headers={"Authorization": "Bearer wnd_wrong"})
    assert (refused.status_code, refused.headers["cache-control"]) == (401, "private, no-store")


async def test_openapi_documents_every_machine_route_and_its_errors(hub):
    document = (await hub.get("/openapi.json")).json()
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    machine = {
        (method, path)
        for method, path in routes(hub)
        if path.startswith(("/api/", "/health")) and method != "HEAD"
    }
    assert machine <= documented
    assert ("POST", "/{owner}/legacy/") in documented
    assert ("GET", "/{owner}/simple/{project}/") in documented
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for status, response in operation["responses"].items():
                if status.startswith("4"):
                    schema = response["content"]["application/problem+json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}, (path, status)
                if status == "422":
                    assert "HTTPValidationError" not in str(response)
    body = document["paths"]["/api/v1/runs"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert set(body["schema"]["properties"]) == {"manifest", "rollouts", "artifacts", "private", "name"}


async def test_api_docs_load_nothing_from_third_parties(hub):
    for path in ("/redoc", "/api/docs"):
        assert (await hub.get(path)).status_code == 404
    page = await hub.get("/docs")
    assert page.status_code == 200
    ours = str(hub.client.base_url)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page.text.replace(f'src="{ours}', 'src="'))


async def test_the_error_for_invalid_bodies_is_documented_everywhere(hub):
    document = (await hub.get("/openapi.json")).json()
    read = [
        operation
        for operations in document["paths"].values()
        for operation in operations.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert read
    assert [one["operationId"] for one in read if "400" not in one["responses"]] == []


async def test_errors_are_problems_with_the_request_id(hub):
    answer = await hub.get("/api/v1/environments", params={"limit": 0}, headers={"X-Request-ID": "mine-1"})
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["request_id"]) == (422, "invalid_request", "mine-1")
    assert problem["errors"][0]["loc"] == ["query", "limit"]
    assert answer.headers["x-request-id"] == "mine-1"
    odd = await hub.get("/health", headers={"X-Request-ID": "two words\tand more"})
    assert odd.headers["x-request-id"] != "two words\tand more"
    wrong_method = await hub.client.delete("/api/v1/runs")
    assert (wrong_method.status_code, wrong_method.json()["code"]) == (405, "method_not_allowed")
    nowhere = await hub.get("/a/b/c/d/e")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")


async def test_the_accept_header_chooses_page_or_data(hub):
    page = await hub.get("/nobody/nothing", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    for path in ("/api/v1/runs/none", "/nobody/simple/x/"):
        answer = await hub.get(path, headers={"Accept": "text/html"})
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (OSError(28, "No space left on device"), 507, "storage_full"),
        (OperationalError("INSERT", {}, Exception("database or disk is full")), 507, "storage_full"),
        (OperationalError("SELECT", {}, Exception("disk I/O error")), 500, "internal_error"),
        (
            OperationalError("INSERT", {}, Exception("attempt to write a readonly database")),
            503,
            "database_unavailable",
        ),
        (OperationalError("SELECT", {}, psycopg.OperationalError("no secret")), 503, "database_unavailable"),
        (NoConnectionFree("all of 50 are in use"), 503, "database_unavailable"),
        (RuntimeError("secret detail"), 500, "internal_error"),
        (HubProblem(409, "taken", "it is"), 409, "taken"),
    ],
)
async def test_internal_errors_become_problems_without_details(hub, failure, status, code, caplog):
    app = create_app(hub.settings, database=hub.database)

    @app.get("/api/v1/broken")
    def broken() -> None:
        raise failure

    async with asgi_client(app, raises=False) as client:
        answer = await client.get("/api/v1/broken")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"]
    if status in (503, 507):  # which a whole hub meets at once
        (line,) = [one for one in caplog.records if one.levelname == "ERROR"]
        assert (line.exc_info, line.getMessage().count("\n")) == (None, 0)


async def test_an_unreachable_database_is_reported_by_index_and_api(tmp_path):
    nobody = f"postgresql+psycopg://wander@127.0.0.1:{free_port()}/wander"
    app = create_app(Settings(data=tmp_path, database_url=nobody))
    async with asgi_client(app) as client:
        for path in ("/alice/simple/reverse-text/", "/api/v1/environments", "/alice/files/x/x-1.whl"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), path
        assert (await client.get("/health")).json()["database"] is False
        assert (await client.get("/live")).status_code == 200


async def test_responses_have_strict_security_headers(hub):
    for path in ("/", "/health", "/openapi.json", "/nothing-here"):
        headers = (await hub.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in headers
    missing = await hub.get("/nothing-here", headers={"Accept": "text/html"})
    assert "script-src http://hub.test/static/" in missing.headers["content-security-policy"]


async def test_public_url_is_used_in_addresses(hub, settings, run_of):
    sha256 = await hub.publish()
    elsewhere = settings.model_copy(update={"public_url": "https://hub.example/"})
    app = create_app(elsewhere, database=hub.database)
    async with asgi_client(app, "http://inside") as client:
        version = (await client.get("/api/v1/environments/alice/reverse-text")).json()["latest"]
        page = await client.get("/alice/reverse-text", headers={"Accept": "text/html"})
    url = version["files"][0]["url"]
    assert url == "https://hub.example/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"
    assert version["files"][0]["sha256"] == sha256
    assert "https://hub.example/alice/index/" in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/x/rollouts/99999999999999999999999",
        "/runs/x/rollouts/99999999999999999999999",
        "/api/v1/environments?q=%00",
        "/api/v1/environments?cursor=%00",
        "/api/v1/runs?model=%00%ff",
        "/%00/%00",
        "/alice/simple/%00/",
        "/alice/files/%2e%2e/%2e%2e",
        "/runs?cursor=MjAyNi0wMS0wMVQwMDowMDowMCswMDowMCA5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
        "/?cursor=MjAyNi0wMS0wMVQwMDowMDowMCswMDowMCA5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
        "/alice/reverse-text/leaderboard?version=%F0%9F%8E%B2&task_set=%25",
    ],
)
async def test_odd_values_never_break_the_hub(hub, path):
    await hub.publish()
    for accept in ("text/html", "application/json"):
        answer = await hub.get(path, headers={"Accept": accept})
        assert answer.status_code in (200, 301, 400, 404, 406, 422), answer.text
