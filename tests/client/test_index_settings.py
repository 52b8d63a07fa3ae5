"""pip's index settings reach uv, which does not read them by itself; uv's own settings come first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wander_client.errors import ClientError, Unavailable
from wander_client.packages.uv import index_arguments, pip_options, run_uv


@pytest.fixture
def config(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    path = tmp_path / "pip.conf"
    path.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n    https://two.example/simple\n"
        "    https://three.example/simple\nfind-links = /wheels\n[install]\ncert = /ca.pem\n"
    )
    return path, {"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path / "home")}


def test_a_configuration_file_becomes_uv_arguments(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    assert index_arguments(environ) == [
        "--default-index", "https://one.example/simple",
        "--index", "https://two.example/simple",
        "--index", "https://three.example/simple",
        "--index-strategy", "unsafe-first-match",
        "--find-links", "/wheels",
    ]  # fmt: skip
    assert pip_options(environ)["cert"] == ["/ca.pem"]


def test_variables_win_over_files(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    environ["PIP_EXTRA_INDEX_URL"] = "https://four.example/simple"
    environ["PIP_FIND_LINKS"] = "/a /b"
    found = index_arguments(environ)
    assert found[2:4] == ["--index", "https://four.example/simple"]
    assert found[-4:] == ["--find-links", "/a", "--find-links", "/b"]


def test_no_index_leaves_only_the_links(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    assert "--no-index" in index_arguments({**environ, "PIP_NO_INDEX": "true"})
    assert "--default-index" not in index_arguments({**environ, "PIP_NO_INDEX": "true"})


@pytest.mark.parametrize("variable", ["UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"])
def test_a_user_who_configured_uv_gets_uv_alone(variable: str, config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    assert index_arguments({**environ, variable: "https://uv.example/simple"}) == []


def test_an_empty_configuration_says_nothing() -> None:
    assert index_arguments({"PIP_CONFIG_FILE": os.devnull}) == []


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("no section\n")
    with pytest.raises(ClientError, match="not a pip configuration"):
        pip_options({"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path)})


def test_what_uv_says_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as caught:
        run_uv(["build", "--no-build-isolation", str(tmp_path / "nothing")], doing="building `nothing`")
    assert str(caught.value) == "building `nothing` failed"
    assert "nothing" in str(caught.value.detail)


def test_an_index_that_is_down_is_a_network_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    run_uv(["venv", "--quiet", "--no-project", str(venv)], doing="making the virtual environment")
    command = [
        "pip",
        "install",
        "--python",
        str(venv / "bin" / "python"),
        "--default-index",
        "http://127.0.0.1:9/simple",
    ]
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable, match="a package index did not answer"):
        run_uv([*command, "nothing-of-the-kind"], doing="installing")
