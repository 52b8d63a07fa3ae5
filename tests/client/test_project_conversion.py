"""Packages of other people become environments of ours: seen for what they are, completed in a copy."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packages.built_package import build_package
from wander_client.packages.needs import metadata_of, requirements_in
from wander_client.packages.origins.conversion import convert_project
from wander_client.packages.origins.source import PackageOrigin, bring_project, origin_in

LOADER = "import verifiers as vf\n\ndef load_environment(**kwargs):\n    return vf.SingleTurnEnv(**kwargs)\n"
FIRST = "class E(vf.MultiTurnEnv):\n    def env_response(self, messages, state):\n        return [], state\n"
TASKSET = "import verifiers.v1 as vf\n\nclass Adder(vf.Taskset[vf.Task]):\n    pass\n\n__all__ = ['Adder']\n"
HERE = PackageOrigin("here")
PROJECT = '[project]\nname = "my-env"\nversion = "1.0"\ndependencies = [\n  "verifiers>=0.1.5",\n]\n'


def project(folder: Path, module: str = LOADER, text: str | None = PROJECT) -> Path:
    folder.mkdir(parents=True)
    (folder / "my_env.py").write_text(module)
    if text is not None:
        (folder / "pyproject.toml").write_text(text)
    return folder


def read(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_missing_metadata_is_added_and_existing_metadata_is_kept(tmp_path):
    folder = project(tmp_path / "my-env")
    origin = PackageOrigin("git+https://x/y.git", revision="abc", sha256="d1", importer="ann")
    converted = convert_project(folder, origin)
    assert (converted.library, converted.generation) == ("verifiers", 2)
    assert converted.target == "my_env:load_environment"
    found = read(folder)
    assert found["project"]["entry-points"]["wander.environments"] == {"my-env": "my_env:load_environment"}
    assert found["project"]["dependencies"] == ["verifiers>=0.1.5"]
    assert found["build-system"]["build-backend"] == "hatchling.build"
    readme = (folder / "README.md").read_text()
    assert origin_in(readme) == "git+https://x/y.git, revision abc, sha256 d1, by ann"
    assert (folder / "my_env.py").read_text() == LOADER
    again = convert_project(folder, origin)
    assert again.written == []


def test_only_the_tables_of_the_project_are_changed(tmp_path):
    text = (
        "# kept\n[tool.hatch.envs.default]\ndependencies = [\n  'pytest',\n]\n\n[project]\nname = 'my-env'\n"
        "version = '1.0'  # kept too\n\n[project.entry-points.other]\nx = 'y:z'\n"
    )
    folder = project(tmp_path / "my-env", text=text)
    convert_project(folder, HERE)
    found = read(folder)
    assert found["tool"]["hatch"]["envs"]["default"]["dependencies"] == ["pytest"]
    assert found["project"]["dependencies"] == ["verifiers"]
    assert set(found["project"]["entry-points"]) == {"other", "wander.environments"}
    assert (folder / "pyproject.toml").read_text().count("# kept") == 2


def test_a_readme_without_an_import_note_has_no_origin():
    assert origin_in("# my-env\n\nImported into Wander from nowhere.") is None


@pytest.mark.parametrize(
    ("module", "text", "generation"),
    [
        (LOADER + FIRST, PROJECT, 1),
        (LOADER + "x = vf.UserMessage(content='a')\n", PROJECT, 3),
        (LOADER, PROJECT.replace(">=0.1.5", ">=0.1.11.dev0"), 3),
        (LOADER, PROJECT, 2),
    ],
)
def test_generations_of_verifiers_are_recognized(tmp_path, module, text, generation):
    assert convert_project(project(tmp_path / "my-env", module, text), HERE).generation == generation


def test_a_bare_folder_of_code_gets_a_project_that_builds(tmp_path, builder):
    folder = project(tmp_path / "my-env", text=None)
    convert_project(folder, HERE)
    with build_package(folder, builder) as package:
        assert package.name == "my-env"
        assert "my_env.py" in [name for name, _ in package.members]
        assert requirements_in(metadata_of(package.wheel.path)) == ["verifiers"]


@pytest.mark.parametrize("start", [None, "from .my_env import load_environment\n"])
def test_flat_modules_that_import_each_other_relatively_become_a_package(tmp_path, start, builder):
    setuptools = '[tool.setuptools]\npackages = ["my_env"]\npackage-dir = { my_env = "." }\n'
    folder = project(tmp_path / "flat", f"from .words import WORDS\n{LOADER}", PROJECT + setuptools)
    (folder / "words.py").write_text("WORDS = []\n")
    (folder / "words.json").write_text("[]")
    (folder / "tests").mkdir()
    if start is not None:
        (folder / "__init__.py").write_text(start)
    assert convert_project(folder, HERE).target == "my_env:load_environment"
    assert "from .my_env import load_environment" in (folder / "my_env" / "__init__.py").read_text()
    assert (folder / "tests").is_dir()
    with build_package(folder, builder) as package:
        names = {name for name, _ in package.members if name.startswith("my_env/")}
    assert names == {"my_env/__init__.py", "my_env/my_env.py", "my_env/words.py", "my_env/words.json"}
    assert convert_project(folder, HERE).written == []


def test_several_modules_without_a_build_system_are_all_built(tmp_path):
    folder = project(tmp_path / "flat", f"from words import WORDS\n{LOADER}")
    (folder / "words.py").write_text("WORDS = []\n")
    (folder / "__init__.py").write_text("")
    assert convert_project(folder, HERE).target == "my_env:load_environment"
    wheel = read(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["my_env.py", "words.py"]


def test_a_loader_may_be_imported_from_a_neighboring_module(tmp_path):
    folder = project(tmp_path / "short", "from my_env_impl import load_environment as load_environment\n")
    (folder / "my_env_impl.py").write_text(LOADER + FIRST)
    converted = convert_project(folder, HERE, "my_env:load_environment")
    assert (converted.target, converted.library) == ("my_env:load_environment", "verifiers")
    assert converted.generation == 1


def test_a_project_that_packs_its_own_folder_gets_a_wheel_with_plain_names(tmp_path, builder):
    system = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    packs = '[tool.hatch.build.targets.wheel]\npackages = ["."]\n'
    folder = project(tmp_path / "own", text=PROJECT + system + packs)
    (folder / "words.json").write_text("[]")
    convert_project(folder, HERE)
    with build_package(folder, builder) as package:
        assert {"my_env.py", "words.json"} <= {name for name, _ in package.members}


WHEEL = "https://x/some_lib-2.0-py3-none-any.whl"


def with_sources(folder, sources):
    listed = ["verifiers>=0.1.5", "Some.Lib[fast]>=1; python_version > '3'", "plain", "here"]
    text = PROJECT.replace('[\n  "verifiers>=0.1.5",\n]', str(listed)) + sources
    return project(folder, text=text)


def test_sources_of_uv_become_requirements(tmp_path):
    sources = f"""
