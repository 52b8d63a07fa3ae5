"""New packages, their checks, what is sent when one is published, and which wheels an install takes."""

from __future__ import annotations

import hashlib
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from archive_forge import WHEEL_NAME, wheel_of
from command_line import ENVIRONMENT, HubRoom, Wander, make_wheel
from packaging.specifiers import SpecifierSet
from wander.wire import FileInfo, VersionDetail
from wander.wire.package_index import IndexFile
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.names import EnvironmentName
from wander_client.packages import built_package, install, needs
from wander_client.packages.built_package import BuiltFile, BuiltPackage
from wander_client.packages.interpreters import HERE
from wander_client.packages.scaffold import package_name
from wander_client.packages.store import RECORD, EnvironmentStore, InstalledRecord
from wander_client.packages.virtualenvs import stage_folder


@pytest.mark.parametrize("word", ["1st", "wander", "tests", "größe", "a b", "-", "wander_sdk"])
def test_folders_that_are_not_packages_are_rejected(word: str) -> None:
    with pytest.raises(UsageError):
        package_name(word)


@pytest.mark.full
def test_check_exits_with_status_1_for_a_failed_check(wander: Wander, folder: Path) -> None:
    assert wander("check", str(folder)).out.splitlines()[0].startswith("ok")
    (folder / "say_env.py").write_text("raise RuntimeError('broken')")
    told = wander("check", str(folder))
    assert (told.status, len(told.out.splitlines())) == (1, 13), told.out
    assert "30 checks not checked, because an earlier check failed" in told.out
    (folder / "say_env.py").write_text(ENVIRONMENT.replace('f"say {n}"', 'f"say {n} {hash(str(n))}"'))
    result = wander("check", str(folder), "--json")
    assert (result.status, result.data["passed"]) == (1, False)
    assert wander("check", str(folder)).status == 1


def inspected(wheel: Path) -> BuiltPackage:
    content = wheel.read_bytes()
    built = BuiltFile(wheel, "wheel", hashlib.sha256(content).hexdigest(), len(content))
    sdist = wheel.with_name("source.tar.gz")
    with tarfile.open(sdist, "w:gz"):
        pass
    return built_package._inspect(built, BuiltFile(sdist, "sdist", "0" * 64, 0))


def test_published_metadata_is_read_from_the_wheel(tmp_path: Path) -> None:
    package = inspected(make_wheel(tmp_path))
    assert (package.name, package.version, package.warnings) == ("say-env", "0.1.0", [])
    assert ("say_env.py", len(ENVIRONMENT)) in package.members


def test_a_wheel_without_an_environment_is_not_uploaded(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="has no `load_environment`"):
        inspected(make_wheel(tmp_path, module="x = 1\n"))


def test_warnings_of_the_hub_are_printed(hub: HubRoom, tmp_path: Path) -> None:
    from wander_client.hub.api import HubApi

    wheel = tmp_path / WHEEL_NAME
    wheel.write_bytes(wheel_of({"start.pth": b"import good_env\n"}))
    package = inspected(wheel)
    package = BuiltPackage(**{**vars(package), "sdist": package.wheel})
    told: list[str] = []
    built_package.upload(
        HubApi("https://testserver", hub.token, transport=hub.transport), "admin", package, warn=told.append
    )
    hint = "run this code when the package is imported"
    assert told == [f"`{WHEEL_NAME}`: `start.pth` runs when Python starts ({hint})"]


def test_publishing_again_uploads_nothing_and_changed_files_are_rejected(
    hub: HubRoom, tmp_path: Path
) -> None:
    from wander_client.hub.api import HubApi

    api = HubApi("https://testserver", hub.token, transport=hub.transport)
    package = inspected(make_wheel(tmp_path))
    package = BuiltPackage(**{**vars(package), "sdist": package.wheel})
    assert built_package.upload(api, "admin", package).sent == {package.wheel.path.name}
    assert built_package.upload(api, "admin", package).sent == set()
    other = inspected(make_wheel(tmp_path, module=ENVIRONMENT + "\n"))
    with pytest.raises(ClientError) as caught:
        built_package.upload(api, "admin", other)
    assert (caught.value.status, caught.value.code) == (1, "version_exists")


