"""Projects, suites and settings that somebody sent: no command hangs on them, fills the memory or breaks."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Wander
from received_folders import UNPLAIN, make_socket, sparse
from wander.checks.package import check_package
from wander.errors import ConfigError
from wander.train.settings.toml_file import settings_data
from wander.wire.untrusted_text import PROJECT, RefusedText, read_project, read_toml
from wander_client.errors import ClientError
from wander_client.packages import needs
from wander_client.packages.building import build
from wander_client.packages.origins import source
from wander_client.packages.origins.source import bring_project
from wander_client.settings import load_settings
from wander_client.suites.file import read_suite


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


HEAD = '[project]\nname = "x"\nversion = "1"\n'
PUTS: dict[str, Callable[[Path], object]] = {
    **UNPLAIN,
    "deep": text("a = " + "[" * 50_000),
    "closed and deep": text("a = " + "[" * 90 + "]" * 90),
    "long keys": text(".".join("a" * 9000) + " = 1\n"),
    "digits": text("a = " + "9" * 10_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}
SHAPES: dict[str, Callable[[Path], object]] = {
    "project is a string": text('project = "x"'),
    "project is a list": text('[[project]]\nname = "x"'),
    "tool is a number": text(f"tool = 3\n{HEAD}"),
    "build-system is a list": text(f"build-system = []\n{HEAD}"),
    "entry points are a number": text(f"{HEAD}entry-points = 3"),
    "entry points are a list": text(f'{HEAD}[project.entry-points]\n"wander.environments" = ["a"]'),
    "an entry point is a number": text(f'{HEAD}[project.entry-points."wander.environments"]\nx = 3'),
    "dependencies are a string": text(f'{HEAD}dependencies = "x"'),
    "a dependency is a table": text(f"{HEAD}dependencies = [{{}}]"),
    "dynamic is a number": text(f"{HEAD}dynamic = 1"),
    "the description is a list": text(f"{HEAD}description = [{{}}]"),
    "the version is a list": text('[project]\nname = "x"\nversion = [[1]]'),
    "tool.uv is a string": text(f'{HEAD}[tool]\nuv = "x"'),
    "the sources of uv are a list": text(f"{HEAD}[tool.uv]\nsources = []"),
    "tool.hatch is a number": text(f"{HEAD}[tool]\nhatch = 1.5"),
    "the targets of hatch are a string": text(f'{HEAD}[tool.hatch.build]\ntargets = "x"'),
    "the wheel of hatch is a list": text(f"{HEAD}[[tool.hatch.build.targets.wheel]]"),
}


@pytest.fixture
def project(folder: Path) -> Path:
    """An environment's folder whose `pyproject.toml` is still to be made."""
    (folder / "pyproject.toml").unlink()
    return folder


@pytest.mark.parametrize("put", [*PUTS, *SHAPES])
def test_a_received_project_is_read_or_rejected(put: str, project: Path) -> None:
    (PUTS | SHAPES)[put](project / "pyproject.toml")
    with pytest.raises((RefusedText, OSError)):
        read_project(project)


COMMANDS = (
    ("publish", "./say-env", "--dry-run"),
    ("check", "./say-env"),
    ("env", "import", "path", "./say-env", "--dry-run", "--owner", "me"),
)
READ_BY_ALL = ["a FIFO", "a link to a device", "deep", "digits", "project is a list", "dynamic is a number"]
"""Projects that every command reads here. For the others one command is enough: all call `read_project`."""


@pytest.mark.parametrize("put", [*READ_BY_ALL, *(name for name in SHAPES if name not in READ_BY_ALL)])
def test_commands_report_problems_of_a_project(put: str, project: Path, wander: Wander) -> None:
    (PUTS | SHAPES)[put](project / "pyproject.toml")
    for words in COMMANDS if put in READ_BY_ALL else COMMANDS[:1]:
        ended = wander(*words, "--json")
        assert ended.status != 0, words
        assert ended.json.get("error", {}).get("code") != "internal", (words, ended.out)


@pytest.mark.parametrize("put", PUTS)
def test_suites_and_settings_are_read_or_rejected(put: str, home: Path) -> None:
    PUTS[put](home / "x.toml")
    with pytest.raises(ClientError):
        read_suite(home / "x.toml", load_settings())
    with pytest.raises(ConfigError):
        settings_data(home / "x.toml", [], {})