[tool.uv.sources]
verifiers = {{ git = "https://x/verifiers.git" }}
some-lib = {{ url = "{WHEEL}" }}
here = {{ path = "../here" }}
"""
    folder = with_sources(tmp_path / "my-env", sources)
    convert_project(folder, HERE)
    found = read(folder)
    assert found["project"]["dependencies"] == [
        "verifiers>=0.1.5",
        f'Some.Lib[fast] @ {WHEEL} ; python_version > "3"',
        "plain",
        "here",
    ]
    assert found["tool"]["hatch"]["metadata"]["allow-direct-references"] is True
    assert convert_project(folder, HERE).written == []


@pytest.mark.parametrize(
    "source",
    [
        '{ git = "https://x/lib.git", tag = "v2", subdirectory = "py" }',
        '{ git = "ssh://git@x/lib.git" }',
        '{ url = "https://x/zipped.zip" }',
        '{ url = "https://x/${OPENAI_API_KEY}/some_lib-2.0-py3-none-any.whl" }',
        '{ url = "file:///etc/some_lib-2.0-py3-none-any.whl" }',
        '{ url = "https://me:secret@x/some_lib-2.0-py3-none-any.whl" }',
        '{ url = "https://x/a.whl\\n--index-url https://evil/" }',
    ],
)
def test_sources_that_uv_would_build_are_rejected(tmp_path, source):
    folder = with_sources(tmp_path / "my-env", f"\n[tool.uv.sources]\nsome-lib = {source}\n")
    with pytest.raises(ClientError) as refused:
        convert_project(folder, HERE)
    assert refused.value.code == "unsafe_requirement"


@pytest.mark.full
def test_a_wheel_is_unpacked_into_a_project_that_builds_the_same_code(tmp_path, builder):
    source = project(tmp_path / "my-env", text=PROJECT + "[tool.hatch.build]\ninclude = ['my_env.py']\n")
    convert_project(source, HERE)
    with build_package(source, builder) as package:
        kept = tmp_path / package.wheel.path.name
        kept.write_bytes(package.wheel.path.read_bytes())
        sdist = tmp_path / package.sdist.path.name
        sdist.write_bytes(package.sdist.path.read_bytes())
    for origin in (kept, sdist):
        work = tmp_path / f"work-{origin.suffix}"
        work.mkdir()
        folder, whence = bring_project(str(origin), work, builder)
        assert whence.source == origin.name
        assert convert_project(folder, whence).target == "my_env:load_environment"
        with build_package(folder, builder) as again, zipfile.ZipFile(again.wheel.path) as archive:
            assert archive.read("my_env.py").decode() == LOADER
            assert again.version == "1.0"


def test_a_wheel_keeps_its_entry_points_and_keywords(tmp_path, builder):
    text = (
        PROJECT
        + "keywords = ['a', 'b']\n[project.scripts]\nsay = 'my_env:say'\n"
        + "[project.entry-points.'wander.environments']\nsaid = 'my_env:other'\n"
        + "[tool.hatch.build]\ninclude = ['my_env.py']\n"
    )
    source = project(tmp_path / "my-env", LOADER + "other = load_environment\n", text)
    convert_project(source, HERE)
    with build_package(source, builder) as package:
        work = tmp_path / "work"
        work.mkdir()
        folder, origin = bring_project(str(package.wheel.path), work, builder)
        assert origin.sha256 == package.wheel.sha256
    found = read(folder)["project"]
    assert found["scripts"] == {"say": "my_env:say"}
    assert found["keywords"] == ["a", "b"]
    assert convert_project(folder, HERE).target == "my_env:other"


def test_a_project_with_setup_py_is_converted_through_its_wheel(tmp_path, builder):
    folder = project(tmp_path / "my-env", text=None)
    (folder / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='my-env', version='2.1', py_modules=['my_env'],"
        " install_requires=['verifiers>=0.1.9', 'numpy'])\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    brought_to, _ = bring_project(str(folder), work, builder)
    converted = convert_project(brought_to, HERE)
    assert converted.target == "my_env:load_environment"
    found = read(brought_to)["project"]
    assert (found["version"], found["dependencies"]) == ("2.1", ["verifiers>=0.1.9", "numpy"])
    assert sorted(path.name for path in folder.iterdir()) == ["my_env.py", "setup.py"]


def test_the_entry_point_of_a_task_set_is_its_class(tmp_path, builder):
    folder = tmp_path / "adder"
    (folder / "adder").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\nname = 'adder'\nversion = '1'\n")
    (folder / "adder" / "taskset.py").write_text(TASKSET.rpartition("\n__all__")[0])
    (folder / "adder" / "__init__.py").write_text("from adder.taskset import Adder\n__all__ = ['Adder']\n")
    converted = convert_project(folder, HERE)
    assert (converted.library, converted.generation, converted.target) == (
        "verifiers.v1",
        None,
        "adder:Adder",
    )
    with build_package(folder, builder) as package:
        assert package.name == "adder"


def test_several_loaders_require_a_choice(tmp_path):
    folder = project(tmp_path / "my-env", module="")
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(LOADER)
    with pytest.raises(UsageError, match="one, two"):
        convert_project(folder, HERE)
    assert convert_project(folder, HERE, "two:load_environment").target == "two:load_environment"


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("x = 1\n", NotFound),
        (TASKSET.rpartition("\n__all__")[0], NotFound),
        (LOADER.replace("import verifiers as vf", "import gymnasium as vf"), UsageError),
    ],
)
def test_packages_without_an_environment_are_rejected(tmp_path, module, error):
    folder = project(tmp_path / "my-env", module, PROJECT.replace("verifiers", "gymnasium"))
    with pytest.raises(error):
        convert_project(folder, HERE)


def test_the_library_of_a_package_without_imports_follows_its_requirements(tmp_path):
    folder = project(
        tmp_path / "thin", "from elsewhere import make\n\ndef load_environment():\n    return make()\n"
    )
    assert convert_project(folder, HERE).library == "verifiers"


def test_archives_with_paths_outside_are_rejected(tmp_path, builder):
    evil = tmp_path / "evil-1-py3-none-any.whl"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("../outside.py", "x")
        archive.writestr("evil-1.dist-info/METADATA", "Name: evil\nVersion: 1\n")
    with pytest.raises(ClientError, match="outside"):
        bring_project(str(evil), tmp_path / "work", builder)
    sdist = tmp_path / "evil-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(evil, arcname="../../outside")
    with pytest.raises(ClientError):
        bring_project(str(sdist), tmp_path / "work2", builder)
    with pytest.raises(NotFound):
        bring_project("nothing-here", tmp_path / "work3", builder)
