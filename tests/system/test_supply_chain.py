"""Real pip and uv between a hub and a hostile index, which has a higher version of every name of ours.

The hostile index is what the machines are set to, and what stands behind the hub: whatever the hub leaves to
others comes from there. Whoever imports or builds one of its packages leaves a file behind.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from live_hub import LiveHub, live_hub, make_token, run_hub
from machine import Machine
from package_shop import PackageShop, package_shop

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    "wander-sdk",
    "wander-client",
    "wander-compat",
    "wander-integrations",
    "wander-ray",
    "verifiers",
    "hop",
    "base-env",
    "deep-env",
    "next-number",
)
HOSTILE = 'raise SystemExit("taken over")\n'
BASE = "def score(said: str, wanted: str) -> float:\n    return float(said == wanted)\n"
ENVIRONMENT = """
from base_env import score
from wander import SingleTurnEnv, Rubric


def right(completion, answer: str) -> float:
    return score(completion[-1]["content"], answer)


def load_environment() -> SingleTurnEnv:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(4)]
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=Rubric([right]), summary="Say a number.")
"""


@pytest.fixture(scope="module")
def hostile(mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageShop]:
    with package_shop(tmp_path_factory.mktemp("hostile"), mirror) as running:
        for name in OURS:
            running.release(name, "99.0", HOSTILE)
        yield running


@pytest.fixture(scope="module")
def shared_hub(hostile: PackageShop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    with live_hub(tmp_path_factory.mktemp("hub"), WANDER_HUB_UPSTREAM_INDEX=hostile.url) as running:
        yield running


@pytest.fixture(scope="module")
def new_machine(shared_hub: LiveHub, hostile: PackageShop, tmp_path_factory: pytest.TempPathFactory) -> Any:
    cache = tmp_path_factory.mktemp("uv-cache")

    def make(name: str, **extra: str) -> Machine:
        home = tmp_path_factory.mktemp(name)
        return Machine(home, shared_hub, hostile.url, {"UV_CACHE_DIR": str(cache), **extra})

    return make


def publish(machine: Machine, name: str, version: str, requires: str, module: str, *options: str) -> None:
    folder = machine.home / f"{name}-{version}"
    folder.mkdir()
    stem = name.replace("-", "_")
    (folder / f"{stem}.py").write_text(module)
    (folder / "README.md").write_text(f"# {name}\n")
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "{version}"\nreadme = "README.md"\nlicense = "MIT"\n'
        f'description = "Say a number."\nrequires-python = ">=3.11"\ndependencies = {requires}\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project.entry-points."wander.environments"]\n{name} = "{stem}:load_environment"\n'
    )
    machine.wander("publish", folder, "--no-check", *options)


@pytest.fixture(scope="module")
def published(new_machine: Any) -> Machine:
    """`hop` needs `base-env`, and that needs `deep-env`: the hub has all of them, in version 1.0."""
    machine = new_machine("publisher")
    loads = BASE + "\n\ndef load_environment():\n    return None\n"
    publish(machine, "deep-env", "1.0", '["wander-sdk"]', loads)
    publish(machine, "base-env", "1.0", '["wander-sdk", "deep-env"]', loads)
    publish(machine, "hop", "1.0", '["wander-sdk", "base-env"]', ENVIRONMENT, "--no-lock")
    keep = ("--keep-host", urlsplit(machine.mirror).netloc)  # nothing here reaches PyPI's files
    publish(machine, "hop", "1.1", '["wander-sdk", "base-env"]', ENVIRONMENT, *keep)
    publish(machine, "next-number", "1.0", '["wander-sdk", "base-env"]', ENVIRONMENT, *keep)
    return machine


def versions_in(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json; "
    code += "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return {name.lower().replace("_", "-"): version for name, version in json.loads(done.stdout).items()}


def assert_ours(python: Path, *names: str) -> None:
    found = versions_in(python)
    assert "99.0" not in {found.get(name) for name in OURS}, found
    assert set(names) <= set(found), found


# the printed commands

INSTALLS = re.compile(
    r"(?:pip install|pip download|uv pip install|uv pip sync|uv tool install|uv add|uvx) [^\n`\"<#]*"
)


def written_commands() -> list[tuple[str, str]]:
    """Return each command of docs, READMEs, templates and sources that installs something, with its file."""
    places = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    for room in ("sdk/wander", "client/wander_client", "compat/wander_compat", "hub/wander_hub", "plugins"):
        places += [
            each for each in (ROOT / room).rglob("*") if each.suffix in (".py", ".txt", ".html", ".md")
        ]
    found = []
    for place in sorted(places):
        text = place.read_text().replace("\\\n", " ")
        found += [(str(place.relative_to(ROOT)), each.strip()) for each in INSTALLS.findall(text)]
    return found


def shown_commands(hub: LiveHub) -> list[str]:
    """Return every command that the hub's pages print."""
    found = []
    for path in ("/", "/admin/hop", "/admin/next-number", "/wander/wander-client"):
        page = httpx.get(hub.url + path, headers={"Accept": "text/html"}, timeout=30)
        if page.status_code == 200:
            found += [each.strip() for each in INSTALLS.findall(page.text.replace("\\\n", " "))]
    return found