@pytest.mark.parametrize(
    ("text", "status"),
    [(None, 2), ("[project", 1), ("[tool.x]\n", 1), ("[project]\nversion = '1'\n", 1)],
)
def test_a_folder_without_a_package_is_not_published(
    text: str | None, status: int, wander: Wander, home: Path
) -> None:
    (home / "x").mkdir()
    if text is not None:
        (home / "x" / "pyproject.toml").write_text(text)
    result = wander("publish", "./x", "--dry-run")
    assert result.status == status
    assert "pyproject.toml" in result.err
    assert "hint: " in result.err or text == "[project"


def detail(*filenames: str, requires_python: str | None = None) -> VersionDetail:
    files = [
        FileInfo(
            filename=name, kind="wheel", size=1, sha256="0" * 64, url="/x", uploaded_at=datetime.now(UTC)
        )
        for name in filenames
    ]
    return VersionDetail(
        owner="a", name="b", version="1.0", uploaded_at=datetime.now(UTC), uploaded_by="a",
        files=files, requires_python=requires_python,
    )  # fmt: skip


def test_a_wheel_for_this_machine_is_chosen() -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = install.wheel_file(
        detail("b-1.0-cp27-cp27m-win32.whl", "b-1.0-py3-none-any.whl", f"b-1.0-{tag}-none-any.whl")
    )
    assert found.filename == f"b-1.0-{tag}-none-any.whl"
    with pytest.raises(NotFound, match="no wheel for this machine"):
        install.wheel_file(detail("b-1.0-cp27-cp27m-win32.whl"))


def test_only_requirements_for_this_machine_are_read() -> None:
    found = needs.requirements_of(
        ["Wander_SDK>=0.1", "x; python_version < '3'", "y; extra == 'dev'", "z==2"], "acme/b 1.0"
    )
    assert {name: str(specifier) for name, specifier in found.items()} == {"wander-sdk": ">=0.1", "z": "==2"}
    with pytest.raises(ClientError) as refused:
        needs.requirements_of(["!!"], "acme/b 1.0")
    assert refused.value.code == "unsafe_requirement"


def index_file(version: str, **more: object) -> IndexFile:
    name = f"wander_sdk-{version}-py3-none-any.whl"
    entry = {"filename": name, "url": f"http://h/{name}", "hashes": {"sha256": "1" * 64}, **more}
    return IndexFile.model_validate(entry)


def test_the_newest_compatible_sdk_is_taken_from_the_hub() -> None:
    files = [
        index_file("0.2"),
        index_file("0.10"),
        index_file("0.11", yanked=True),
        IndexFile(filename="wander_sdk-0.1.tar.gz", url="x"),
    ]
    assert needs.newest("wander-sdk", files, None).filename == "wander_sdk-0.10-py3-none-any.whl"
    assert needs.newest("wander-sdk", files, SpecifierSet("<0.5")).filename.startswith("wander_sdk-0.2")
    with pytest.raises(ClientError, match="has no version of `wander-sdk` that matches"):
        needs.newest("wander-sdk", files, SpecifierSet(">=9"))
    with pytest.raises(ClientError, match="without a digest"):
        needs.newest("wander-sdk", [index_file("0.2", hashes={})], None)


def record(
    version: str, sha256: str = "a" * 64, hub: str = "http://h", virtualenv: str = "none"
) -> InstalledRecord:
    return InstalledRecord(
        hub=hub, owner="acme", name="wordle", version=version, wheel="w.whl", wheel_sha256=sha256,
        wheel_url="http://h/w.whl", lock_sha256="b" * 64, packages_sha256="c" * 64,
        sdk="0.1.0", python="3.11", virtualenv=virtualenv, installed_at=datetime.now(UTC),
    )  # fmt: skip


def put(store: EnvironmentStore, version: str, **more: str) -> Path:
    """Install by hand: the store sees a folder once it is whole."""
    made = record(version, **more)
    place = store.folder_for(made.hub, EnvironmentName("acme", "wordle", version), made.wheel_sha256)
    with stage_folder(place) as work:
        made.write(work / RECORD)
    return place


