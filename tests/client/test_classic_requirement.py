"""What a package says about `verifiers` decides which one it gets."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from wander_client.errors import ClientError
from wander_client.packages import classic
from wander_client.packages.library_use import library_of, sources_of_wheel


@pytest.mark.parametrize(
    "wanted", ["", ">=0.1.3", "==0.1.5", ">=0.1.11.dev0", "~=0.2.0", "<0.2,>=0.1.9", "<1"]
)
def test_every_version_range_of_the_classic_api_gets_our_package(wanted):
    assert not classic.wants_later(SpecifierSet(wanted))


@pytest.mark.parametrize("wanted", [">=0.4", "==0.4.0", "~=0.4.1", ">0.3.1,!=0.4.0", "==0.4.*"])
def test_a_package_for_later_releases_keeps_the_upstream_library(wanted):
    assert classic.wants_later(SpecifierSet(wanted))


def test_the_override_keeps_the_extras_that_bring_imports(tmp_path):
    requirement = classic.requirement_of(["numpy>=2", "Verifiers[rg,all]==0.1.5 ; python_version>'3'"])
    line = classic.override(Path("/wheels/verifiers-1.whl"), requirement)
    assert line == "verifiers[rg] @ file:///wheels/verifiers-1.whl\n"
    assert classic.requirement_of(["verifiers-extras"]) is None
    assert classic.override(Path("/w.whl"), None) == "verifiers @ file:///w.whl\n"


def wheel(folder, **sources) -> Path:
    path = folder / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in sources.items():
            archive.writestr(f"x/{name}.py", text)
    return path


V1 = "import verifiers.v1 as vf\n"
EARLY = f"{V1}def load_taskset(): return vf.Taskset(source=[])\n"
SECOND = f"{V1}class Sums(vf.Task):\n    tools = (int,)\n"


@pytest.mark.parametrize(
    ("source", "stated", "given"),
    [
        (V1, [], ["verifiers>=0.3.0"]),
        (V1, ["verifiers"], ["verifiers>=0.3.0"]),
        (V1, ["verifiers[ta]>=0.1.15"], ["verifiers[ta]>=0.1.15,>=0.3.0"]),
        (V1, ["verifiers==0.3.1"], ["verifiers==0.3.1,>=0.3.0,<0.4"]),
        (V1, ["verifiers>=0.3.1.dev59"], ["verifiers>=0.3.1.dev59,>=0.3.0,<0.4"]),
        (V1, ["verifiers~=0.4.2"], ["verifiers>=0.3.0,~=0.4.2"]),
        (V1, ["verifiers>0.3.1"], ["verifiers>=0.3.0,>0.3.1"]),
        (V1, ["verifiers>=0.2"], ["verifiers<0.3,>=0.2,>=0.2.0", "mcp<2"]),
        (V1, ["verifiers<0.3"], ["verifiers<0.3,>=0.2.0", "mcp<2"]),
        (V1, ["verifiers>=0.1.13.dev0"], ["verifiers==0.1.14,>=0.1.13.dev0", "mcp<2"]),
        (EARLY, ["verifiers"], ["verifiers==0.1.14", "mcp<2"]),
        (EARLY.replace(V1, "import verifiers as vf\n"), [], ["verifiers==0.1.14", "mcp<2"]),
        ("from verifiers.v1.utils.judge_utils import x\n", [], ["verifiers==0.1.14", "mcp<2"]),
        ("from verifiers import v1\n@v1.update\ndef f(): ...\n", [], ["verifiers==0.1.14", "mcp<2"]),
        (SECOND, ["verifiers"], ["verifiers<0.3,>=0.2.0", "mcp<2"]),
        ("from verifiers.v1 import group_reward\n", [], ["verifiers<0.3,>=0.2.0", "mcp<2"]),
        (f"{V1}vf.KeptTokens\n", ["verifiers>=0.1.8"], ["verifiers<0.4,>=0.1.8,>=0.3.0"]),
        (EARLY, ["verifiers[ta] @ https://x.example/verifiers-0.1.9-py3-none-any.whl"], ["verifiers[ta]"]),
    ],
)
def test_a_task_set_gets_the_release_that_it_was_written_for(tmp_path, source, stated, given):
    found = classic.upstream_requirements(wheel(tmp_path, a=source), stated)
    assert list(map(Requirement, found)) == list(map(Requirement, given))


def test_a_release_that_was_never_published_is_named(tmp_path):
    with pytest.raises(
        ClientError, match=r"`verifiers>=0.1.15.dev3`.*the last published release of these is 0.1.14"
    ):
        classic.upstream_requirements(wheel(tmp_path, a=EARLY), ["verifiers>=0.1.15.dev3"])


CLASSIC = "import verifiers as vf\ndef load_environment(): ...\n"


@pytest.mark.parametrize(
    ("sources", "upstream"),
    [
        ({"a": CLASSIC}, False),
        ({"a": "import verifiers.v1 as vf\n"}, True),
        ({"a": "from verifiers import v1 as vf\n"}, True),
        ({"a": "from verifiers.v1 import Taskset\n", "b": "def broken(:\n"}, True),
        ({"a": CLASSIC, "b": "import verifiers.v1 as vf\n"}, False),
        ({"a": f"{V1}from verifiers.parsers.parser import Parser\ndef load_environment(): ...\n"}, True),
        ({"a": f"{CLASSIC}def late():\n    import verifiers.v1\n"}, False),
        ({"a": f"{CLASSIC}t = vf.Taskset\n"}, True),
        ({"a": "import wander\n"}, False),
        ({"a": "vf = require('verifiers')\ndef load_environment(): ...\n"}, False),
    ],
)
def test_the_code_decides_if_the_requirement_has_no_version(tmp_path, sources, upstream):
    assert classic.keeps_upstream(wheel(tmp_path, **sources), ["verifiers"]) is upstream
    assert classic.keeps_upstream(wheel(tmp_path, **sources), ["verifiers>=0.4"])


def test_a_dynamic_import_next_to_a_loader_is_found(tmp_path):
    loader = "def load_environment():\n    vf = require('verifiers')\n"
    assert library_of(sources_of_wheel(wheel(tmp_path, a=loader))) == "verifiers"
    assert library_of(sources_of_wheel(wheel(tmp_path, a="x = 'verifiers'\n"))) is None
    assigned = "vf = require('verifiers')\nload_environment = vf.environment\n"
    assert library_of(sources_of_wheel(wheel(tmp_path, a=assigned))) == "verifiers"