def is_bound(command: str) -> bool:
    """Tell whether a command names one index alone, or exact files."""
    return bool(re.search(r" --(?:index-url|default-index) \S+| (?:sync|-r) http", command))


def test_documented_commands_use_one_index_for_our_names():
    commands = written_commands()
    assert len(commands) > 15, commands
    for place, command in commands:
        assert "--extra-index-url" not in command, (place, command)
        names = re.findall(
            r"(?<![\w./-])(wander-\w+|next-number|reverse-text)(\[\w+\])?(?=[\s'=]|$)", command
        )
        for name, extra in names:
            # An extra of what is installed already stays with what is installed (below).
            assert is_bound(command) or extra, f"{place}: `{command}` takes `{name}` from anywhere"


def bound_commands(hub: LiveHub) -> set[str]:
    """Return every bound command, pages' and files', as it reads for this hub."""
    found = set(shown_commands(hub))
    assert len(found) >= 4, found
    for _, command in written_commands():
        if is_bound(command):
            text = re.sub(r"https?://[\w.:]+(?=/)|\bHUB\b|\{\{ base_url \}\}", hub.url, command)
            text = text.replace("@index@", f"{hub.url}/admin/index/").replace("/alice/", "/admin/")
            text = text.replace("{{ one.owner }}", "admin").replace("reverse-text", "next-number")
            text = text.replace("{{ one.name }}=={{ view.version.version }}", "next-number==1.0")
            text = re.sub(
                r"environments/acme/wordle/versions/0.1.0",
                "environments/admin/next-number/versions/1.0",
                text,
            )
            if "wander-ray" not in text:  # Ray and Gymnasium are too large for the tests' index
                found.add(text.replace("[gymnasium]", ""))
    return {each for each in found if "{" not in each}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_printed_commands_install_packages_of_the_hub(new_machine, published, shared_hub):
    """A local project, of the adapters' README, needs `base-env` here."""
    machine = new_machine("commands")
    (machine.home / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "1"\ndependencies = ["base-env"]\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["pyproject.toml"]\n'
    )
    commands = bound_commands(shared_hub)
    assert len(commands) >= 6, commands
    for number, command in enumerate(sorted(commands)):
        python = machine.fresh_venv(f"venv-{number}")
        tool, *words = shlex.split(command)
        needs = ["base-env"] if "next-number" in command or command.endswith(" .") else []
        if words[0] == "download":
            done = machine.run("pip", *words)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert list(machine.home.glob("wander_sdk-*.whl"))
            assert not list(machine.home.glob("*-99.0-*"))
        elif tool == "pip":
            options = ("--dry-run", "--quiet", "--report", "-")
            done = machine.run("pip", "--python", python, words[0], *options, *words[1:])
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            rows = json.loads(done.stdout)["install"]
            found = {each["metadata"]["name"]: each["download_info"]["url"] for each in rows}
            assert set(needs) <= set(found), found
            assert all(found[name].startswith(shared_hub.url) for name in OURS if name in found), found
        else:
            done = machine.run("uv", words[0], words[1], "--python", python, *words[2:])
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            assert_ours(python, *needs)


@pytest.mark.full
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installing_an_extra_uses_no_other_index(new_machine, shared_hub, tool):
    machine = new_machine(f"extra-{tool}")
    python = machine.fresh_venv("venv")
    one = ("--index-url" if tool == "pip" else "--default-index", f"{shared_hub.url}/wander/index/")
    start = ("--python", python, "install") if tool == "pip" else ("pip", "install", "--python", python)
    assert machine.run(tool, *start, *one, "wander-sdk").returncode == 0
    done = machine.run(tool, *start, "--no-deps", "wander-sdk[plots]")
    assert done.returncode == 0, done.stderr
    assert_ours(python, "wander-sdk")


def test_the_hub_warns_about_two_indexes(new_machine, published, shared_hub):
    """pip takes the highest version of all its indexes: why no command of ours gives it two."""
    machine = new_machine("two")
    words = (
        "install",
        "--dry-run",
        "--quiet",
        "--report",
        "-",
        "--extra-index-url",
        f"{shared_hub.url}/admin/simple/",
    )
    python = machine.fresh_venv("venv")
    done = machine.run("pip", "--python", python, *words, "base-env")
    assert done.returncode == 0, done.stderr
    found = {
        each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]
    }
    assert found["base-env"] == "99.0"


# `wander install`