def test_an_environment_is_installed_completely_or_not_at_all(tmp_path: Path) -> None:
    store = EnvironmentStore(tmp_path)
    place = store.folder_for("http://h", EnvironmentName("acme", "wordle", "1.0"), "a" * 64)

    def fail_half_way() -> None:
        with stage_folder(place) as work:
            record("1.0").write(work / RECORD)
            assert store.all() == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert store.all() == []
    assert list(place.parent.iterdir()) == []
    assert put(store, "1.0") == place
    assert put(store, "1.0") == place
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_installed_versions_are_found_by_name_version_and_hub(tmp_path: Path) -> None:
    store = EnvironmentStore(tmp_path)
    for version in ("1.10", "1.9"):
        put(store, version)
    put(store, "2.0", hub="http://other", sha256="c" * 64)
    name = EnvironmentName("acme", "wordle")
    assert [one.record.version for one in store.find(name, "http://h")] == ["1.9", "1.10"]
    assert [one.record.version for one in store.find(name, "http://other")] == ["2.0"]
    assert store.find(EnvironmentName("acme", "wordle", "3.0"), "http://h") == []
    for one in store.all():
        store.remove(one)
    assert store.all() == []
    assert [each.name for each in (tmp_path / "environments").iterdir() if each.name[0] != "."] == []


def test_list_and_uninstall_show_and_remove_what_is_installed(wander: Wander, home: Path) -> None:
    store = EnvironmentStore(home / "data")
    put(store, "1.0")
    put(store, "1.1")
    assert [one["version"] for one in wander("env", "list", "--json").data] == ["1.0", "1.1"]
    assert wander("env", "uninstall", "acme/wordle@1.0", "--json").data[0]["version"] == "1.0"
    assert wander("env", "uninstall", "acme/wordle").out == "uninstalled acme/wordle@1.1\n"
    assert wander("env", "list", "--json").data == []
    assert wander("env", "list").out.startswith("environment\t")


def test_a_damaged_record_is_named_and_the_others_are_listed(wander: Wander, home: Path) -> None:
    store = EnvironmentStore(home / "data")
    put(store, "1.0")
    place = put(store, "1.1")
    (place / RECORD).write_text("{")
    for command in (("env", "list"), ("cache", "list"), ("cache", "prune", "--dry-run")):
        result = wander(*command, "--json")
        assert result.status == 0
        (warning,) = result.json["warnings"]
        assert f"`{place / RECORD}` is not the record" in warning
        assert f"remove the folder `{place}`" in warning
    assert [one["version"] for one in wander("env", "list", "--json").data] == ["1.0"]
    assert wander("env", "uninstall", "acme/wordle").out == "uninstalled acme/wordle@1.0\n"
    with pytest.raises(ClientError, match="is not the record"):
        store.all()  # whoever has nobody to warn is not left in the dark


def test_installed_environments_run_while_the_hub_is_unreachable(wander: Wander, home: Path) -> None:
    store = EnvironmentStore(home / "data")
    put(store, "1.0", hub="http://hub.example", virtualenv="some")

    def build(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)

    with store.virtualenvs.hold("some", HERE, build):
        pass
    played = wander("eval", "acme/wordle@1.0", "-m", "scripted:nothing", "--hub", "http://hub.example")
    assert "cannot reach" not in played.err.partition("error:")[2]
    for other in ("http://127.0.0.1:9", "https://hub.example:9", "http://hub.example.127.0.0.1.nip.invalid"):
        played = wander("eval", "acme/wordle@1.0", "-m", "scripted:nothing", "--hub", other, "--json")
        assert (played.status, played.json["error"]["code"]) == (5, "hub_unreachable"), "it is another hub's"


def test_two_hubs_may_offer_the_same_name(tmp_path: Path) -> None:
    store = EnvironmentStore(tmp_path)
    hubs = [
        "http://h", "https://h", "http://h:8600", "http://h/a", "http://h/b", "http://h.a", "http://[::1]:80"
    ]  # fmt: skip
    places = {put(store, "1.0", hub=hub) for hub in hubs}
    assert len(places) == len(hubs)
    for hub in hubs:
        (found,) = store.find(EnvironmentName("acme", "wordle", "1.0"), hub)
        assert found.record.hub == hub
    store.remove(store.find(EnvironmentName("acme", "wordle"), hubs[0])[0])
    assert len(store.all()) == len(hubs) - 1
