"""nginx in front of a hub, with the configuration in `deploy/nginx`: what it sends, whom it stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from live_hub import clean_environment, free_port, live_hub
from nginx_files import write_configuration

pytestmark = pytest.mark.full
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
MAIN = """
{user}
daemon off; worker_processes 1; pid {work}/nginx.pid; error_log {work}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
  uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;
  include {work}/wander.conf;
}}
"""


@pytest.fixture(autouse=True)
def installed() -> None:
    if NGINX is None:
        pytest.skip("nginx is not installed: nobody shows that its configuration works")


@contextmanager
def nginx_before(work: Path, *upstreams: str, data: Path | None) -> Iterator[httpx.Client]:
    """Start nginx before hubs at these addresses; give a client of it."""
    work.mkdir()
    port = free_port()
    write_configuration(work, listen=f"127.0.0.1:{port}", upstreams=upstreams, data=data)
    user = "user root;" if os.getuid() == 0 else ""
    (work / "nginx.conf").write_text(MAIN.format(work=work, user=user))
    nginx = subprocess.Popen([NGINX, "-p", str(work), "-c", str(work / "nginx.conf")])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for(nginx, client, work)
            yield client
    finally:
        nginx.terminate()
        nginx.wait(120)


def test_nginx_sends_files_after_the_hub_agrees(tmp_path, make_wheel):
    public, secret = make_wheel(requires_dist=()), make_wheel(name="kept-secret", requires_dist=())
    prefix = {"WANDER_HUB_ACCEL_PREFIX": "/_objects/"}
    with (
        live_hub(tmp_path / "data", WANDER_HUB_BUNDLED_PACKAGES="false", **prefix) as hub,
        nginx_before(tmp_path / "nginx", f"127.0.0.1:{hub.port}", data=hub.data) as client,
    ):
        token = ("__token__", hub.token)
        paths = []
        for spec, fields in ((public, {}), (secret, {"wander_visibility": "private"})):
            files = {"content": (spec.wheel_name, spec.build(), "application/octet-stream")}
            answer = client.post("/admin/legacy/", data=fields, files=files, auth=token)
            assert answer.status_code == 200, answer.text
            paths.append(f"/admin/files/{spec.name}/{spec.wheel_name}")
        both = make_wheel(name="admin-echo", requires_dist=())
        files = {"content": (both.wheel_name, both.build(), "application/octet-stream")}
        assert client.post("/admin/legacy/", files=files, auth=token).status_code == 200
        sent_to_all(client, f"/files/admin-echo/{both.wheel_name}", both.build())
        sent_to_all(client, paths[0], public.build())
        sent_when_allowed(client, paths[1], secret.build(), token)
        installs(f"{client.base_url}/admin/simple/", public.name, tmp_path / "target")
        address = f"/api/v1/environments/admin/{public.name}"
        assert client.put(f"{address}/visibility", json={"private": True}, auth=token).is_success
        assert client.get(paths[0]).status_code == 401
        assert client.get(paths[0], auth=token).content == public.build()
        assert client.put(f"{address}/visibility", json={"private": False}, auth=token).is_success
        sent_to_all(client, paths[0], public.build())
        assert client.delete(address, auth=token).is_success
        assert client.get(paths[0]).status_code in (401, 404, 410)


def test_nginx_balances_requests_over_hubs_with_s3_storage(
    tmp_path, make_wheel, run_of, postgres, s3_url, objects
):
    spec = make_wheel(requires_dist=())
    with postgres.database() as url, ExitStack() as stack:
        shared = {
            "WANDER_HUB_DATABASE_URL": url,
            "WANDER_HUB_STORAGE_URL": s3_url,
            "WANDER_HUB_BUNDLED_PACKAGES": "false",
            "WANDER_HUB_VERIFICATION": "unconfined",
            "WANDER_HUB_SERVE_JOBS": "false",
            **objects.variables,
        }
        hubs = [stack.enter_context(live_hub(tmp_path / name, **shared)) for name in ("a", "b")]
        addresses = [f"127.0.0.1:{hub.port}" for hub in hubs]
        client = stack.enter_context(nginx_before(tmp_path / "nginx", *addresses, data=None))
        files = {"content": (spec.wheel_name, spec.build(), "application/octet-stream")}
        token = ("__token__", hubs[0].token)
        assert client.post("/admin/legacy/", files=files, auth=token).status_code == 200
        path = f"/admin/files/{spec.name}/{spec.wheel_name}"
        assert [client.get(path).content for _ in range(4)] == [spec.build()] * 4
        assert all(path in hub.log.read_text() for hub in hubs), "each hub answers some of them"
        manifest, rollouts = run_of(sha256(spec.build()).hexdigest(), owner="admin", name=spec.name)
        parts = [("manifest", ("run.json", json.dumps(manifest)))]
        parts.append(("rollouts", ("rollouts.jsonl", "".join(json.dumps(one) + "\n" for one in rollouts))))
        assert client.post("/api/v1/runs", files=parts, auth=token).status_code == 201
        hubs[0].process.kill()
        hubs[0].process.wait(60)
        assert [client.get(path).status_code for _ in range(8)] == [200] * 8


def test_nginx_limits_size_duration_and_rate_of_requests(tmp_path):
    """The hub behind sees none of it, and others are answered meanwhile."""
    with live_hub(tmp_path / "data", WANDER_HUB_BUNDLED_PACKAGES="false") as hub, ExitStack() as stack:
        address = f"127.0.0.1:{hub.port}"
        client = stack.enter_context(nginx_before(tmp_path / "nginx", address, data=hub.data))
        assert client.get("/health", headers={"X-Long": "a" * 200_000}).status_code == 400
        huge = stack.enter_context(connection(client))
        huge.sendall(begun_post(10**12))
        assert huge.recv(12) == b"HTTP/1.1 413"
        slow = stack.enter_context(connection(client))
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: hub\r\n")  # a head that never ends
        with ExitStack() as held:
            for _ in range(100):
                held.enter_context(connection(client)).sendall(begun_post(1000))
            wait_until(lambda: client.get("/health").status_code == 429)
        wait_until(lambda: client.get("/health").status_code == 200)
        assert slow.recv(100) == b"", "nginx waits for a head no longer than it says"


def test_nginx_caches_anonymous_pages_for_seconds(tmp_path, make_wheel):
    with live_hub(tmp_path / "data", WANDER_HUB_BUNDLED_PACKAGES="false") as hub, ExitStack() as stack:
        address = f"127.0.0.1:{hub.port}"
        client = stack.enter_context(nginx_before(tmp_path / "nginx", address, data=hub.data))
        known = {"Authorization": f"Bearer {hub.token}", "Accept": "text/html"}
        for spec, fields in (
            (make_wheel(requires_dist=()), {}),
            (make_wheel(name="kept-secret", requires_dist=()), {"wander_visibility": "private"}),
        ):
            files = {"content": (spec.wheel_name, spec.build(), "application/octet-stream")}
            sent = client.post("/admin/legacy/", data=fields, files=files, headers=known)
            assert sent.status_code == 200, sent.text
        page, secret, api = "/admin/reverse-text", "/admin/kept-secret", "/api/v1/environments/admin"
        first = ask(client, page)
        wait_until(
            lambda: ask(client, page).headers["x-request-id"] == ask(client, page).headers["x-request-id"]
        )
        held = {"Accept": "text/html", "If-None-Match": first.headers["etag"]}
        assert client.get(page, headers=held).status_code == 304
        # Nobody who is signed in gets what is kept, and nothing of theirs is kept.
        own = client.get(page, headers=known)
        assert own.headers["cache-control"] == "private, no-store"
        assert client.get(secret, headers=known).status_code == 200
        assert ask(client, secret).status_code == 404
        wheel = make_wheel(requires_dist=())
        assert client.get(f"/admin/files/{wheel.name}/{wheel.wheel_name}").content == wheel.build()
        # What its owner hides is gone for its owner immediately, and for everybody when the seconds are over.
        assert ask(client, page).status_code == 200
        assert client.put(f"{api}/reverse-text/visibility", json={"private": True}, headers=known).is_success
        assert "private" in client.get(page, headers=known).text
        wait_until(lambda: ask(client, page).status_code == 404)
        # Files may be hidden at any time, so only pages are kept.
        kept = [one.read_bytes() for one in (tmp_path / "nginx" / "pages").rglob("*") if one.is_file()]
        named = {re.search(rb"^KEY: (.*)$", one, re.M)[1].decode() for one in kept}
        assert {one.rpartition(":")[2].partition("/")[2] for one in named} == {"admin/reverse-text"}


def ask(client: httpx.Client, path: str) -> httpx.Response:
    """Ask for a page as a visitor who is not signed in."""
    return client.get(path, headers={"Accept": "text/html"})


def begun_post(length: int) -> bytes:
    return f"POST /admin/legacy/ HTTP/1.1\r\nHost: hub\r\nContent-Length: {length}\r\n\r\n".encode()


def wait_until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@contextmanager
def connection(client: httpx.Client) -> Iterator[socket.socket]:
    """Open a bare connection to nginx, which gives up only after two minutes."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=120) as opened:
        yield opened


