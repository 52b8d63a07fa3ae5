"""Every common client publishes to a running hub and installs from it; each upload twice, then other bytes.

twine, uv and pip are installed here. poetry, pdm and hatch get fresh virtual environments from the package
index that pip is configured for, which takes minutes: `pytest -m slow tests/system/test_package_clients.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from live_hub import BIN, make_token, run_hub

pytestmark = pytest.mark.full

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
description = "Says the same."
readme = "README.md"
requires-python = ">=3.11"

[project.entry-points."wander.environments"]
{name} = "{module}:load_environment"
"""
MODULE = '"""Says the same."""\n\n\ndef load_environment(**arguments):\n    return arguments\n'


@dataclass
class Package:
    """A source tree, and what was built from it."""

    folder: Path
    name: str

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in (self.folder / "dist").iterdir() if path.suffix in (".whl", ".gz"))

    def build(self, readme: str = "# The same\n", version: str = "0.1.0") -> list[Path]:
        """Build wheel and source archive; another readme makes other bytes."""
        module = self.name.replace("-", "_")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "pyproject.toml").write_text(
            PROJECT.format(name=self.name, module=module, version=version)
        )
        (self.folder / "README.md").write_text(readme)
        (self.folder / f"{module}.py").write_text(MODULE)
        for old in (self.folder / "dist").glob("*"):
            old.unlink()
        subprocess.run([BIN / "hatchling", "build"], cwd=self.folder, check=True, capture_output=True)
        return self.files


