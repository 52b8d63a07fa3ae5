"""In how many processes `wander eval` plays, and `wander worker` for other machines."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Wander
from listening_worker import worker

SOLVER = ("-m", "scripted:say_env:solver")


@pytest.mark.full
def test_several_workers_give_the_same_run(wander: Wander, folder: Path) -> None:
    kept = []
    for words in (("--workers", "1"), ("--workers", "3"), ()):
        data = wander("eval", str(folder), *SOLVER, "-n", "8", *words, "--json").data
        summary = data["summary"]
        kept.append((summary["reward_mean"], summary["rollouts"], summary["failed"]))
    assert kept == [(1.0, 8, 0)] * 3


@pytest.mark.full
def test_workers_on_another_machine(wander: Wander, folder: Path, home: Path) -> None:
    (home / "token").write_text("a-token-of-the-tests\n")
    (home / "other").write_text("another-token-entirely\n")
    with worker(folder, "--token-file", str(home / "token"), "--workers", "2") as address:
        words = ("eval", str(folder), *SOLVER, "-n", "6", "--worker", address)
        result = wander(*words, "--worker-token-file", "token", "--workers", "2", "--json")
        refused = wander(*words, "--worker-token-file", "other")
        (home / "another").mkdir()
        for path in folder.iterdir():
            if path.is_file():
                (home / "another" / path.name).write_bytes(path.read_bytes())
        mistaken = wander(
            "eval", "./another", *SOLVER, "--worker", address, "--worker-token-file", "token", "-n", "2"
        )
        unknown = wander(*words)
    assert result.status == 0, result.err
    assert result.data["summary"]["reward_mean"] == 1.0
    settings = json.loads((Path(result.data["run_dir"]) / "command.json").read_text())["command"]
    assert settings["worker_addresses"] == [address]
    assert settings["worker_token_file"] == str(home / "token")
    assert mistaken.status != 0
    assert f"this worker serves the folder `{folder.name}`, not `another`" in mistaken.err
    for answer in (refused, unknown):
        assert answer.status == 4
        assert "refused the token" in answer.err
        assert "--worker-token-file" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "0"), "`auto` or a whole number (1 to 256)"),
        (("--workers", "many"), "`auto` or a whole number (1 to 256)"),
        (("--worker", "far:7100"), "not a worker's address"),
        (("--worker", "ray://far:1/many"), "`ray://far:1/many` does not end with a number"),
        (("--worker-token-file", "token"), "cannot read the token file"),
        (("--worker", "tcp://far:1", "--worker", "tcp://far:2", "--workers", "1"), "fewer than the 2"),
        (
            ("--worker", "tcp://far:1", "--pass-env", "HOME"),
            "`--pass-env` applies to workers on this machine",
        ),
        (("--set", "in_process=true", "--workers", "2"), "cannot be used with `in_process`"),
        (("--set", "in_process=true", "--set", "rollout_timeout=5"), "cannot be used with `in_process`"),
    ],
)
def test_impossible_worker_options_are_usage_errors(
    wander: Wander, folder: Path, words: tuple[str, ...], says: str
) -> None:
    result = wander("eval", str(folder), *SOLVER, *words)
    assert result.status == 2
    assert says in result.err


def test_a_rollout_over_its_time_limit_fails(wander: Wander, folder: Path) -> None:
    source = folder / "say_env.py"
    source.write_text(
        source.read_text()
        .replace("def right(", "import asyncio\n\nasync def right(")
        .replace(
            '    if completion[-1]["content"] == "break":',
            '    await asyncio.sleep(600 if completion[-1]["content"] == "3" else 0)\n'
            '    if completion[-1]["content"] == "break":',
        )
    )
    result = wander("eval", str(folder), *SOLVER, "--set", "rollout_timeout=3", "-c", "2", "--json")
    assert result.status == 6
    assert result.data["summary"]["failures"] == {"environment": 1}
    assert result.data["summary"]["rollouts"] == 8


def test_an_open_address_needs_a_token(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wander_client", "worker", str(folder), "--listen", "0.0.0.0:0"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "WANDER_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "a token is needed" in done.stderr


def test_an_unreachable_worker_is_a_network_error(wander: Wander, folder: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers here
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        answer = wander("eval", str(folder), *SOLVER, "-n", "2", "--worker", address, "--json")
    assert (answer.status, answer.json["error"]["retryable"]) == (5, True)
    assert f"no worker responds at `{address}`" in answer.json["error"]["message"]
