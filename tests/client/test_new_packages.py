"""`wander new`: every kind of package imports, passes its own tests and its checks, and can be evaluated."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from command_line import Wander
from wander.checks.package import SCAFFOLD, SCAFFOLDED
from wander.loading import load_path
from wander_client.packages.scaffold import KINDS

NEEDS = {"mcp": "mcp"}
"""The module that the extra of a kind brings."""
HEADINGS = [
    "What it tests",
    "Prompt",
    "Actions",
    "Rewards",
    "Start",
    "End",
    "Arguments",
    "A sample rollout",
    "Reference scores",
]
CHECKED = ("rewards.gold", "rewards.empty", "rewards.noop", "rewards.injection", "determinism.replay")
"""What is looked at in every kind that needs no judge."""


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    needed = NEEDS.get(kind)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"`{needed}` is not installed")
    return kind


@pytest.fixture
def made(kind: str, wander: Wander, home: Path) -> Path:
    """A new package of the kind, with a module name that nothing else has imported."""
    folder = home / f"new-{kind}"
    result = wander("new", f"./new-{kind}", "--kind", kind, "--json")
    assert result.status == 0, result.err
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert sorted(result.data["files"]) == written
    return folder


def module_of(folder: Path) -> str:
    return folder.name.replace("-", "_")


SOME_KINDS = [pytest.param(kind, marks=() if kind == "tool" else pytest.mark.full) for kind in KINDS]
"""Every kind; `make test` takes one with calls."""


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_new_package_passes_its_own_tests_and_the_linter(made: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 3
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--line-length", "110",
         "--select", "E,F,W,B,UP,RUF,SIM", "."],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_new_packages_tests_survive_other_weights(kind: str, made: Path) -> None:
    source = made / module_of(made) / "__init__.py"
    text = source.read_text()
    changed = re.sub(r"Rubric\(\[(\w+)(, \w+)?\](?:, weights=\[[^]]*\])?", other_weights, text)
    assert changed != text
    source.write_text(changed)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=made, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def other_weights(found: re.Match[str]) -> str:
    weights = "0.7, 0.4" if found[2] else "0.7"
    return f"Rubric([{found[1]}{found[2] or ''}], weights=[{weights}]"


def test_every_generated_summary_counts_as_unfinished() -> None:
    assert {kind.summary for kind in KINDS.values()} == SCAFFOLDED


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_new_package_passes_every_check(kind: str, made: Path, wander: Wander) -> None:
    readme = made / "README.md"
    told = readme.read_text()
    (scaffold,) = (line for line in told.splitlines() if SCAFFOLD in line)
    readme.write_text(told.replace(scaffold, ""))
    project = (made / "pyproject.toml").read_text()
    description = tomllib.loads(project)["project"]["description"]
    assert description in SCAFFOLDED
    (made / "pyproject.toml").write_text(project.replace(description, "Another one."))
    # A judge that is not to be had, and says so at once: an address where nothing listens is tried for 20 s.
    with chat_endpoint(lambda messages: "", models=()) as nobody:
        options = ["-a", f"judge_base_url={nobody.base_url}"] if kind == "judge" else []
        checked = wander("check", f"./{made.name}", "--strict", "--json", *options)
    assert checked.status == 0, checked.out
    assert checked.data["passed"] is True
    found = {each["id"]: each["status"] for each in checked.data["checks"]}
    looked_at = CHECKED if kind != "judge" else ("rewards.empty", "determinism.declared")
    assert [found[check] for check in looked_at] == ["pass"] * len(looked_at)


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_new_packages_player_wins(kind: str, made: Path, wander: Wander) -> None:
    command = ["eval", f"./{made.name}", "-m", f"scripted:{module_of(made)}:solver", "-n", "3", "--json"]
    with chat_endpoint(lambda messages: '{"verdict": "yes"}') as judge:
        options = ["-a", f"judge_base_url={judge.base_url}"] if kind == "judge" else []
        result = wander(*command, *options)
    assert result.status == 0, result.err
    assert result.data["summary"]["failed"] == 0
    assert result.data["summary"]["reward_mean"] >= 1.0


def test_readme_and_metadata_of_a_new_package_match_its_environment(kind: str, made: Path) -> None:
    project = tomllib.loads((made / "pyproject.toml").read_text())
    env = load_path(made)
    about = project["project"]
    assert about["description"] == env.info.summary
    assert about["dependencies"] == [KINDS[kind].requirement]
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [module_of(made)]
    assert (made / module_of(made) / "__init__.py").is_file()
    assert list(made.glob("*.py")) == []
    readme = (made / "README.md").read_text()
    assert [line[3:] for line in readme.splitlines() if line.startswith("## ")] == HEADINGS
    rewards = readme.split("## Rewards")[1].split("## Start")[0]
    named = [each.name for each in env.info.reward_functions]
    assert [name for name in named if f"`{name}`" not in rewards] == []
    arguments = readme.split("## Arguments")[1].split("## A sample")[0]
    assert [
        name for name in ("num_examples", "seed") if kind != "judge" and f"`{name}`" not in arguments
    ] == []
    text = "".join(path.read_text() for path in made.rglob("*") if path.suffix in (".py", ".md", ".toml"))
    assert re.findall(r"@(?!stop)\w+@?", text) == [], "every place of a template is filled in"


def test_the_help_describes_every_kind_of_environment(wander: Wander) -> None:
    shown = wander("new", "--help").out
    assert [
        name for name, kind in KINDS.items() if not re.search(rf"(?m)^ +{name} +{kind.line}$", shown)
    ] == []
    refused = wander("new", "x", "--kind", "triple")
    assert refused.status == 2
    assert [name for name in KINDS if f"`{name}`" not in refused.err] == []


def test_a_new_package_never_overwrites(wander: Wander, home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "work.txt").write_text("years of it")
    result = wander("new", "mine", "--json")
    assert (result.status, result.json["error"]["code"]) == (1, "folder_not_empty")
    assert [path.name for path in (home / "mine").iterdir()] == ["work.txt"]
    (home / "empty").mkdir()
    assert wander("new", "empty").status == 0
    assert wander("new", "games/deep", "--kind", "multi-turn").status == 0
    assert (home / "games" / "deep" / "deep" / "__init__.py").is_file()
    assert sorted(path.name for path in home.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("json", "a module of the Python standard library"),
        ("tests", "a module of the Python standard library"),
        ("class", "a Python keyword"),
        ("match", "a Python keyword"),
        ("numpy", "a well-known package"),
        ("huggingface-hub", "a well-known package"),
        ("wander", "a Wander package"),
    ],
)
def test_a_name_that_is_already_used_is_rejected(name: str, said: str, wander: Wander, home: Path) -> None:
    result = wander("new", name)
    assert result.status == 2
    assert said in result.err
    assert f"such as `{name}-env`" in result.err
    assert not (home / name).exists()
    assert wander("new", f"{name}-env").status == 0