def wait_for(nginx: subprocess.Popen[bytes], client: httpx.Client, work: Path) -> None:
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        assert nginx.poll() is None, (work / "error.log").read_text()
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError((work / "error.log").read_text())


def sent_to_all(client: httpx.Client, path: str, body: bytes) -> None:
    whole = client.get(path)
    assert (whole.status_code, whole.content) == (200, body)
    assert whole.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = client.get(path, headers={"Range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, body[3:10])
    assert client.get(path.replace("0.1.0", "0.9.0")).status_code in (401, 404)
    assert client.get("/_objects/").status_code == 404
    assert client.get("/admin/files/reverse-text/..%2f..%2f..%2f..%2fhub.db").status_code in (400, 401, 404)


def sent_when_allowed(client: httpx.Client, path: str, body: bytes, token: tuple[str, str]) -> None:
    assert client.get(path).status_code == 401
    answer = client.get(path, auth=token)
    assert (answer.status_code, answer.content) == (200, body)
    assert "private" in answer.headers["cache-control"]


def installs(index: str, name: str, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--isolated"]
    command += ["--index-url", index, "--target", str(target), name]
    subprocess.run(command, env=clean_environment(), check=True, timeout=120)
    assert (target / "reverse_text.py").is_file()


@pytest.mark.slow
def test_no_request_fails_during_a_rolling_restart(tmp_path, postgres):
    with postgres.database() as url, ExitStack() as stack:
        ports = [free_port(), free_port()]
        shared = {"WANDER_HUB_DATABASE_URL": url, "WANDER_HUB_DRAIN_SECONDS": "3"}
        shared["WANDER_HUB_BUNDLED_PACKAGES"] = "false"

        def start(number: int):
            own = ExitStack()
            return own, own.enter_context(live_hub(tmp_path / "data", port=ports[number], **shared))

        hubs = [start(0), start(1)]
        token = hubs[0][1].token
        addresses = [f"127.0.0.1:{port}" for port in ports]
        client = stack.enter_context(nginx_before(tmp_path / "nginx", *addresses, data=tmp_path / "data"))
        ended, answers, counted = threading.Event(), Counter(), threading.Condition()

        def ask(number: int) -> None:
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=client.base_url, timeout=60, headers=headers) as mine:
                while not ended.is_set():
                    put = mine.put("/api/v1/owners/admin/settings", json={"private_by_default": False})
                    got = mine.get("/api/v1/environments")
                    with counted:
                        answers[put.status_code] += 1
                        answers[got.status_code] += 1
                        counted.notify_all()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for one in threads:
            one.start()
        try:
            for number in (0, 1, 0, 1):
                with counted:
                    seen = answers.total()
                    assert counted.wait_for(lambda seen=seen: answers.total() > seen + 40, 60)
                own, _ = hubs[number]
                own.close()
                hubs[number] = start(number)
        finally:
            ended.set()
            for one in threads:
                one.join()
            for own, _ in hubs:
                own.close()
    assert set(answers) == {200}, answers
