"""Each distribution declares what it imports, agrees on versions, and builds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMPORT_NAMES = {
    "wander": "wander-sdk",
    "wander_client": "wander-client",
    "wander_compat": "wander-compat",
    "wander_hub": "wander-hub",
    "wander_integrations": "wander-integrations",
    "wander_ray": "wander-ray",
}
OURS = set(IMPORT_NAMES.values())
PINNED_BY = {
    "httpx": "openai",
    "jinja2": "transformers",
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
}
"""What comes with a distribution as part of its interface, at a version that it alone may choose."""
UNLOCKED = {"ray", "vllm", "reasoning-gym", "textarena", "nltk", "inspect-ai", "openenv"}
"""What only an extra outside the lock asks for (`scripts/set_up.py`), and Ray, which set-up leaves out."""
NAMED_FOR_TYPE_CHECKERS = ("sdk", "wander_client")
"""What the SDK finds through an entry point, and imports for type checkers alone."""
USED_WHEN_THERE = {"uv", "bitsandbytes"}
"""Imported only if it is installed; otherwise another way works, or an error says what to install."""

BESIDE_PROGRAM = {"supervisor_files"}
"""Module next to a program that is started by its path, without its package."""

PROBED = {"harbor"}
"""Imported only by a program that runs in a virtual environment made for this package."""


def declared(member) -> set[str]:
    project = member.pyproject["project"]
    rows = [*project["dependencies"]]
    for extra in project.get("optional-dependencies", {}).values():
        rows += extra
    return {canonicalize_name(Requirement(row).name) for row in rows}


def third_party(source) -> set[str]:
    """Top-level names that a file imports, the standard library aside."""
    names: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


def test_every_third_party_import_is_declared(sources, members, root):
    providers = packages_distributions()
    missing = []
    for member in members:
        folder = member.folder.relative_to(root).as_posix()
        own = {Path(package).stem for package in member.packages()}
        for source in sources:
            if not source.path.startswith(f"{folder}/") or source.is_test:
                continue
            for name in third_party(source) - own - USED_WHEN_THERE - BESIDE_PROGRAM:
                if (folder, name) == NAMED_FOR_TYPE_CHECKERS:
                    continue
                dists = {
                    canonicalize_name(dist) for dist in providers.get(name, [IMPORT_NAMES.get(name, name)])
                }
                if not (dists | {PINNED_BY.get(dist) for dist in dists}) & declared(member):
                    missing.append(f"{source.path} imports {name}; declare {sorted(dists)} in {folder}")
    assert missing == [], "\n".join(missing)


def test_every_third_party_import_of_tests_and_tools_is_declared(sources, members, root):
    workspace = tomllib.loads((root / "pyproject.toml").read_text())
    known = {canonicalize_name(Requirement(row).name) for row in workspace["dependency-groups"]["dev"]}
    for member in members:
        known |= declared(member) | {canonicalize_name(member.name)}
    providers = packages_distributions()
    modules = {Path(source.path).stem for source in sources}
    missing = []
    for source in sources:
        if source.path.split("/")[0] in ("tests", "scripts") or source.is_test:
            for name in third_party(source) - modules - set(IMPORT_NAMES) - PROBED:
                dists = {canonicalize_name(dist) for dist in providers.get(name, [name])}
                if not (dists | {PINNED_BY.get(dist) for dist in dists}) & known:
                    missing.append(f"{source.path} imports {name}; add it to the dev group")
    assert missing == [], "\n".join(missing)


def test_versions_agree(members):
    versions = {m.name: m.pyproject["project"]["version"] for m in members if m.name in OURS}
    assert set(versions) == OURS
    assert len(set(versions.values())) == 1
    version = versions["wander-sdk"]
    for member in members:
        for row in map(Requirement, member.pyproject["project"]["dependencies"]):
            if row.name in OURS and not member.is_environment:
                assert str(row.specifier) == f"=={version}", f"{member.name}: pin {row.name}"


def test_environments_depend_only_on_the_sdk_and_integrations(members):
    environments = [member for member in members if member.is_environment]
    assert {member.folder.name for member in environments} >= {"reverse_text", "tictactoe"}
    for member in environments:
        assert declared(member) & OURS - {"wander-integrations"} == {"wander-sdk"}, member.name
        assert member.pyproject["project"]["entry-points"]["wander.environments"]


def test_every_distribution_states_license_and_python(members):
    for member in members:
        project = member.pyproject["project"]
        assert project["license"] == "Apache-2.0", member.name
        assert project["requires-python"] == ">=3.11", member.name
        assert (member.folder / project["readme"]).is_file()
        assert project["description"]


def test_every_declared_distribution_is_locked(members, root):
    locked = {
        canonicalize_name(match[1])
        for match in re.finditer(
            r"^([A-Za-z0-9._-]+)==", (root / "constraints.txt").read_text(), re.MULTILINE
        )
    }
    ours = {canonicalize_name(member.name) for member in members}
    for member in members:
        assert declared(member) - ours - locked - UNLOCKED == set(), f"run `make lock` ({member.name})"
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    assert set(groups) == {"dev"}
    for name, rows in groups.items():
        unlocked = {canonicalize_name(Requirement(row).name) for row in rows} - locked
        assert unlocked == set(), f"run `make lock` ({name})"


@pytest.mark.parametrize(
    "pattern",
    [
        *("sdk", "client", "hub", "compat", "compat/shim", "plugins/*", "environments/tictactoe"),
        pytest.param("environments/*", marks=pytest.mark.full),
    ],
)
def test_every_wheel_contains_only_its_package(pattern, members, root, tmp_path):
    chosen = [member for member in members if member.folder.relative_to(root).match(pattern)]
    assert chosen
    for member in chosen:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
        done = subprocess.run([*command, str(member.folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        wheel = next(tmp_path.glob(f"{member.name.replace('-', '_')}-*.whl"))
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        assert tops == {Path(package).name for package in member.packages()}, member.name
        assert not [name for name in names if "tests/" in name or name.endswith(".pyc")]