@dataclass
class Uploader:
    """How a tool is called, and what it does with a version that is there with other bytes."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    requirements: tuple[str, ...] = ()
    """What to install beside the tool itself."""
    refusal: str = "already exists"
    """What it shows of the answer to other bytes."""
    sends: bool = True
    """False for hatch: it finds the name on the index and sends nothing."""

    def run(self, program: Path, package: Package, url: str, token: str) -> subprocess.CompletedProcess[str]:
        known = {"url": url, "token": token}
        arguments = [one.format(**known) for one in self.arguments]
        if "FILES" in arguments:
            arguments = [one for one in arguments if one != "FILES"] + [str(one) for one in package.files]
        home = package.folder.parent / "home"
        home.mkdir(exist_ok=True)
        environment = {key: value.format(**known) for key, value in self.environment.items()}
        return subprocess.run(
            [program, *arguments],
            cwd=package.folder,
            env=os.environ | {"HOME": str(home), "NO_COLOR": "1", "COLUMNS": "1000"} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )


LOGIN = ("--username", "__token__", "--password", "{token}")
QUIETLY = ("--non-interactive", "--verbose", "--disable-progress-bar")
ANYBODY = ("--username", "alice@example.org", "--password", "{token}")
TWINE = Uploader("twine", ("upload", *QUIETLY, "--repository-url", "{url}", *ANYBODY, "FILES"), {})
UV = Uploader("uv", ("publish", "--publish-url", "{url}", "--token", "{token}", "FILES"), {})
SLASHLESS = Uploader("uv", ("publish", "--publish-url", "{url}", "FILES"), {"UV_PUBLISH_TOKEN": "{token}"})
POETRY = Uploader(
    "poetry",
    ("publish", "--no-interaction", "--repository", "hub"),
    {
        "POETRY_REPOSITORIES_HUB_URL": "{url}",
        "POETRY_HTTP_BASIC_HUB_USERNAME": "__token__",
        "POETRY_HTTP_BASIC_HUB_PASSWORD": "{token}",
    },
)
PDM = Uploader(
    "pdm",
    ("publish", "--no-build", "--repository", "{url}", *LOGIN),
    {},
    requirements=("hishel<2", "unearth<0.19"),  # pdm 2.29 does not bound them, and fails with newer ones
    refusal="409 Conflict",  # it does not read the body
)
HATCH = Uploader(
    "hatch",
    ("publish", "--no-prompt", "--repo", "{url}", "--user", "__token__", "--auth", "{token}"),
    {},
    sends=False,
)


def publishes_twice_and_refuses_other_bytes(uploader: Uploader, program: Path, package: Package, hub) -> None:
    url = f"{hub.url}/admin/legacy{'' if uploader is SLASHLESS else '/'}"
    package.build()
    first = uploader.run(program, package, url, hub.token)
    assert first.returncode == 0, first.stdout + first.stderr
    offered = hub.get(f"/api/v1/environments/admin/{package.name}").json()["latest"]["files"]
    assert sorted(one["filename"] for one in offered) == [one.name for one in package.files]
    again = uploader.run(program, package, url, hub.token)
    assert again.returncode == 0, f"the same bytes again\n{again.stdout}{again.stderr}"
    package.build(readme="# Something else\n")
    other = uploader.run(program, package, url, hub.token)
    said = other.stdout + other.stderr
    assert hub.token not in said
    assert bool(other.returncode) == uploader.sends, said
    assert uploader.refusal in said.replace("\n", " "), said
    assert hub.get(f"/api/v1/environments/admin/{package.name}").json()["latest"]["files"] == offered


@pytest.mark.parametrize("uploader", [TWINE, UV, SLASHLESS], ids=["twine", "uv", "slashless"])
def test_upload_clients_publish_skip_and_report_errors(uploader, hub, tmp_path, request):
    package = Package(tmp_path / "package", f"kept-{request.node.callspec.id}")
    publishes_twice_and_refuses_other_bytes(uploader, BIN / uploader.name, package, hub)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("uploader", [POETRY, PDM, HATCH, TWINE, UV], ids=lambda one: one.name)
def test_upload_clients_work_in_a_new_virtualenv(uploader, hub, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    program = tmp_path / "venv" / "bin" / uploader.name
    install = [program.with_name("pip"), "install", "--quiet", uploader.name, *uploader.requirements]
    subprocess.run(install, check=True)
    package = Package(tmp_path / "package", f"fresh-{uploader.name}")
    publishes_twice_and_refuses_other_bytes(uploader, program, package, hub)


def test_attestations_are_uploaded(hub, tmp_path):
    package = Package(tmp_path / "package", "attested")
    for file in package.build():
        file.with_name(f"{file.name}.publish.attestation").write_text(json.dumps({"version": 1}))
    done = UV.run(BIN / "uv", package, f"{hub.url}/admin/legacy/", hub.token)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def published(hub, tmp_path_factory) -> Package:
    """A public package in two versions."""
    package = Package(tmp_path_factory.mktemp("published") / "package", "two-versions")
    for version in ("0.1.0", "0.2.0"):
        package.build(version=version)
        done = UV.run(BIN / "uv", package, f"{hub.url}/admin/legacy/", hub.token)
        assert done.returncode == 0, done.stderr
    return package


def index_of(hub, owner: str = "admin", login: str = "") -> str:
    return f"{hub.url.replace('http://', f'http://{login}')}/{owner}/simple/"


def compiled(machine, hub, wanted: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Let uv resolve requirements against the owner's index alone."""
    requirements = machine.home / "requirements.in"
    requirements.write_text(wanted)
    fixed = ("--no-header", "--no-annotate", "--default-index", index_of(hub))
    return machine.run("uv", "pip", "compile", *fixed, *options, requirements)


