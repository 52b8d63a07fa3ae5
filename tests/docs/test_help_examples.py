"""Every example in the help of `wander` and `wander-hub` works on a fresh hub."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import click
import pytest
from chat_endpoint import chat_endpoint
from click.testing import CliRunner
from live_hub import live_hub, run_hub
from machine import Machine
from package_mirror import build_mirror
from sandboxes import needs_sandbox
from wander_hub.cli.main import app
from written_commands import PROGRAMS

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), needs_sandbox]
ROOT = Path(__file__).resolve().parents[2]
BIN_WORDS = re.compile(r"(?m)^ {2,}(wander(?:-hub)? (?:.*\S))$")

CANNOT = {
    "hf:": "asks Hugging Face",
    "smollm2": "needs the weights of SmolLM2 from a package index",
    "--serve vllm": "needs vLLM",
    "https://hub.example.org": "is another hub",
    "example.org/": "is another repository: tests/client/test_import_sources.py",
    "git@example.org": "is another repository: tests/client/test_import_sources.py",
    "env import harbor ./": "needs a task of Harbor: tests/client/test_harbor_commands.py",
    "env import openenv ./": "needs a folder of OpenEnv: tests/plugins/test_openenv_files.py",
    "env import results": "needs the results of another library: tests/client/test_import_command.py",
    ".whl --owner": "needs a published wheel: tests/client/test_import_sources.py",
    "seal create": "needs a hub that seals: tests/system/test_sealed_sets.py",
    "seal play": "needs a hub that seals: tests/system/test_sealed_sets.py",
    "seal open": "needs a hub that seals: tests/system/test_sealed_sets.py",
    "seal show": "needs a hub that seals: tests/system/test_sealed_sets.py",
    "--token-stdin": "is another hub",
    "runs regrade": "needs two versions: tests/system/test_regrading.py",
    "check . --learn": "trains for minutes: tests/client/training/test_learning_command.py",
    "--to harbor": "needs an environment with a shell: tests/client/test_harbor_commands.py",
    "--worker tcp://HOST": "needs another machine",
    "wander worker": "serves until it is stopped",
    "wander train": "trains for minutes: the README's page trains",
    "wander model sft": "trains for minutes: the README's page trains",
    "wander model new tiny --env": "loads PyTorch: tests/client/training",
    "wander model new tiny --tr": "loads PyTorch: tests/client/training",
    "wander view": "needs a terminal",
    "exhaustive=true": "needs a trained checkpoint",
    "./sft/model": "needs a trained checkpoint",
    "acme/ttt": "needs a trained checkpoint",
    "runs plot": "needs training runs",
    "shard=": "plays a part: tests/client/test_shards.py",
    "runs merge": "plays a part: tests/client/test_shards.py",
    "owner leave": "asks on a terminal, and the last owner may not leave",
    "runs verify": "needs a hub that replays: tests/system/test_verification.py",
    "wander login": "asks for a token: the README's page logs in",
}
"""What an example holds if a fresh hub alone is not enough for it, and why."""


def examples(program: str) -> list[tuple[str, str]]:
    """Return each example of a program's help with the command whose help it is."""
    command = PROGRAMS[program]
    return sorted(examples_below(command, click.Context(command, info_name=program)), key=itemgetter(0))


