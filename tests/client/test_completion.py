"""`wander completion`: what real shells suggest, from the commands, the disk and a real hub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HubRoom, Wander
from live_hub import clean_environment, live_hub
from wander_client.commands import FIRST_SCREEN, GROUPS
from wander_client.commands.shell.completion import SCRIPTS

BIN = Path(sys.executable).parent


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


def words(wander: Wander, line: str) -> list[str]:
    found = wander("completion", "fish", "--line", line, "--json", "--hub", "http://127.0.0.1:9")
    suggestions: list[str] = found.data["suggestions"]
    return suggestions


def test_the_first_word_is_a_command_or_a_group(wander: Wander) -> None:
    assert words(wander, "wander ")[: len(FIRST_SCREEN) + 1] == [*FIRST_SCREEN, "help"]
    assert set(GROUPS) <= set(words(wander, "wander "))
    assert words(wander, "wander lea") == ["leaderboard"]
    assert words(wander, "wander compa") == [], "old names are not offered"


def test_a_group_and_a_command_of_several_offer_their_commands(wander: Wander) -> None:
    assert words(wander, "wander runs re") == ["report", "replay", "rerun", "rename"]
    assert words(wander, "wander env board h") == ["hide"]
    assert words(wander, "wander --json auth token ") == ["new", "list", "revoke"]


def test_options_and_their_values(wander: Wander, installed: Path) -> None:
    assert "--max-tokens" in words(wander, "wander eval acme/wordle --max")
    assert "--line" not in words(wander, "wander completion bash --")
    runs = os.path.join(str(installed / "runs"), "")
    assert words(wander, f"wander eval --resume {runs}f") == [f"{runs}first"]
    assert words(wander, "wander eval acme/wordle -m smol") == ["smollm2"]
    assert words(wander, "wander eval acme/wordle --model ")[1:] == [f"{runs}second/model"]


def test_arguments_are_names_of_things_here(wander: Wander, installed: Path) -> None:
    assert words(wander, "wander eval ac") == ["acme/wordle"]
    runs = {str(installed / "runs" / name) for name in ("first", "second")}
    assert set(words(wander, "wander runs compare ")) == runs
    assert set(words(wander, "wander runs compare one ")) == runs
    assert words(wander, "wander runs compare one two ") == []
    assert set(words(wander, "wander runs report one two ")) == runs
    assert words(wander, "wander runs replay 'unfinished ") == []


def test_an_unknown_shell_is_refused(wander: Wander) -> None:
    result = wander("completion", "tcsh")
    assert (result.status, "bash" in result.err) == (2, True)


@pytest.fixture(scope="module")
def shell_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home with one installed environment, for shells that run the installed command."""
    home = tmp_path_factory.mktemp("shell")
    (home / "data" / "environments" / "hub" / "acme" / "wordle").mkdir(parents=True)
    folders = {
        f"WANDER_{name}_DIR": str(home / name.lower())
        for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE")
    }
    return {**clean_environment(), **folders, "WANDER_HUB": "http://127.0.0.1:9", "HOME": str(home)}


def ask(shell: str, script: str, environ: dict[str, str]) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    done = subprocess.run([shell, "-c", script], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wander leader", ["leaderboard"]),
        ("wander eval ac", ["acme/wordle"]),
        ("wander runs com", ["compare"]),
    ],
)
def test_bash_completes(line: str, expected: list[str], shell_environ: dict[str, str]) -> None:
    script = f"""{SCRIPTS["bash"]}
COMP_LINE="{line}" COMP_POINT={len(line)}
_wander
printf '%s\\n' "${{COMPREPLY[@]}}\""""
    assert ask("bash", script, shell_environ) == expected


def test_bash_gets_what_follows_a_sign_that_it_takes_for_a_break(wander: Wander) -> None:
    assert wander("completion", "bash", "--line", "wander eval x -m=smol").out == ""
    assert wander("completion", "bash", "--line", "wander le").out == "leaderboard\n"


def test_fish_completes(shell_environ: dict[str, str]) -> None:
    found = ask("fish", f"{SCRIPTS['fish']}\ncomplete -C 'wander eval ac'", shell_environ)
    assert found == ["acme/wordle\tinstalled"]


def test_zsh_completes(shell_environ: dict[str, str]) -> None:
    """The function is called as the completion system calls it; what it would show is printed instead."""
    script = f"""compdef() {{ : }}
_describe() {{ print -l -- "${{(@P)3}}" }}
_files() {{ print files }}
{SCRIPTS["zsh"]}
words=(wander eval ac) CURRENT=3
_wander
words=(wander eval ./) CURRENT=3
_wander"""
    assert ask("zsh", script, shell_environ) == ["acme/wordle:installed", "files"]


@pytest.mark.full
def test_environments_of_the_hub_are_asked_for_once_a_minute(
    home: Path, wander: Wander, hub: HubRoom, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from command_line import make_wheel

    with live_hub(tmp_path_factory.mktemp("live")) as running:
        import httpx

        wheel = make_wheel(home)
        fields = {":action": "file_upload", "protocol_version": "1", "name": "say-env", "version": "0.1.0"}
        fields |= {"metadata_version": "2.4", "filetype": "bdist_wheel", "pyversion": "py3"}
        answer = httpx.post(
            f"{running.url}/admin/legacy/",
            data=fields,
            files={"content": (wheel.name, wheel.read_bytes())},
            headers={"Authorization": f"Bearer {running.token}"},
        )
        assert answer.status_code == 200, answer.text
        asked = ("completion", "fish", "--hub", running.url, "--line")
        assert wander(*asked, "wander install adm").out == "admin/say-env\tSay a number.\n"
    assert wander(*asked, "wander install adm").out == "admin/say-env\tSay a number.\n", "it is remembered"
