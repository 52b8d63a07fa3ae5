"""`wander eval --serve vllm`: start, health, a crash at the start, and the end in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from fake_vllm import install_fake_vllm
from wander_client.models.pool import ModelChoice
from wander_client.models.server import ServeChoice
from wander_ray.cluster import Versions
from wander_ray.models import ModelActor

PATIENCE = 120.0


@pytest.fixture
def pids(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake vLLM on the path of Python; the file names the processes of every server that was started."""
    file = home / "pids"
    monkeypatch.setenv("PYTHONPATH", str(install_fake_vllm(home / "fake")))
    monkeypatch.setenv("VLLM_FAKE_PIDS", str(file))
    yield file
    for pid in started(file):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def checkpoint(home: Path) -> Path:
    """What looks like a checkpoint's folder."""
    place = home / "my-checkpoint"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"weights")
    return place


def started(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_checkpoint_is_served_evaluated_and_released(
    wander: Wander, folder: Path, pids: Path, checkpoint: Path
) -> None:
    words = ("-m", str(checkpoint), "-n", "4", "--serve", "vllm", "--set", "serve_args=--dtype=half")
    result = wander("eval", str(folder), *words, "--json")
    assert result.status == 0, result.out
    assert result.data["summary"]["reward_mean"] == 1.0
    model = json.loads((Path(result.data["run_dir"]) / "run.json").read_text())["model"]
    assert (model["name"], model["kind"], model["base_url"]) == ("my-checkpoint", "OpenAIClient", None)
    assert len(model["weights_sha256"]) == 64
    assert model["details"]["server"] == {
        "engine": "vllm", "versions": {"vllm": "0.99.0"}, "arguments": ["--dtype=half"],
    }  # fmt: skip
    assert "loading" in (Path(result.data["run_dir"]) / "server.log").read_text()
    assert len(started(pids)) == 2
    until(lambda: not any(alive(pid) for pid in started(pids)), "server and engine end")


def test_the_log_path_is_printed_while_the_server_starts(
    wander: Wander, folder: Path, pids: Path, checkpoint: Path
) -> None:
    result = wander("eval", str(folder), "-m", str(checkpoint), "-n", "1", "--serve", "vllm")
    assert result.status == 0, result.err
    assert f"starting vllm for {checkpoint.name}; log: " in result.err
    assert "vllm is ready after" in result.err


@pytest.mark.full
def test_a_served_run_is_resumed_with_a_new_server(
    wander: Wander, folder: Path, pids: Path, checkpoint: Path, home: Path
) -> None:
    words = (
        "eval",
        str(folder),
        "-m",
        str(checkpoint),
        "-n",
        "4",
        "--serve",
        "vllm",
        "--out",
        str(home / "mine"),
    )
    first = wander(*words, "-c", "1", "--budget-tokens", "8", "--json")
    assert first.status == 6, first.out
    assert first.data["budget_spent"] == "the budget of 8 tokens is spent (8)"
    again = wander("eval", "--resume", str(home / "mine"), "--budget-tokens", "100", "--json")
    assert again.status == 0, again.out
    assert again.data["resumed"] == 2
    assert len(started(pids)) == 4


def test_a_server_crash_is_reported_with_the_end_of_its_log(
    wander: Wander, folder: Path, pids: Path, home: Path
) -> None:
    result = wander(
        "eval", str(folder), "-m", "m", "--serve", "vllm", "--set", "serve_args=--behave=crash", "--json"
    )
    error = result.json["error"]
    assert (result.status, error["code"]) == (1, "server_failed")
    assert error["message"] == "the server of `m` exited with status 3"
    assert error["detail"].endswith("RuntimeError: no memory for the weights")
    assert "serve_args" in error["hint"]
    assert not (home / "runs").exists()


@pytest.mark.full
def test_a_server_that_never_becomes_ready_is_stopped(wander: Wander, folder: Path, pids: Path) -> None:
    words = ("--serve", "vllm", "--set", "serve_args=--behave=sick", "--set", "serve_timeout=3")
    result = wander("eval", str(folder), "-m", "m", *words, "--json")
    assert result.status == 5
    assert "did not respond within 3 s" in result.json["error"]["message"]
    until(lambda: not any(alive(pid) for pid in started(pids)), "server and engine end")


@pytest.mark.parametrize(
    ("python", "said", "hint"),
    [
        (sys.executable, "requires vLLM, which", "~/vllm/bin/pip install vllm"),
        ("/none/python", "cannot run `/none/python`", "serve_python"),
    ],
)
def test_a_missing_vllm_is_reported_with_the_installation_command(
    python: str, said: str, hint: str, wander: Wander, folder: Path, home: Path
) -> None:
    result = wander(
        "eval", str(folder), "-m", "m", "--serve", "vllm", "--set", f"serve_python={python}", "--json"
    )
    assert result.status == 1
    assert said in result.json["error"]["message"]
    assert hint in result.json["error"]["hint"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "sglang"), "`--serve sglang` is unknown"),
        (("--serve", "vllm", "-b", "http://x/v1"), "`-b` names a running server"),
        (("--set", "serve_args=--x"), "`serve_args` requires `serve`"),
    ],
)
def test_contradictory_options_are_rejected(
    words: tuple[str, ...], said: str, wander: Wander, folder: Path
) -> None:
    result = wander("eval", str(folder), "-m", "m", *words, "--json")
    assert result.status == 2
    assert said in result.json["error"]["message"]


