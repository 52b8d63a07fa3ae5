"""The hub offers the SDK and the client that it runs with, under the owner `wander`."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution

import pytest
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.upload import bundled
from wander_hub.upload.schemas import Upload


@pytest.fixture
def storage(hub):
    return Storage.open(hub.settings.storage_url, hub.settings.data / "objects")


async def test_bundled_packages_are_installable_but_not_listed(hub, storage):
    fresh = bundled.publish_bundled(hub.database, storage, hub.settings)
    packages = [name.replace("-", "_") for name in bundled.BUNDLED_DISTRIBUTIONS]
    assert [name.split("-")[0] for name in fresh] == packages
    assert bundled.publish_bundled(hub.database, storage, hub.settings) == []
    root = await hub.get("/wander/simple/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    listed = [one["name"].replace("-", "_") for one in root.json()["projects"]]
    assert listed == sorted(packages)
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
    file = await hub.get(f"/wander/files/wander-sdk/{fresh[0]}")
    assert file.headers["cache-control"] == "no-cache"
    version = (await hub.get("/api/v1/environments/wander/wander-sdk/versions/latest")).json()
    assert version["uploaded_by"] == "the hub"


async def test_a_new_build_of_a_bundled_version_replaces_the_old_one(hub, storage, tmp_path, make_wheel):
    names = []
    for summary in ("Old.", "New."):
        spec = make_wheel(name="wander-sdk", summary=summary, files={"wander/__init__.py": b"x = 1\n"})
        wheel = tmp_path / spec.wheel_name
        wheel.write_bytes(spec.build())
        names += bundled._publish(wheel, hub.database, storage, hub.settings)
    assert len(names) == 2
    version = (await hub.get("/api/v1/environments/wander/wander-sdk")).json()["latest"]
    assert (version["summary"], len(version["files"])) == ("New.", 1)
    page = (await hub.get("/wander/simple/wander-sdk/")).text
    assert version["files"][0]["sha256"] in page


def test_an_installed_distribution_is_packed_again(tmp_path):
    wheel = bundled._pack(distribution("packaging"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert "packaging/version.py" in archive.namelist()
    body = wheel.read_bytes()
    (tmp_path / "again").mkdir()
    assert bundled._pack(distribution("packaging"), tmp_path / "again").read_bytes() == body
    with wheel.open("rb") as file:
        upload = Upload("wander", wheel.name, file, len(body), "")
        package = bundled.checks.check(upload, Settings(), environment=False)
    assert package.name == "packaging"


def test_a_checkout_is_distinguished_from_an_installation():
    assert (bundled.source_folder(distribution("wander-hub")) / "pyproject.toml").is_file()
    assert bundled.source_folder(distribution("packaging")) is None