@pytest.mark.parametrize("place", ["/dev/zero", "../outside", "fifo", "link", "/etc/passwd", ""])
def test_a_readme_is_a_file_of_the_project(place: str, folder: Path) -> None:
    (folder.parent / "outside").write_text("# Outside\n")
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("../outside")
    stated = (folder / "pyproject.toml").read_text()
    assert '"README.md"' in stated
    (folder / "pyproject.toml").write_text(stated.replace('"README.md"', f'"{place}"'))
    results = {result.id: result for result in check_package(folder, "say-env", Path("python"))}
    assert results["package.readme"].status == "fail"


@pytest.mark.parametrize("depth", [1, 10, 60])
def test_ordinary_nesting_is_accepted(depth: int) -> None:
    assert read_toml(f"a = {'[' * depth}{']' * depth}".encode(), PROJECT)


# What is copied and unpacked.


@pytest.mark.parametrize(
    "put", [os.mkfifo, make_socket, sparse(1 << 40), lambda path: path.symlink_to("/etc/passwd"),
            lambda path: path.symlink_to("../../outside"), lambda path: path.symlink_to("/")],
)  # fmt: skip
@pytest.mark.parametrize("place", ["data.bin", "inner/data.bin"])
def test_a_folder_with_special_files_is_not_copied(
    put: Callable[[Path], object], place: str, folder: Path, tmp_path: Path
) -> None:
    (folder / place).parent.mkdir(exist_ok=True)
    put(folder / place)
    (tmp_path / "work").mkdir()
    with pytest.raises(ClientError) as refused:
        bring_project(str(folder), tmp_path / "work", None)  # type: ignore[arg-type]
    assert refused.value.code in ("unsafe_file", "unsafe_package")


def test_links_inside_a_folder_stay(folder: Path, tmp_path: Path) -> None:
    (folder / "again.md").symlink_to("README.md")
    (tmp_path / "work").mkdir()
    copy, _ = bring_project(str(folder), tmp_path / "work", None)  # type: ignore[arg-type]
    assert (copy / "again.md").read_text() == "# say-env\n"


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x-1/zeros", bytes(1 << 22))


def tarred(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("x-1/zeros")
        entry.size = 1 << 22
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))


def many(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number in range(50):
            archive.addfile(tarfile.TarInfo(f"x-1/{number}"))


@pytest.mark.parametrize(
    ("name", "make"),
    [("x-1.zip", zipped), ("x-1-py3-none-any.whl", zipped), ("x-1.tar.gz", tarred), ("x-1.tgz", many)],
)
def test_an_archive_that_unpacks_too_large_is_rejected(
    name: str, make: Callable[[Path], None], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "_FREE_UNPACKED", 1 << 20)
    monkeypatch.setattr(build, "LARGEST_SOURCE", 1 << 20)
    monkeypatch.setattr(build, "MOST_FILES", 20)
    make(home / name)
    (home / "work").mkdir()
    with pytest.raises(ClientError) as refused:
        source.bring_project(str(home / name), home / "work", None)  # type: ignore[arg-type]
    assert refused.value.code == "unsafe_package"
    assert sum(path.stat().st_size for path in (home / "work").rglob("*") if path.is_file()) == 0


@pytest.mark.parametrize(
    "line",
    [
        *(
            "workers = 1" + "0" * 30,
            "workers = 257",
            "rollouts = 1" + "0" * 30,
            "num_examples = 1" + "0" * 30,
        ),
        *('model = "' + "x" * 5000 + '"', 'environment = "./' + "x" * 5000 + '"', 'model = "a\\u0000b"'),
        *('environment = "./a\\u0000b"', "seed = 1" + "0" * 30, "max_tokens = 1" + "0" * 30),
    ],
)
def test_excessive_values_of_a_suite_are_rejected(line: str, folder: Path, wander: Wander) -> None:
    key = line.partition(" ")[0]
    entry = {"environment": '"./say-env"', "model": '"scripted:say_env:solver"'}
    lines = [f"{name} = {value}" for name, value in entry.items() if name != key]
    Path("x.toml").write_text("\n".join(["[[eval]]", *lines, line]) + "\n")
    for words in (("eval", "x.toml", "--dry-run"), ("eval", "x.toml")):
        ended = wander(*words, "--json")
        assert ended.json.get("error", {}).get("code") != "internal", ended.out
