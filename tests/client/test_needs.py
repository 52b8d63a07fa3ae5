"""Which of the hub's own packages go into an environment: the classic API wherever its code may ask."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from wander.wire.package_index import FileHashes, IndexFile
from wander_client.packages import needs
from wander_client.packages.lock import install_lines, read_lock
from wander_client.packages.needs import Supplies, Wheel, find_supplies
from wander_hub.upload.bundled import BUNDLED_DISTRIBUTIONS

NATIVE = "import wander\n\ndef load_environment(): ...\n"
CLASSIC = "import verifiers as vf\n\ndef load_environment(): ...\n"
TASKSET = "import verifiers.v1 as vf\n\n__all__ = ['Adder']\n"


def empty_wheel(name: str) -> bytes:
    project, version, *_ = name.split("-")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        metadata = zipfile.ZipInfo(f"{project}-{version}.dist-info/METADATA")
        archive.writestr(metadata, f"Name: {project}\nVersion: {version}\n")
    return content.getvalue()


class Hub:
    """A hub that serves wheels with nothing in them."""

    url = "http://hub.example"

    def __init__(self, *filenames: str) -> None:
        self.contents = {name: empty_wheel(name) for name in filenames}

    def absolute(self, url: str) -> str:
        return url if url.startswith("http") else f"{self.url}{url}"

    def index_files(self, owner: str, project: str) -> list[IndexFile] | None:
        assert owner == "wander"
        module = project.replace("-", "_")
        found = [name for name in self.contents if name.startswith(f"{module}-")]
        where = f"/wander/files/{project}"
        return [
            IndexFile(filename=name, url=f"{where}/{name}", hashes=FileHashes(sha256=self.sha256(name)))
            for name in found
        ] or None

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.contents[name]).hexdigest()

    def download(self, url: str, target: Path, sha256: str, *, size: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.contents[url.rpartition("/")[2]])


SDK, COMPAT, CLIENT = (f"wander_{name}-0.1.0-py3-none-any.whl" for name in ("sdk", "compat", "client"))
INTEGRATIONS = "wander_integrations-0.1.0-py3-none-any.whl"
SHIM = "verifiers-0.3.1.post100-py3-none-any.whl"


@pytest.fixture
def of(tmp_path: Path):
    """Return what a wheel with this source needs of a hub that serves these files."""

    def found(source: str, requires: list[str], *served: str, warnings: list[str] | None = None) -> Supplies:
        path = tmp_path / "sayer-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("sayer.py", source)
            metadata = "".join(f"Requires-Dist: {each}\n" for each in requires)
            archive.writestr("sayer-1.0.dist-info/METADATA", metadata)
        wheel = Wheel("sayer", "1.0", path, "http://hub.example/a/files/sayer/sayer.whl", "0" * 64)
        told = [] if warnings is None else warnings
        return find_supplies(Hub(*served), tmp_path, wheel, told.append)  # type: ignore[arg-type]

    return found


def names(wheels: list[Wheel]) -> list[str]:
    return [each.project for each in wheels]


@pytest.mark.parametrize(
    ("source", "requires", "own"),
    [
        (NATIVE, ["wander-sdk"], ["sayer", "wander-sdk"]),
        (NATIVE, ["wander-sdk", "wander-client"], ["sayer", "wander-sdk", "wander-client"]),
        (CLASSIC, ["wander-sdk"], ["sayer", "wander-sdk", "wander-compat"]),
        (CLASSIC, ["verifiers==0.1.5"], ["sayer", "wander-sdk", "wander-compat"]),
        (NATIVE, ["verifiers>=0.1"], ["sayer", "wander-sdk", "wander-compat"]),
        (TASKSET, ["verifiers"], ["sayer", "wander-sdk", "wander-compat"]),
        ("vf = __import__('verifiers')\n", ["wander-sdk"], ["sayer", "wander-sdk", "wander-compat"]),
        ("from wander_compat.verifiers import Rubric\n", [], ["sayer", "wander-sdk", "wander-compat"]),
    ],
)
def test_the_classic_api_is_installed_if_it_is_required(
    of, source: str, requires: list[str], own: list[str]
) -> None:
    assert names(of(source, requires, SDK, COMPAT, CLIENT, SHIM).own) == own


def test_a_required_plugin_comes_from_the_hub(of) -> None:
    requires = ["wander-sdk", "wander-integrations[gymnasium]>=0.1"]
    warnings: list[str] = []
    found = of(NATIVE, requires, SDK, INTEGRATIONS, warnings=warnings)
    assert (names(found.own), warnings) == (["sayer", "wander-sdk", "wander-integrations"], [])
    assert names(of(NATIVE, ["wander-sdk"], SDK, INTEGRATIONS).own) == ["sayer", "wander-sdk"]


def test_indirect_requirements_come_from_the_hub_too(of) -> None:
    found = of(NATIVE, ["wander-sdk", "other"], SDK, COMPAT, SHIM)
    assert names(found.at_hand) == ["wander-compat", "verifiers"]
    lines = [line.partition(" @ file:")[0] for line in found.overrides.splitlines()]
    assert lines == ["wander-compat", "verifiers"]
    assert names(found.wheels) == ["sayer", "wander-sdk", "wander-compat", "verifiers"]


def test_a_task_set_keeps_the_upstream_library(of) -> None:
    found = of(TASKSET, ["verifiers[ta]>=0.4"], SDK, COMPAT, SHIM)
    assert (found.at_hand, found.overrides) == ([], "")
    assert found.first == "verifiers[ta]>=0.3.0,>=0.4"
    assert found.programs == []


def test_packages_required_by_scripts_of_a_task_set_are_installed(of) -> None:
    """The library would have uv fetch them when a rollout begins."""
    block = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["six>=1", "openai"]\n# ///\n'
    script = f"{TASKSET}PROGRAM = '''\n{block}print(1)\n'''\n"
    assert of(script, ["verifiers"], SDK, COMPAT).programs == ["six>=1", "openai"]
    for unread in ("nothing", '"six"'):
        given = script.replace('["six>=1", "openai"]', unread)
        assert of(given, ["verifiers"], SDK, COMPAT).programs == []


def test_the_hub_of_before_serves_an_sdk_that_holds_the_api(of) -> None:
    found = of(CLASSIC, ["verifiers"], SDK, SHIM)
    assert (names(found.own), names(found.at_hand)) == (["sayer", "wander-sdk"], ["verifiers"])
    assert found.first == ""


def test_the_api_is_of_the_release_of_the_sdk(of) -> None:
    later = [each.replace("0.1.0", "0.2.0") for each in (SDK, COMPAT)]
    found = of(CLASSIC, ["wander-sdk<0.2", "verifiers"], SDK, COMPAT, *later, SHIM)
    assert [(each.project, each.version) for each in found.own[1:]] == [
        ("wander-sdk", "0.1.0"),
        ("wander-compat", "0.1.0"),
    ]


@pytest.mark.parametrize(("source", "first"), [(NATIVE, ""), (CLASSIC, "wander-compat")])
def test_a_hub_that_serves_none_of_ours_leaves_them_to_the_index(of, source: str, first: str) -> None:
    warnings: list[str] = []
    found = of(source, ["wander-sdk"], warnings=warnings)
    assert (names(found.own), found.at_hand, found.first) == (["sayer"], [], first)
    assert "does not serve `wander-sdk`, so it comes from your package index" in warnings[0]


LOCK = """
lock-version = "1.0"
created-by = "wander"
requires-python = ">=3.11"
"""


def locked(hub: Hub, *filenames: str) -> bytes:
    """Return a lock with the hub's packages, as `wander publish` writes it."""
    text = LOCK
    for name in filenames:
        project, version = name.split("-")[0].replace("_", "-"), name.split("-")[1]
        url = f"https://published.example/wander/files/{project}/{name}"
        text += f'[[packages]]\nname = "{project}"\nversion = "{version}"\n'
        text += f'wheels = [{{url = "{url}", size = 1, hashes = {{sha256 = "{hub.sha256(name)}"}}}}]\n'
    return text.encode()


@pytest.mark.parametrize("packages", [(SDK, SHIM), (SDK, COMPAT, SHIM)])
def test_a_lock_installs_exactly_the_packages_that_it_lists(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    """The lock of a classic environment of before names no `wander-compat`: its SDK holds the classic API."""
    hub = Hub(SDK, COMPAT, SHIM)
    own = Wheel("sayer", "1.0", tmp_path / "sayer-1.0-py3-none-any.whl", "http://hub.example/x", "0" * 64)
    lines = install_lines(hub, tmp_path, read_lock(locked(hub, *packages)), own).splitlines()  # type: ignore[arg-type]
    assert [line.partition(" @ ")[0] for line in lines] == [
        "sayer",
        *(name.split("-")[0].replace("_", "-") for name in packages),
    ]
    for line, name in zip(lines[1:], packages, strict=True):
        served = tmp_path / "wheels" / hub.sha256(name) / name
        assert line.endswith(f" @ {served.as_uri()} --hash=sha256:{hub.sha256(name)}")


def test_hub_packages_are_distinguished_from_index_packages() -> None:
    assert set(needs.HUB_PACKAGES) == set(BUNDLED_DISTRIBUTIONS)