def examples_below(
    command: click.Command, ctx: click.Context, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    for line in BIN_WORDS.findall(command.get_help(ctx).partition("\nOptions:\n")[0]):
        yield " ".join(words), line
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            below = click.Context(child, parent=ctx, info_name=name)
            yield from examples_below(child, below, (*words, name))


STANDS_FOR = {
    "env board": {
        "acme/wordle@0.3.0": "admin/tictactoe",
        "acme/wordle": "admin/tictactoe",
        ":guesses": ":won",
    },
    "env owner transfer": {"ada/wordle": "admin/reverse-text"},
    "env owner rename": {"acme/wordle ": "acme/wordle2 "},
    "auth org new": {"acme": "newcomers"},
    "auth org remove": {"acme": "newcomers"},
    "seal check": {"acme/math@1.0.0": "acme/wordle@0.2.0"},
}
"""Names in the examples of some commands, and what the test's hub has instead."""
LATER = (
    *("auth key revoke", "auth org remove", "env owner rename", "env owner transfer"),
    *("env deprecate", "env yank", "model yank", "env uninstall", "runs withdraw", "env delete"),
    "auth logout",
)
"""Commands that take something away, in the order in which they run after all others."""
ASK = ("runs withdraw", "env delete", "auth org remove", "env owner transfer", "env owner rename")
"""Commands that ask for confirmation on a terminal."""
MAY_DIFFER = ("runs rerun", "runs compare", "runs replay", "check")
"""Commands whose exit status 1 is an answer about what they looked at."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A fresh hub after the README's `publish`, `eval` and `post`, with what the examples name."""
    mirror = build_mirror(tmp_path_factory.mktemp("mirror"), ["wander-sdk", "wander-client", "hatchling"])
    home = tmp_path_factory.mktemp("home")
    with live_hub(tmp_path_factory.mktemp("hub")) as hub:
        for name in ("ada", "bob"):
            run_hub(hub.data, "user", "add", name)
        machine = Machine(home, hub, mirror)
        for name in ("acme", "lab"):
            machine.wander("auth", "org", "new", name)
        yield prepare(machine)


def prepare(machine: Machine) -> Machine:
    home, ignored = machine.home, shutil.ignore_patterns("__pycache__", "build", "dist")
    for name in ("tictactoe", "reverse_text"):
        shutil.copytree(ROOT / "environments" / name, home / name, ignore=ignored)
        machine.wander("publish", home / name, "--no-check")
    for name in ("wordle", "wordle2", "my-env"):
        machine.wander("new", name)
        for file in ("README.md", "pyproject.toml"):  # what `wander check` asks for
            text = re.sub(r"(?m)^.*came with `wander new`.*\n", "", (home / name / file).read_text())
            (home / name / file).write_text(re.sub("(?m)^description.*", 'description = "Guess."', text))
    project = home / "wordle" / "pyproject.toml"
    for version in ("0.1.0", "0.2.0"):
        project.write_text(re.sub(r'(?m)^version = ".*"', f'version = "{version}"', project.read_text()))
        machine.wander("publish", "wordle", "--no-check", "--owner", "acme")
    machine.wander("publish", "wordle2", "--no-check", "--owner", "acme")
    for number, name in enumerate(("RUN", "before", "after", "mine", "ONE", "TWO")):
        words = ("-m", "scripted:tictactoe.players:careless", "-n", 20, "--seed", number % 2)
        machine.wander("eval", "admin/tictactoe", *words, "--out", f"runs/{name}")
    machine.wander("post", "runs/before")
    (home / "hidden.jsonl").write_text('{"question": "1 + 2 =", "answer": "3"}\n')
    (home / "suite.toml").write_text(
        '[models.player]\nmodel = "scripted:tictactoe.players:careless"\n'
        '[[eval]]\nenvironment = "admin/tictactoe"\nmodel = "player"\nnum_examples = 2\n'
    )
    machine.wander("eval", "suite.toml", "--out", "runs/nightly")
    return machine


def fill_in(machine: Machine, name: str, example: str, run_id: str, board: str) -> str:
    """Return the example of a command with names that exist on the hub."""
    typed = re.sub(r"\bRUN_ID\b|(?<=[ ])RUN\b", run_id, example).replace("1f3a5c7e", board)
    typed = typed.replace("someone/new-env", "admin/reverse-text")
    typed = re.sub(r"\bcheck \.(?= |$)", "check ./my-env", typed)
    for command, names in STANDS_FOR.items():
        if name.startswith(command):
            for word, there in names.items():
                typed = typed.replace(word, there)
    if name == "auth token revoke":
        typed = typed.replace("wnd_Ab12Cd", machine.wander("auth", "token", "new", "old")["prefix"])
    if name == "auth key revoke":
        typed = typed.replace("1f0c2d3e", machine.wander("auth", "key", "list")[0]["fingerprint"])
    return f"{typed} --yes" if name in ASK and "--yes" not in typed else typed


def test_every_example_works(machine: Machine) -> None:
    run_id = machine.wander("runs", "show", "runs/before")["run_id"]
    board = machine.wander("leaderboard", "admin/tictactoe")["board"]
    found = [row for row in examples("wander") if row[0]]  # the examples of `wander` itself come again below
    assert len(found) > 100
    found.sort(key=lambda one: next((1 + n for n, start in enumerate(LATER) if one[0].startswith(start)), 0))
    failed, left_out, made = [], set[str](), list[Path]()
    with chat_endpoint(lambda messages: "<move>5</move>") as endpoint:
        for name, line in found:
            if reasons := {held for held in CANNOT if held in f"{line} {name}"}:
                left_out |= reasons
                continue
            typed = fill_in(machine, name, re.split(r" {2,}", line)[0], run_id, str(board))
            typed = typed.replace("http://127.0.0.1:8000/v1", endpoint.base_url)
            if name == "env uninstall":
                machine.wander("install", "admin/tictactoe")
            place = machine.home
            if name in ("new", "env fork"):  # they make a folder
                (place := machine.home / f"made-{len(made)}").mkdir()
                made.append(place)
            if " > " in typed:
                shell = ["bash", "-c", typed]
                options = {"cwd": place, "env": machine.environment, "capture_output": True}
                done = subprocess.run(shell, text=True, **options)
            else:
                done = machine.run(*shlex.split(typed), cwd=place)
            if done.returncode not in ((0, 1) if name.startswith(MAY_DIFFER) else (0,)):
                failed.append(f"{typed}\n  -> {done.returncode} {done.stderr.strip()[-400:]}")
    assert failed == [], "\n".join(failed)
    assert left_out == {*CANNOT}, "these reasons have no example any more"


HUB_CANNOT = {
    "wander-hub serve": "serves until it is stopped: every test of this module",
    "wander-hub work": "works until it is stopped: tests/hub/test_hub_work_command.py",
}
"""Examples of `wander-hub` that do not end, and what runs them."""
HUB_LATER = ("restore", "import", "user disable", "user enable", "user remove")


def test_every_example_for_operators_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, backups = tmp_path / "wander-hub-data", tmp_path / "backups"
    backups.mkdir()
    alone = {"WANDER_HUB_BUNDLED_PACKAGES": "false"}
    with live_hub(data, **alone):  # makes it
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDER_HUB_DATA", str(data))
    people = ("user add ada", "user add bob", "user add games")
    for line in people:
        assert CliRunner().invoke(app, line).exit_code == 0, line
    found = [(name, re.split(r" {2,}", line)[0]) for name, line in examples("wander-hub")]
    assert len(found) > 15
    found.sort(key=lambda one: next((1 + n for n, start in enumerate(HUB_LATER) if start in one[1]), 0))
    failed = []
    for name, line in found:
        if line.startswith(tuple(HUB_CANNOT)):
            continue
        if line == "wander-hub user add ada":
            line = line.replace("ada", "ben")  # she is there for the examples that name her
        typed, into = line.replace("/backups", str(backups)), data
        if name in ("restore", "import"):
            into = tmp_path / f"hub-{len(list(tmp_path.iterdir()))}"
            typed = re.sub("--data [a-z]+", "", typed)
            if name == "import":
                with live_hub(into, **alone):
                    pass
        done = CliRunner().invoke(app, shlex.split(typed)[1:], env={"WANDER_HUB_DATA": str(into)})
        if done.exit_code:
            failed.append(f"{typed}\n  -> {done.exit_code} {done.output.strip()[-400:]} {done.exception!r}")
    assert failed == [], "\n".join(failed)