def test_a_scripted_model_cannot_be_served(wander: Wander, folder: Path, pids: Path) -> None:
    result = wander("eval", str(folder), "-m", "scripted:say_env:solver", "--serve", "vllm", "--json")
    assert "is code, not a model" in result.json["error"]["message"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("behave", "number"),
    [
        ("sick", signal.SIGINT),
        ("sick", signal.SIGKILL),
        ("hangs", signal.SIGINT),
        ("hangs", signal.SIGTERM),
        ("hangs", signal.SIGKILL),
    ],
)
def test_the_server_ends_however_the_command_ends(
    number: signal.Signals, behave: str, folder: Path, pids: Path, home: Path, checkpoint: Path
) -> None:
    """While it starts (`sick`) and while rollouts play (`hangs`)."""
    words = ["eval", str(folder), "-m", str(checkpoint), "-c", "1"]
    words += ["--serve", "vllm", "--set", f"serve_args=--behave={behave}"]
    command = subprocess.Popen(
        [sys.executable, "-m", "wander_client", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: len(started(pids)) == 2, "the server starts")
        if behave == "hangs":
            until(lambda: list((home / "runs").glob("*/rollouts.jsonl")), "rollouts play")
        os.kill(command.pid, number)
        command.wait(PATIENCE)
        until(lambda: not any(alive(pid) for pid in started(pids)), "server and engine end")
        assert command.returncode == (-9 if number == signal.SIGKILL else 130)
    finally:
        command.kill()
        command.wait()


def test_a_server_that_ignores_sigterm_is_killed(pids: Path) -> None:
    """As Ray ends an actor: it kills the actor together with its children."""
    guard = "import sys; from wander_client.models import server_guard as it; it.GRACE_SECONDS = 0.2;"
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--behave", "stubborn"]
    theirs, ours = os.pipe()
    command = [sys.executable, "-c", f"{guard} sys.exit(it.main(sys.argv[1:]))", str(theirs), "m", *server]
    child = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", "0"], pass_fds=(theirs,))
    os.close(theirs)
    try:
        until(lambda: len(started(pids)) == 2, "the server starts")
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    until(lambda: not any(alive(pid) for pid in started(pids)), "server and engine end")


async def test_closing_an_actor_stops_its_starting_server(pids: Path) -> None:
    serve = ServeChoice(arguments=("--behave=sick",))
    choice = ModelChoice("m", None, "KEY", None, None, cache=False, serve=serve)
    actor = ModelActor(choice, {}, Versions())
    asked = asyncio.create_task(actor.describe())
    await asyncio.to_thread(until, lambda: len(started(pids)) == 2, "the server starts")
    await actor.close()
    assert not any(alive(pid) for pid in started(pids))
    with pytest.raises(asyncio.CancelledError):
        await asked


@pytest.mark.full
def test_evaluations_of_one_model_in_a_suite_share_its_server(
    wander: Wander, folder: Path, pids: Path, checkpoint: Path, home: Path
) -> None:
    served = '[[eval]]\nenvironment = "./say-env"\nnum_examples = 2\nserve = "vllm"\nmodel = '
    shutil.copytree(checkpoint, home / "other")
    (home / "suite.toml").write_text(f'{served}"./my-checkpoint"\nseed = [0, 1]\n{served}"./other"\n')
    result = wander("eval", "suite.toml", "--json")
    assert result.status == 0, result.out
    assert len(started(pids)) == 4, "two servers, each of two processes"
    until(lambda: not any(alive(pid) for pid in started(pids)), "server and engine end")


@pytest.mark.parametrize(
    "word",
    [
        *("--trust-remote-code", "--trust-rem", "--config=options.yaml"),
        *(
            pytest.param(word, marks=pytest.mark.full)
            for word in (
                *("--trust_remote_code", "--trust-remote-code=true", "--Trust-Remote-Code"),
                "--trust=true",
            )
        ),
    ],
)
def test_a_server_does_not_run_the_code_of_a_model(word: str, wander: Wander, folder: Path) -> None:
    played = (
        "eval",
        str(folder),
        "-m",
        "acme/model",
        "-n",
        "1",
        "--serve",
        "vllm",
        "--set",
        f"serve_args={word}",
    )
    refused = wander(*played, "--json")
    assert refused.json["error"]["code"] == "usage"
    assert word in refused.json["error"]["message"]
