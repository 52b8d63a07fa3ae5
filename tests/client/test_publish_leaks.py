"""Publishing refuses secrets: keys, tokens, credentials, runs, caches, links, and what git ignores."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import HubRoom, Wander
from wander_client.errors import ClientError
from wander_client.packages.building.leaks import find_by_name, find_in_content, require_no_leaks
from wander_client.packages.scaffold import write_package


def pack(folder: Path, *, wheel: Mapping[str, bytes], sdist: Mapping[str, bytes]) -> tuple[Path, Path]:
    """Write the two archives of a package beside its folder."""
    built = folder.parent / "built"
    built.mkdir(exist_ok=True)
    with zipfile.ZipFile(built / "x.whl", "w") as zipped:
        for name, content in wheel.items():
            zipped.writestr(name, content)
    with tarfile.open(built / "x.tar.gz", "w:gz") as archive:
        for name, content in sdist.items():
            member = tarfile.TarInfo(f"x-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return built / "x.whl", built / "x.tar.gz"


def refused(folder: Path, files: Mapping[str, bytes], *allowed: str, **values: str) -> list[str]:
    """Return the lines of a refusal to publish files, from either archive; none if they may be."""
    found: list[list[str]] = []
    for parts in ({"wheel": files, "sdist": {}}, {"wheel": {}, "sdist": files}):
        try:
            require_no_leaks(folder, *pack(folder, **parts), allowed=allowed, values=values)
        except ClientError as error:
            found.append([error.code, *sorted((error.detail or "").splitlines())])
        else:
            found.append(["secret_found"])
    assert found[0] == found[1]
    assert found[0][0] == "secret_found"
    return found[0][1:]


def joined(*parts: str) -> bytes:
    """Return a secret that does not stand whole in this file, where a scanner would find it."""
    return "".join(parts).encode()


NAMES = [
    ".env",
    "env/.env.local",
    "prod.env",
    ".ENV",
    "keys/server.pem",
    "server.key",
    "id_rsa",
    "id_ed25519.bak",
    "cert.p12",
    ".netrc",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    "credentials.json",
    "my_credentials.yaml",
    "client_secret_1.json",
    "secrets.toml",
    "token",
    "hf_token.txt",
    "api_key.txt",
    "openai-api-key",
    "terraform.tfstate",
    ".bash_history",
    "Kubeconfig",
    "runs/a/run.json",
    "my_env/runs/a.txt",
    "my_env/__pycache__/a.cpython-311.pyc",
    "a.pyc",
    ".git/config",
    ".venv/bin/python",
    ".aws/config",
    ".ssh/config",
    "node_modules/a.js",
    ".pytest_cache/README.md",
    "wandb/run-1/files/x.json",
    "wander-hub-data/objects/a",
    "hub.db",
    "hub.db-wal",
    "hub.lock",
]


@pytest.mark.parametrize("name", NAMES)
def test_files_with_secret_names_are_rejected(name: str, tmp_path: Path) -> None:
    (line,) = refused(tmp_path, {"my_env/__init__.py": b"", name: b"x"})
    assert line.startswith(f"{name}: ")


ORDINARY = [
    "my_env/__init__.py",
    "README.md",
    "pyproject.toml",
    ".gitignore",
    ".env.example",
    "tests/test_a.py",
    "PKG-INFO",
    "id_rsa.pub",
    "my_env/tokens.py",
    "my_env/secrets.py",
    "my_env/credentials.py",
    "my_env/data/keys.json",
    "my_env/tokenizer.json",
    "my_env/data/environment.json",
    "my_env/runs.py",
    "my_env/parse_token.py",
    "my_env/monkey.txt",
    "my_env/run.json",
    "my_env/data/secret_santa.csv",
    "reference/expert/rollouts.jsonl",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_are_published(name: str, tmp_path: Path) -> None:
    assert refused(tmp_path, {name: b"print('x')"}) == []


CONTENTS = {
    "a private key": joined("-----BEGIN OPENSSH ", "PRIVATE KEY-----\nabc"),
    "a PGP key": joined("-----BEGIN PGP ", "PRIVATE KEY BLOCK-----"),
    "an RSA key": joined("key = '''-----BEGIN RSA ", "PRIVATE KEY-----"),
    "wander": joined("token: wn", "d_", "a" * 46),
    "AWS": joined("AK", "IA", "A" * 16),
    "GitHub": joined("gh", "p_", "a" * 36),
    "OpenAI": joined('"sk', "-proj-", "a" * 40, '"'),
    "an older one of OpenAI": joined("OPENAI_API_KEY=sk", "-", "a" * 48),
    "Anthropic": joined("sk", "-ant-api03-", "a" * 90),
    "Hugging Face": joined("h", "f_", "a" * 34),
    "Slack": joined("xo", "xb-1234567890-", "a" * 20),
    "Google": joined("AI", "za", "a" * 35),
    "PyPI": joined("py", "pi-AgE", "a" * 60),
}


@pytest.mark.parametrize("what", CONTENTS)
@pytest.mark.parametrize("before", [0, (1 << 20) - 7])
def test_files_with_secret_content_are_rejected(what: str, before: int, tmp_path: Path) -> None:
    (line,) = refused(tmp_path, {"my_env/data.txt": b" " * before + CONTENTS[what]})
    assert line.startswith("my_env/data.txt: it contains a")
    assert CONTENTS[what].decode() not in line


@pytest.mark.parametrize(
    "content",
    [
        b"sk-learn",
        b"a disk-" + b"a" * 60,
        b"ghp_short",
        b"hf_transfer",
        b"-----BEGIN PUBLIC KEY-----",
        b"\x00" * 99,
    ],
)
def test_text_that_only_looks_similar_is_published(content: bytes) -> None:
    assert find_in_content(io.BytesIO(content), {}) is None


def test_secrets_of_this_machine_are_found_in_any_format(tmp_path: Path) -> None:
    files = {"a.txt": b"x" * 5000 + b"correct horse battery", "b.txt": b"correct horse"}
    lines = refused(tmp_path, files, **{"the value of MY_KEY": "correct horse battery"})
    assert lines == ["a.txt: it contains the value of MY_KEY"]


def test_files_that_the_user_allows_are_published(tmp_path: Path) -> None:
    files = {"tests/server.key": b"", "runs/a.txt": b"", "runs/b/c.txt": b"", "runs2/.env": b""}
    assert refused(tmp_path, files, "tests/server.key", "runs/", "runs2") == []
    assert len(refused(tmp_path, files, "server.key", "run")) == 4


@pytest.mark.parametrize("is_repository", [True, False])
def test_ignored_files_are_rejected(is_repository: bool, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    (folder / "src" / "my_env").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.db\nlocal/\n!kept.db\n")
    if is_repository:
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    names = ["a.db", "kept.db", "src/my_env/b.db", "src/my_env/c.txt", "local/d.txt", "my_env.egg-info/e.db"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    lines = refused(folder, dict.fromkeys(names, b"x"))
    assert lines == [f"{name}: git ignores it" for name in ("a.db", "local/d.txt", "src/my_env/b.db")]
    wheel, sdist = pack(folder, wheel={"my_env/b.db": b"", "made_by_the_build.db": b""}, sdist={})
    with pytest.raises(ClientError) as error:
        require_no_leaks(folder, wheel, sdist, allowed=(), values={})
    assert error.value.detail == "my_env/b.db: git ignores it"


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside.txt", "../../up"])
def test_files_behind_links_to_other_folders_are_rejected(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "env"
    folder.mkdir(parents=True)
    (folder / "inside.txt").write_text("x")
    (folder / "data.txt").symlink_to(target)
    (folder / "fine.txt").symlink_to("inside.txt")
    assert refused(folder, {"data.txt": b"x", "fine.txt": b"x", "inside.txt": b"x"}) == [
        "data.txt: it is outside the folder and included through a link"
    ]


def test_a_link_in_the_archive_is_rejected(tmp_path: Path) -> None:
    wheel, sdist = pack(tmp_path, wheel={}, sdist={})
    with tarfile.open(sdist, "w:gz") as archive:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE)):
            member = tarfile.TarInfo(f"x-1.0/link{number}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    with pytest.raises(ClientError) as error:
        require_no_leaks(tmp_path, wheel, sdist, allowed=(), values={})
    assert (error.value.detail or "").splitlines() == ["link0: it is a link", "link1: it is a link"]


def test_a_new_package_ignores_secret_files(tmp_path: Path) -> None:
    folder = tmp_path / "my-env"
    write_package(folder, "single-turn")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name in (
        ".env",
        ".env.local",
        "server.pem",
        "runs/a/run.json",
        ".pytest_cache/a",
        "wandb/a",
        "dist/a.whl",
    ):
        found = subprocess.run(["git", "-C", str(folder), "check-ignore", "-q", name], check=False)
        assert found.returncode == 0, name
    found = subprocess.run(["git", "-C", str(folder), "check-ignore", "-q", ".env.example"], check=False)
    assert found.returncode == 1
    assert find_by_name(".env.example") is None


def test_a_package_with_a_key_is_not_published(
    hub: HubRoom, home: Path, wander: Wander, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real build, whose backend takes all that lies there."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    (folder / "pyproject.toml").write_text(
        (folder / "pyproject.toml").read_text()
        + '[build-system]\nrequires = []\nbackend-path = ["."]\nbuild-backend = "backend"\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    (folder / ".env").write_text("OPENAI_API_KEY=x\n")
    for words in (["--dry-run"], []):
        said = hub.wander("publish", str(folder), "--no-check", "--no-lock", *words, "--json").json["error"]
        assert said["code"] == "secret_found"
        assert said["detail"].startswith(".env: ")
        assert "--allow-file .env" in said["hint"]
    words = ["publish", str(folder), "--no-check", "--no-lock", "--allow-file", ".env", "--dry-run", "--json"]
    shown = hub.wander(*words).data
    assert {".env", "say_env.py"} <= {each["path"] for each in shown["source_members"]}
    assert hub.http.get("/api/v1/environments").json()["data"] == []


BACKEND = '''
"""A build backend that packs everything."""
import os, tarfile, zipfile

def build_sdist(place, settings=None):
    name = "say_env-0.1.0"
    with tarfile.open(os.path.join(place, f"{name}.tar.gz"), "w:gz") as archive:
        for file in set(os.listdir(".")) - {"__pycache__"}:
            archive.add(file, f"{name}/{file}")
    return f"{name}.tar.gz"

def build_wheel(place, settings=None, metadata=None):
    name = "say_env-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(place, name), "w") as wheel:
        wheel.write("say_env.py")
        info = "say_env-0.1.0.dist-info"
        for file, text in {
            "METADATA": "Metadata-Version: 2.4\\nName: say-env\\nVersion: 0.1.0\\n",
            "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
            "entry_points.txt": "[wander.environments]\\nsay-env = say_env:load_environment\\n",
        }.items():
            wheel.writestr(f"{info}/{file}", text)
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''
