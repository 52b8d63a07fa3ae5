"""The settings of pip and uv reach uv in one file; uv's own settings come first, and no variable is
inherited."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from wander.wire.reproduction import toml_lines
from wander_client.errors import ClientError, Unavailable
from wander_client.packages.indexes import certificates, configured_origins, pip_options, uv_settings
from wander_client.packages.uv import run_uv


@pytest.fixture
def config(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    path = tmp_path / "pip.conf"
    path.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n    "
        "https://two.example/simple\n"
        "    https://three.example/simple\nfind-links = /wheels\n[install]\ncert = /ca.pem\n"
    )
    return path, {"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path / "home")}


def urls_of(environ: dict[str, str], first: str | None = None) -> list[str]:
    return [index["url"] for index in uv_settings(environ, first).get("index", [])]


def test_pip_settings_become_uv_settings(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    found = uv_settings(environ)
    assert found["index"] == [
        {"url": "https://two.example/simple"},
        {"url": "https://three.example/simple"},
        {"url": "https://one.example/simple", "default": True},
    ]
    assert (found["index-strategy"], found["find-links"]) == ("unsafe-first-match", ["/wheels"])
    assert certificates(environ) == {"SSL_CERT_FILE": "/ca.pem"}
    assert tomllib.loads("\n".join(toml_lines(found))) == found


def test_variables_override_files(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    environ["PIP_EXTRA_INDEX_URL"] = "https://four.example/simple"
    environ["PIP_FIND_LINKS"] = "/a /b"
    assert urls_of(environ)[0] == "https://four.example/simple"
    assert uv_settings(environ)["find-links"] == ["/a", "/b"]


def test_no_index_leaves_only_the_links(config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    found = uv_settings({**environ, "PIP_NO_INDEX": "true"})
    assert found["no-index"] is True
    assert not any(index.get("default") for index in found.get("index", []))


@pytest.mark.parametrize("variable", ["UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL"])
def test_the_settings_of_uv_replace_those_of_pip(variable: str, config: tuple[Path, dict[str, str]]) -> None:
    _, environ = config
    assert urls_of({**environ, variable: "https://uv.example/simple"}) == ["https://uv.example/simple"]


def test_an_empty_configuration_sets_no_index() -> None:
    found = uv_settings({"PIP_CONFIG_FILE": os.devnull, "HOME": "/nowhere"})
    assert found.keys() == {"no-proxy"}


def test_configuration_in_the_project_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".config" / "uv").mkdir(parents=True)
    (home / ".config" / "uv" / "uv.toml").write_text(
        'exclude-newer = 2026-01-01\n[[index]]\nname = "own"\nurl = "https://own.example/simple"\n'
        '[pip]\nindex-url = "https://default.example/simple"\nextra-index-url = ["wheels"]\n'
    )
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "uv.toml").write_text('index-url = "https://evil.example/simple"\n')
    monkeypatch.chdir(tmp_path / "sent")
    environ = {"HOME": str(home), "PIP_CONFIG_FILE": os.devnull}
    assert urls_of(environ) == [
        "https://own.example/simple",
        str(home / ".config" / "uv" / "wheels"),
        "https://default.example/simple",
    ]
    assert uv_settings(environ)["exclude-newer"] == "2026-01-01"
    assert urls_of({**environ, "UV_NO_CONFIG": "1"}) == []
    assert urls_of({**environ, "UV_INDEX": "https://first.example"})[0] == "https://first.example"
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(ClientError) as failed:
        run_uv(["pip", "install", "--dry-run", "--python", "/nowhere", "x"], doing="installing")
    assert "evil" not in str(failed.value.detail)


def test_passwords_are_only_in_the_configuration_file() -> None:
    environ = {
        "PIP_CONFIG_FILE": os.devnull,
        "HOME": "/nowhere",
        "UV_INDEX": "acme=https://pypi.acme.example/simple https://u:p@other.example/simple",
        "UV_INDEX_ACME_USERNAME": "me@acme",
        "UV_INDEX_ACME_PASSWORD": "a/b c",
        "HTTPS_PROXY": "http://me:secret@proxy.example:3128",
    }
    found = uv_settings(environ, "http://127.0.0.1:5/key/simple/")
    assert [index["url"] for index in found["index"]] == [
        "http://127.0.0.1:5/key/simple/",
        "https://me%40acme:a%2Fb%20c@pypi.acme.example/simple",
        "https://u:p@other.example/simple",
    ]
    assert found["https-proxy"] == environ["HTTPS_PROXY"]
    assert "127.0.0.1" in found["no-proxy"]
    assert configured_origins(environ) == {"https://pypi.acme.example", "https://other.example"}


SECRETS = {
    "OPENAI_API_KEY": "sk-1", "WANDER_TOKEN": "wnd_1", "AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "hf_1",
    "UV_INDEX_ACME_PASSWORD": "p1", "UV_PUBLISH_TOKEN": "p2", "PIP_INDEX_URL": "https://me:p3@i.example/simple",
    "UV_DEFAULT_INDEX": "https://me:p4@127.0.0.1:9/simple", "HTTPS_PROXY": "http://me:p5@127.0.0.1:9",
    "UV_PYTHON_INSTALL_MIRROR": "https://me:p6@mirror.example", "GITHUB_TOKEN": "gh", "MY_OWN_SECRET": "x",
}  # fmt: skip


def test_uv_gets_no_secrets_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\nenv > {seen}\necho "$@" >> {seen}\n')
    fake.chmod(0o755)
    monkeypatch.setattr("wander_client.packages.uv.uv_binary", lambda: str(fake))
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    run_uv(["pip", "install", "x"], doing="installing", index="http://127.0.0.1:1/very-secret-key/simple/")
    said = seen.read_text()
    assert "PATH=" in said
    assert not any(f"{name}=" in said for name in SECRETS)
    assert not any(value in said for value in (*SECRETS.values(), "very-secret-key") if len(value) > 2)


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("no section\n")
    with pytest.raises(ClientError, match="not a valid pip configuration"):
        pip_options({"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path)})


def test_the_output_of_uv_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as caught:
        run_uv(["pip", "list", "--python", str(tmp_path / "nothing")], doing="looking at `nothing`")
    assert caught.value.code == "uv_failed"
    assert "nothing" in str(caught.value.detail)


def test_an_unreachable_index_is_a_network_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    run_uv(["venv", "--quiet", "--no-project", str(venv)], doing="creating the virtual environment")
    command = [
        "pip",
        "install",
        "--python",
        str(venv / "bin" / "python"),
        "--default-index",
        "http://127.0.0.1:9/simple",
    ]
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable, match="a package index did not respond"):
        run_uv([*command, "nothing-of-the-kind"], doing="installing")
