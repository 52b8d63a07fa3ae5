"""Packages of other people become environments of ours: seen for what they are, completed in a copy."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packaging.adoption import adopt
from wander_client.packaging.origins import brought
from wander_client.packaging.publish import built

LOADER = "import verifiers as vf\n\ndef load_environment(**kwargs):\n    return vf.SingleTurnEnv(**kwargs)\n"
FIRST = "class E(vf.MultiTurnEnv):\n    def env_response(self, messages, state):\n        return [], state\n"
PROJECT = '[project]\nname = "my-env"\nversion = "1.0"\ndependencies = [\n  "verifiers>=0.1.5",\n]\n'


def project(folder: Path, module: str = LOADER, text: str | None = PROJECT) -> Path:
    folder.mkdir(parents=True)
    (folder / "my_env.py").write_text(module)
    if text is not None:
        (folder / "pyproject.toml").write_text(text)
    return folder


def read(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_what_is_missing_is_written_and_the_rest_left(tmp_path):
    folder = project(tmp_path / "my-env")
    adopted = adopt(folder, "git+https://x/y.git")
    assert (adopted.library, adopted.generation) == ("verifiers", 2)
    assert adopted.target == "my_env:load_environment"
    found = read(folder)
    assert found["project"]["entry-points"]["wander.environments"] == {"my-env": "my_env:load_environment"}
    assert found["project"]["dependencies"] == ["verifiers>=0.1.5"]
    assert found["build-system"]["build-backend"] == "hatchling.build"
    assert "Imported into Wander from `git+https://x/y.git`" in (folder / "README.md").read_text()
    assert (folder / "my_env.py").read_text() == LOADER
    again = adopt(folder, "git+https://x/y.git")
    assert again.written == []


@pytest.mark.parametrize(
    ("module", "text", "generation"),
    [
        (LOADER + FIRST, PROJECT, 1),
        (LOADER + "x = vf.UserMessage(content='a')\n", PROJECT, 3),
        (LOADER, PROJECT.replace(">=0.1.5", ">=0.1.11.dev0"), 3),
        (LOADER, PROJECT, 2),
    ],
)
def test_generations_are_told_apart(tmp_path, module, text, generation):
    assert adopt(project(tmp_path / "my-env", module, text), "x").generation == generation


def test_a_bare_folder_of_code_gets_a_project_that_builds(tmp_path):
    folder = project(tmp_path / "my-env", text=None)
    adopt(folder, "my-env")
    with built(folder) as package:
        assert package.name == "my-env"
        assert "my_env.py" in [name for name, _ in package.members]
        assert not [text for text in package.warnings if "depend" in text]


def test_a_wheel_is_unpacked_into_a_project_that_builds_the_same_code(tmp_path):
    source = project(tmp_path / "my-env", text=PROJECT + "[tool.hatch.build]\ninclude = ['my_env.py']\n")
    adopt(source, "x")
    with built(source) as package:
        kept = tmp_path / package.wheel.path.name
        kept.write_bytes(package.wheel.path.read_bytes())
        sdist = tmp_path / package.sdist.path.name
        sdist.write_bytes(package.sdist.path.read_bytes())
    for origin in (kept, sdist):
        work = tmp_path / f"work-{origin.suffix}"
        work.mkdir()
        folder = brought(str(origin), work)
        assert adopt(folder, origin.name).target == "my_env:load_environment"
        with built(folder) as again, zipfile.ZipFile(again.wheel.path) as archive:
            assert archive.read("my_env.py").decode() == LOADER
            assert again.version == "1.0"


def test_a_repository_is_cloned_with_its_subdirectory(tmp_path):
    repository = tmp_path / "envs.git"
    project(repository / "environments" / "my-env")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    work = tmp_path / "work"
    work.mkdir()
    folder = brought(f"git+file://{repository}@main#subdirectory=environments/my-env", work)
    assert adopt(folder, "x").name == "my-env"
    for number, wrong in enumerate(("../..", "nowhere")):
        other = tmp_path / f"w{number}"
        other.mkdir()
        with pytest.raises(NotFound):
            brought(f"git+file://{repository}#subdirectory={wrong}", other)


def test_several_loaders_need_a_choice(tmp_path):
    folder = project(tmp_path / "my-env", module="")
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(LOADER)
    with pytest.raises(UsageError, match="one, two"):
        adopt(folder, "x")
    assert adopt(folder, "x", "two:load_environment").target == "two:load_environment"


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("x = 1\n", NotFound),
        (LOADER.replace("import verifiers as vf", "import verifiers.v1 as vf"), UsageError),
        (LOADER.replace("import verifiers as vf", "import gymnasium as vf"), UsageError),
    ],
)
def test_what_is_no_environment_of_ours_is_refused(tmp_path, module, error):
    with pytest.raises(error):
        adopt(project(tmp_path / "my-env", module), "x")


def test_archives_that_reach_outside_are_refused(tmp_path):
    evil = tmp_path / "evil-1-py3-none-any.whl"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("../outside.py", "x")
        archive.writestr("evil-1.dist-info/METADATA", "Name: evil\nVersion: 1\n")
    with pytest.raises(ClientError, match="outside"):
        brought(str(evil), tmp_path / "work")
    sdist = tmp_path / "evil-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(evil, arcname="../../outside")
    with pytest.raises(ClientError):
        brought(str(sdist), tmp_path / "work2")
    with pytest.raises(NotFound):
        brought("nothing-here", tmp_path / "work3")
