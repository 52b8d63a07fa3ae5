"""Completion by click: what it suggests of commands, options and the disk, and that real shells show it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from live_hub import clean_environment
from wander_client.commands import FIRST_SCREEN, GROUPS, LazyGroup
from wander_client.main import COMPLETION, CommandLine
from wander_client.terminal.output import Output


@pytest.fixture
def installed(home: Path) -> Path:
    """A machine with an environment, a run and a checkpoint."""
    (home / "data" / "environments" / "hub" / "acme" / "wordle" / "0.1.0-abc").mkdir(parents=True)
    for run in ("first", "second"):
        (home / "runs" / run).mkdir(parents=True)
        (home / "runs" / run / "run.json").write_text("{}")
    (home / "runs" / "second" / "model").mkdir()
    (home / "runs" / "second" / "model" / "config.json").write_text("{}")
    return home


def words(line: str) -> list[str]:
    """Return what may stand in place of the last word of a line; a file is shown by its kind."""
    *before, typed = line.split(" ")[1:]
    shell = ShellComplete(LazyGroup(), {"obj": CommandLine(Output("plain"))}, "wander", COMPLETION)
    return [
        item.value if item.type == "plain" else item.type for item in shell.get_completions(before, typed)
    ]


def test_the_first_word_is_a_command_or_a_group() -> None:
    assert words("wander ")[: len(FIRST_SCREEN)] == [*FIRST_SCREEN]
    assert set(GROUPS) <= set(words("wander "))
    assert words("wander lea") == ["leaderboard"]


def test_groups_complete_their_subcommands() -> None:
    assert words("wander runs re") == ["report", "replay", "rerun", "regrade", "rename"]
    assert words("wander env owner re") == ["remove", "rename"]
    assert words("wander --json auth token ") == ["new", "list", "revoke"]


def test_options_and_their_values_are_completed(installed: Path) -> None:
    assert "--max-tokens" in words("wander eval acme/wordle --max")
    assert "--json" in words("wander search --js")
    assert words("wander leaderboard acme/wordle --level res") == ["rescored"]
    assert words(f"wander eval --resume {installed}/runs/f") == [f"{installed}/runs/first"]
    assert words("wander eval acme/wordle -m smol") == ["smollm2"]
    assert words("wander eval acme/wordle --model ")[1:] == [f"{installed}/runs/second/model"]


def test_arguments_complete_to_local_names_or_files(installed: Path) -> None:
    assert words("wander eval ac") == ["acme/wordle"]
    runs = {str(installed / "runs" / name) for name in ("first", "second")}
    assert set(words("wander runs compare ")) == runs
    assert set(words("wander runs report one two ")) == runs
    assert words("wander eval ./") == ["file"]


@pytest.fixture(scope="module")
def shell_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home with one installed environment, for shells that run the installed command."""
    home = tmp_path_factory.mktemp("shell")
    (home / "data" / "environments" / "hub" / "acme" / "wordle").mkdir(parents=True)
    folders = {
        f"WANDER_{name}_DIR": str(home / name.lower())
        for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE")
    }
    return {**clean_environment(), **folders, "HOME": str(home)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wander leader", ["leaderboard"]),
        ("wander eval ac", ["acme/wordle"]),
        ("wander runs com", ["compare"]),
    ],
)
def test_bash_completes(line: str, expected: list[str], shell_environ: dict[str, str]) -> None:
    script = f"""eval "$({COMPLETION}=bash_source wander)"
COMP_WORDS=({line}) COMP_CWORD={len(line.split()) - 1}
_wander_completion wander
printf '%s\\n' "${{COMPREPLY[@]}}\""""
    done = subprocess.run(
        ["bash", "-c", script], env=shell_environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_completion_script(shell: str, shell_environ: dict[str, str]) -> None:
    environ = {**shell_environ, COMPLETION: f"{shell}_source"}
    script = subprocess.run(["wander"], env=environ, capture_output=True, text=True, check=True).stdout
    assert COMPLETION in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