def version_in(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('two-versions'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_pip_and_uv_install_with_hashes(machine, hub, published):
    index = index_of(hub)
    done = compiled(
        machine, hub, "two-versions", "--generate-hashes", "--output-file", machine.home / "locked.txt"
    )
    assert done.returncode == 0, done.stderr
    locked = machine.home / "locked.txt"
    assert "--hash=sha256:" in locked.read_text()
    for name, words in (
        ("pip", ("install", "--quiet", "--require-hashes", "--index-url", index, "-r", locked)),
        ("uv", ("pip", "install", "--require-hashes", "--default-index", index, "-r", locked)),
    ):
        python = machine.fresh_venv(f"{name}-hashes")
        where = ("--python", python)
        command = (*where, *words) if name == "pip" else (*words, *where)
        done = machine.run(name, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert version_in(python) == "0.2.0"


def test_upload_dates_limit_the_resolver(machine, hub, published):
    """`exclude-newer` drops every file whose page does not say when it came."""
    index = index_of(hub)
    bounds = {
        "future": (datetime.now(UTC) + timedelta(days=1), 0),
        "past": (datetime(2020, 1, 1, tzinfo=UTC), 1),
    }
    for moment, status in bounds.values():
        day = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        done = compiled(machine, hub, "two-versions", "--exclude-newer", day)
        assert done.returncode == status, done.stdout + done.stderr
        python = machine.fresh_venv(f"until-{moment.year}")
        words = ("install", "--quiet", "--dry-run", "--index-url", index, "--uploaded-prior-to", day)
        done = machine.run("pip", "--python", python, *words, "two-versions")
        assert bool(done.returncode) == bool(status), done.stdout + done.stderr


def test_pip_and_uv_lock(machine, hub, published):
    project = machine.home / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "user"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["two-versions<0.2"]\n'
    )
    done = machine.run("uv", "lock", "--default-index", index_of(hub), cwd=project)
    assert done.returncode == 0, done.stderr
    lock = (project / "uv.lock").read_text()
    assert f"{hub.url}/admin/files/two-versions/two_versions-0.1.0-py3-none-any.whl" in lock
    assert "upload-time" in lock
    words = ("lock", "--quiet", "--index-url", index_of(hub), "--output", project / "pylock.toml")
    done = machine.run("pip", *words, "two-versions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two_versions-0.2.0" in (project / "pylock.toml").read_text()


def test_a_yanked_version_is_skipped_unless_pinned(machine, hub, published, tmp_path):
    package = Package(tmp_path / "package", "regretted")
    for version in ("1.0", "2.0"):
        package.build(version=version)
        done = UV.run(BIN / "uv", package, f"{hub.url}/admin/legacy/", hub.token)
        assert done.returncode == 0, done.stderr
    path = f"{hub.url}/api/v1/environments/admin/regretted/versions/2.0/yank"
    body, auth = {"reason": "wrong rewards"}, {"Authorization": f"Bearer {hub.token}"}
    assert httpx.put(path, json=body, headers=auth, timeout=30).is_success
    assert "regretted==1.0" in compiled(machine, hub, "regretted").stdout
    pinned = compiled(machine, hub, "regretted==2.0")
    assert "regretted==2.0" in pinned.stdout
    assert "wrong rewards" in pinned.stderr


def test_a_private_package_requires_a_token(machine, hub, tmp_path):
    run_hub(hub.data, "user", "add", "vault")
    token = make_token(hub.data, "vault")
    package = Package(tmp_path / "package", "two-versions")
    package.build()
    done = UV.run(BIN / "uv", package, f"{hub.url}/vault/legacy/", token)
    assert done.returncode == 0, done.stderr
    path = f"{hub.url}/api/v1/environments/vault/two-versions/visibility"
    auth = {"Authorization": f"Bearer {token}"}
    assert httpx.put(path, json={"private": True}, headers=auth, timeout=30).is_success
    for name in ("pip", "uv"):
        for login, well in (("", False), (f"company:{token}@", True)):
            python = machine.fresh_venv(f"{name}-{well}")
            index = ("--index-url" if name == "pip" else "--default-index", index_of(hub, "vault", login))
            install = ("install", "--quiet", *index, "two-versions")
            where = ("--python", python)
            words = (*where, *install) if name == "pip" else ("pip", *install, *where)
            done = machine.run(name, *words)
            said = done.stdout + done.stderr
            assert (done.returncode == 0) == well, said
            assert token not in said
            if well:
                assert version_in(python) == "0.1.0"


def test_the_combined_index_serves_names_in_the_namespace_of_their_owner(machine, hub, tmp_path):
    package = Package(tmp_path / "package", "admin-two-versions")
    package.build()
    assert UV.run(BIN / "uv", package, f"{hub.url}/admin/legacy/", hub.token).returncode == 0
    # An entry for another service of the host must not hide what is public.
    netrc = machine.home / ".netrc"
    netrc.write_text("machine 127.0.0.1 login company password hunter2\n")
    netrc.chmod(0o600)
    for name in ("pip", "uv"):
        python = machine.fresh_venv(f"{name}-combined")
        where, index = ("--python", python), f"{hub.url}/simple/"
        words = ("install", "--quiet", "--index-url" if name == "pip" else "--default-index", index)
        words = (*words, "admin-two-versions")
        done = machine.run(name, *((*where, *words) if name == "pip" else ("pip", *words, *where)))
        assert done.returncode == 0, done.stdout + done.stderr
