"""Links to public files: there for what everybody may have, gone before it is hidden, mended by fsck."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from live_hub import clean_environment, free_port, live_hub
from pydantic import ValidationError
from typer.testing import CliRunner
from wander_hub.accounts import service as accounts
from wander_hub.cli import main as cli
from wander_hub.database import Database
from wander_hub.fsck import check as fsck
from wander_hub.index.public_files import FOLDER, PublicFiles
from wander_hub.index.public_files import keep_links as kept_links
from wander_hub.settings import Settings

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


@pytest.fixture
def settings(tmp_path):
    return Settings(data=tmp_path / "data", bundled_packages=False, public_files=True)


def links(hub) -> dict[str, bytes]:
    """Return path and content of every link, as nginx would follow it."""
    folder = hub.settings.data / FOLDER
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_symlink()
    }


async def change(hub, method: str, path: str, user: str = "alice", **body) -> None:
    address = f"/api/v1/environments/alice/{path}"
    answer = await hub.client.request(method, address, json=body or None, headers=hub.auth(user))
    assert answer.is_success, answer.text


@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
async def test_what_everybody_may_have_is_linked_and_nothing_else(hub, make_wheel):
    specs = [make_wheel(version=version) for version in ("0.1.0", "0.2.0")]
    for spec in specs:
        await hub.publish(spec)
    paths = [f"alice/files/reverse-text/{spec.wheel_name}" for spec in specs]
    bodies = [spec.build() for spec in specs]
    both = dict(zip(paths, bodies, strict=True))
    assert links(hub) == both
    secret = make_wheel(name="secret")
    await hub.upload(secret.build(), secret.wheel_name, fields={"wander_visibility": "private"})
    assert links(hub) == both
    await change(hub, "PUT", "reverse-text/visibility", private=True)
    assert links(hub) == {}
    await hub.publish(make_wheel(version="0.3.0"))
    assert links(hub) == {}
    await change(hub, "PUT", "reverse-text/visibility", private=False)
    assert sorted(links(hub)) == [*paths, "alice/files/reverse-text/reverse_text-0.3.0-py3-none-any.whl"]
    await change(hub, "DELETE", "reverse-text/versions/0.3.0")
    assert links(hub) == both
    await change(hub, "PUT", "reverse-text/versions/0.1.0/yank", reason="wrong")
    assert links(hub) == both, "a yanked file is still served"
    await change(hub, "PUT", "reverse-text/status", user="admin", status="quarantined", reason="odd")
    assert links(hub) == {}
    await change(hub, "PUT", "reverse-text/status", user="admin", status="active")
    assert links(hub) == both
    await change(hub, "DELETE", "reverse-text")
    assert links(hub) == {}


async def test_a_moved_environment_takes_its_links_along(hub, make_wheel):
    spec = make_wheel()
    await hub.publish(spec)
    answer = await hub.client.post(
        "/api/v1/environments/alice/reverse-text/transfer", json={"owner": "bob"}, headers=hub.auth("admin")
    )
    assert answer.is_success, answer.text
    assert list(links(hub)) == [f"bob/files/reverse-text/{spec.wheel_name}"]
    page = (await hub.get("/bob/simple/reverse-text/")).text
    assert f"../../files/reverse-text/{spec.wheel_name}" in page


@pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)
async def test_the_combined_index_has_links_for_what_lies_in_its_owners_namespace(hub, make_wheel):
    own, other = make_wheel(name="alice-echo"), make_wheel(name="echo")
    for spec in (own, other):
        await hub.publish(spec)
    combined = f"files/alice-echo/{own.wheel_name}"
    assert sorted(links(hub)) == sorted(
        [combined, f"alice/{combined}", f"alice/files/echo/{other.wheel_name}"]
    )
    assert links(hub)[combined] == own.build()
    assert (await hub.get(f"/{combined}")).content == own.build()
    with hub.database.write() as session:
        accounts.add_user(session, "alice-echo")
    younger = make_wheel(name="alice-echo", version="0.2.0")
    token = await hub.client.put(
        "/api/v1/owners/alice-echo/members/bob", json={"role": "owner"}, headers=hub.auth("admin")
    )
    assert token.is_success, token.text
    answer = await hub.upload(younger.build(), younger.wheel_name, owner="alice-echo", user="bob")
    assert answer.status_code == 200, answer.text
    assert f"files/alice-echo/{younger.wheel_name}" not in links(hub), "the older owner keeps the name"
    assert f"alice-echo/files/alice-echo/{younger.wheel_name}" in links(hub)
    await change(hub, "PUT", "alice-echo/visibility", private=True)
    assert [one for one in links(hub) if one.startswith(("files/", "alice/files/alice-echo"))] == []
    await change(hub, "PUT", "alice-echo/visibility", private=False)
    assert combined in links(hub)
    moved = await hub.client.post(
        "/api/v1/environments/alice/alice-echo/transfer", json={"owner": "bob"}, headers=hub.auth("admin")
    )
    assert moved.is_success, moved.text
    assert f"bob/{combined}" in links(hub)
    assert combined not in links(hub), "it left the namespace"
    for address in (combined, f"{combined}.metadata"):
        gone = await hub.get(f"/{address}")
        # Not 404, which would send installers to another index: the name was private once.
        assert (gone.status_code, gone.json()["code"]) == (401, "token_required")


async def test_a_change_that_fails_shows_nothing_and_hides_nothing_wrongly(hub, make_wheel, monkeypatch):
    await hub.publish(make_wheel())
    before = links(hub)
    shown = PublicFiles._show_if_it_can
    monkeypatch.setattr(PublicFiles, "_show_if_it_can", lambda *_: None)  # killed after the commit
    await hub.publish(make_wheel(version="0.2.0"))
    assert links(hub) == before
    assert (await hub.get("/alice/files/reverse-text/reverse_text-0.2.0-py3-none-any.whl")).status_code == 200
    monkeypatch.setattr(PublicFiles, "_show_if_it_can", shown)
    monkeypatch.setattr(PublicFiles, "show", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    await hub.publish(make_wheel(version="0.3.0"))
    assert links(hub) == before


async def test_fsck_mends_links_and_a_hub_without_them_leaves_none(hub, make_wheel):
    await hub.publish(make_wheel())
    app = hub.client._transport.app
    storage, folder = app.state.storage, hub.settings.data / FOLDER
    (path,) = [folder / one for one in links(hub)]
    right = links(hub)
    database = Database(hub.database.url)  # as the command has it, which is another process
    kept = PublicFiles(database, storage, folder)

    def found(*, repair: bool = False) -> list[str]:
        return sorted(one.code for one in fsck.check(database, storage, repair=repair, links=kept))

    assert found() == []
    target = os.readlink(path)
    path.unlink()
    os.symlink(target, path.with_name("other-0.1.0-py3-none-any.whl"))
    (folder / "bob").mkdir()
    os.symlink("/etc/passwd", folder / "bob" / "passwd")
    assert found() == ["link_extra", "link_extra", "link_missing"]
    assert found(repair=True) == ["link_extra", "link_extra", "link_missing"]
    assert found() == []
    assert links(hub) == right
    path.unlink()
    os.symlink("../../../../hub.db", path)
    assert found(repair=True) == ["link_extra", "link_missing"]
    assert found() == []
    assert links(hub) == right
    kept_links(hub.database, storage, folder, wanted=False)
    assert not folder.exists()
    database.close()


def test_links_need_a_folder_to_lead_to():
    with pytest.raises(ValidationError, match="public_files"):
        Settings(public_files=True, storage_url="s3://bucket")


@pytest.mark.full
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: nobody shows that its configuration works")
def test_nginx_sends_public_files_alone_and_others_once_the_hub_agrees(tmp_path, make_wheel):
    public, secret = make_wheel(requires_dist=()), make_wheel(name="kept-secret", requires_dist=())
    work, port = tmp_path / "nginx", free_port()
    work.mkdir()
    prefix = {"WANDER_HUB_PUBLIC_FILES": "true", "WANDER_HUB_ACCEL_PREFIX": "/_objects/"}
    with live_hub(tmp_path / "data", WANDER_HUB_BUNDLED_PACKAGES="false", **prefix) as hub:
        words = ["nginx-config", "--listen", f"127.0.0.1:{port}", "--upstream", f"127.0.0.1:{hub.port}"]
        printed = CliRunner().invoke(cli.app, [*words, "--data", str(hub.data)])
        assert printed.exit_code == 0, printed.output
        (work / "wander.conf").write_text(printed.stdout)
        user = "user root;" if os.getuid() == 0 else ""
        (work / "nginx.conf").write_text(MAIN.format(work=work, user=user))
        nginx = subprocess.Popen([NGINX, "-p", str(work), "-c", str(work / "nginx.conf")])
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_for(nginx, client, work)
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
                sent_alone(client, f"/files/admin-echo/{both.wheel_name}", both.build())
                sent_alone(client, paths[0], public.build())
                sent_when_allowed(client, paths[1], secret.build(), token)
                installs(f"http://127.0.0.1:{port}/admin/simple/", public.name, tmp_path / "target")
                address = f"/api/v1/environments/admin/{public.name}"
                assert client.put(f"{address}/visibility", json={"private": True}, auth=token).is_success
                assert client.get(paths[0]).status_code == 401
                assert client.get(paths[0], auth=token).content == public.build()
                assert client.put(f"{address}/visibility", json={"private": False}, auth=token).is_success
                sent_alone(client, paths[0], public.build())
                assert client.delete(address, auth=token).is_success
                assert client.get(paths[0]).status_code in (401, 404, 410)
        finally:
            nginx.terminate()
            nginx.wait(120)


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


def sent_alone(client: httpx.Client, path: str, body: bytes) -> None:
    """The hub names every request it sees."""
    whole = client.get(path)
    assert (whole.status_code, whole.content) == (200, body)
    assert "x-request-id" not in whole.headers
    assert whole.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = client.get(path, headers={"Range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, body[3:10])
    assert client.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    assert client.get(f"{path}.metadata").headers["x-request-id"]
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
