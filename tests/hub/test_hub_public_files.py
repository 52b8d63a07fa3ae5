"""Links to public files: there for what everybody may have, gone before it is hidden, mended by fsck."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError
from wander_hub.accounts import service as accounts
from wander_hub.database import Database
from wander_hub.fsck import check as fsck
from wander_hub.index.public_files import FOLDER, PublicFiles
from wander_hub.index.public_files import keep_links as kept_links
from wander_hub.settings import Settings


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
async def test_only_public_files_are_linked(hub, make_wheel):
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


async def test_a_transferred_environment_keeps_its_links(hub, make_wheel):
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
async def test_the_combined_index_links_files_of_its_namespace(hub, make_wheel):
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
        return sorted(one.code for one in fsck.find_mismatches(database, storage, repair=repair, links=kept))

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