def test_packages_of_the_owner_come_from_the_hub_without_a_lock(new_machine, published, shared_hub):
    machine = new_machine("unlocked")
    (installed,) = machine.wander("install", "admin/hop@1.0")
    origins = installed["origins"]
    assert origins["base-env"] == origins["deep-env"] == f"{shared_hub.url}/admin/simple/"
    assert origins["wander-sdk"] == f"{shared_hub.url}/wander/simple/"
    assert_ours(next(machine.home.glob("data/virtualenvs/*/bin/python")), "hop", "base-env", "deep-env")
    lock = next(machine.home.glob("data/environments/*/admin/hop/*/pylock.toml")).read_text()
    rest = lock.replace(shared_hub.url, "").replace(machine.mirror, "")
    assert "127.0.0.1:" not in rest, "no address is kept that nobody answers at afterwards"


@pytest.mark.full
def test_packages_of_the_owner_come_from_the_hub_with_a_lock(new_machine, published, shared_hub):
    machine = new_machine("locked")
    (installed,) = machine.wander("install", "admin/hop@1.1")
    assert installed["lock_sha256"]
    assert installed["origins"]["base-env"] == f"{shared_hub.url}/admin/simple/"
    assert installed["origins"]["pydantic"] == machine.mirror.removesuffix("/simple")
    assert_ours(next(machine.home.glob("data/virtualenvs/*/bin/python")), "hop", "base-env", "deep-env")
    done = machine.run("wander", "install", "admin/hop@1.1", "--force")
    assert f"from {shared_hub.url}/admin/simple/: base-env, deep-env, hop" in done.stdout, done.stdout


@pytest.mark.full
@pytest.mark.parametrize("kind", ["default", "extra"])
def test_a_version_missing_on_the_hub_is_not_installed_from_elsewhere(new_machine, published, hostile, kind):
    """Also where pip's settings name two indexes, which uv would search for the version one by one."""
    spot = published.home / f"built-{kind}"
    page = hostile.folder / "simple" / "base-env"
    setup = f'open({str(spot)!r}, "w").close()\n'
    setup += 'from setuptools import setup\nsetup(name="base-env", version="98")\n'
    with tarfile.open(page / "base_env-98.tar.gz", "w:gz") as archive:
        for name, text in (
            ("setup.py", setup),
            ("PKG-INFO", "Metadata-Version: 1.0\nName: base-env\nVersion: 98\n"),
        ):
            info = tarfile.TarInfo(f"base_env-98/{name}")
            info.size = len(text)
            archive.addfile(info, BytesIO(text.encode()))
    (page / "index.html").write_text(
        '<a href="base_env-98.tar.gz">base_env-98.tar.gz</a>'
        '<a href="base_env-99.0-py3-none-any.whl">base_env-99.0-py3-none-any.whl</a>'
    )
    number = "2.0" if kind == "default" else "2.1"
    publish(published, "hop", number, '["wander-sdk", "base-env>=2"]', ENVIRONMENT, "--no-lock")
    machine = new_machine(f"lacking-{kind}")
    extra = machine.environment
    if kind == "extra":
        del extra["UV_DEFAULT_INDEX"]
        extra["PIP_EXTRA_INDEX_URL"] = hostile.url
    said = machine.refused(1, "install", f"admin/hop@{number}", env=extra)
    assert "base-env" in said
    assert ("but the hub has a package with this name" in said) == (kind == "extra"), said
    assert not spot.exists(), "nothing hostile was built"
    assert not list(machine.home.glob("data/virtualenvs/*/bin/python"))


@pytest.mark.full
def test_a_private_dependency_comes_from_the_hub_or_not_at_all(new_machine, shared_hub, hostile):
    """A stranger does not get the hostile package of that name, nor learns whether the hub has it."""
    run_hub(shared_hub.data, "user", "add", "vault")
    member = new_machine("member", WANDER_TOKEN=make_token(shared_hub.data, "vault"))
    hostile.release("closed-base", "99.0", HOSTILE)
    loads = BASE + "\n\ndef load_environment():\n    return None\n"
    publish(member, "closed-base", "1.0", '["wander-sdk"]', loads, "--private")
    module = ENVIRONMENT.replace("base_env", "closed_base")
    publish(member, "open-hop", "1.0", '["wander-sdk", "closed-base"]', module, "--no-lock")
    (installed,) = member.wander("install", "vault/open-hop")
    assert installed["origins"]["closed-base"] == f"{shared_hub.url}/vault/simple/"
    stranger = new_machine("stranger", WANDER_TOKEN=make_token(shared_hub.data, "admin"))
    environment = {**stranger.environment}
    del environment["WANDER_TOKEN"]
    said = stranger.refused(4, "install", "vault/open-hop", env=environment)
    assert "token" in said
    for path in ("closed-base", "no-such-name"):
        assert httpx.get(f"{shared_hub.url}/vault/index/{path}/", timeout=30).status_code == 401
