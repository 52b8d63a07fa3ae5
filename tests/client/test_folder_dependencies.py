"""A folder runs with what it declares: in this Python if that has it, else in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Wander, make_wheel
from package_mirror import build_mirror
from wander_client.errors import ClientError
from wander_client.packages.folder import declared_requirements, python_of

MODULE = """
import tiny_luck
from wander import Rubric, SingleTurnEnv


def right(completion, answer) -> float:
    return float(completion[-1]["content"] == answer)


def load_environment() -> SingleTurnEnv:
    return SingleTurnEnv([{"question": "?", "answer": tiny_luck.NUMBER}], rubric=Rubric([right]))


def solver(request) -> str:
    return tiny_luck.NUMBER
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An index with what the SDK and the classic API need, and `tiny-luck`."""
    folder = tmp_path_factory.mktemp("mirror")
    address = build_mirror(folder, ["wander-sdk", "wander-compat"])
    page = folder / "simple" / "tiny-luck"
    page.mkdir()
    wheel = make_wheel(page, name="tiny-luck", version="1.2.0", module='NUMBER = "7"\n')
    (page / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>')
    return address


@pytest.fixture
def lucky(home: Path) -> Path:
    """A folder that needs a package which this Python lacks."""
    place = home / "lucky"
    (place / "lucky").mkdir(parents=True)
    (place / "lucky" / "__init__.py").write_text(MODULE)
    (place / "README.md").write_text("# lucky\n")
    declare(place, "wander-sdk>=0.1", "tiny-luck>=1; python_version > '3'", "nothing; python_version < '3'")
    return place


def declare(place: Path, *requirements: str) -> None:
    (place / "pyproject.toml").write_text(
        f'[project]\nname = "lucky"\nversion = "0.1.0"\ndependencies = {list(requirements)}\n'
    )


def test_the_dependencies_are_installed_once(
    lucky: Path, mirror: str, wander: Wander, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", mirror)
    played = wander("eval", "./lucky", "-m", "scripted:lucky:solver", "-n", "1", "--plain")
    assert played.status == 0, played.err
    assert "installing packages for `lucky` that are missing in this Python: `tiny-luck>=1" in played.err
    assert "reward  1.0" in played.out
    monkeypatch.setenv("UV_DEFAULT_INDEX", (home / "gone").as_uri())
    checked = wander("check", "./lucky", "--json")
    assert {one["id"]: one["status"] for one in checked.data["checks"]}["load.works"] == "pass"
    assert wander("cache", "list", "--json").data[0]["state"] == "unreferenced"
    inside = wander("eval", "./lucky", "-m", "scripted:lucky:solver", "-n", "1", "--set", "in_process=true")
    assert inside.status == 2
    assert f"uv pip install --python {sys.executable} " in inside.err


def test_the_installation_command_is_printed_if_dependencies_are_missing(
    lucky: Path, wander: Wander, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "empty").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (home / "empty").as_uri())
    for command in (["check", "./lucky"], ["eval", "./lucky", "-m", "scripted:lucky:solver"]):
        refused = wander(*command, "--json")
        assert refused.status == 1, refused.out
        hint = refused.json["error"]["hint"]
        assert f"uv pip install --python {sys.executable} 'tiny-luck>=1" in hint
    assert list((home / "data" / "virtualenvs").glob("[!.]*")) == []


def test_a_missing_plugin_is_copied_or_named(
    lucky: Path, mirror: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", mirror)
    declare(lucky, "wander-sdk>=0.1", "wander-integrations>=0.1", "tiny-luck>=1")
    python = python_of(lucky, home, print)
    assert python != Path(sys.executable)
    subprocess.run([python, "-P", "-c", "from wander_integrations import GameEnv"], check=True)
    monkeypatch.setattr("wander_client.packages.folder.find_spec", lambda name: None)
    with pytest.raises(ClientError) as refused:
        python_of(lucky, home, print)
    assert refused.value.code == "missing_extra"
    assert "wander-integrations`" in str(refused.value.hint)


def test_packages_of_this_python_are_not_installed_again(lucky: Path, home: Path) -> None:
    told: list[str] = []
    for requirements in (
        ["wander-sdk>=99", "pydantic>=2"],  # of Wander's own packages, what is here is what runs
        ["verifiers>=0.1.5", "wander-sdk[data]"],
        [],
    ):
        declare(lucky, *requirements)
        assert python_of(lucky, home, told.append) == Path(sys.executable)
    assert told == []
    (lucky / "pyproject.toml").write_text("[project]\ndynamic = ['dependencies']\n")
    assert declared_requirements(lucky) == []
    declare(lucky, "pydantic<1")
    assert [str(each) for each in declared_requirements(lucky)] == ["pydantic<1"]
