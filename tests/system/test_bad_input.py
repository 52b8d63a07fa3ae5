"""What goes wrong ends with a clear error, a hint, the documented exit status, and nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint
from live_hub import free_port

USAGE, NOT_FOUND, LOGIN, UNAVAILABLE, ALL_FAILED = 2, 3, 4, 5, 6

PLAYED = ["eval", "admin/tictactoe", "-n", "2", "-m"]
OPTIMAL = [*PLAYED, "scripted:tictactoe.players:optimal"]
TABLE: dict[str, tuple[int, list[str], str]] = {
    "an unknown environment": (NOT_FOUND, ["install", "admin/no-such-game"], "no-such-game"),
    "an unknown version": (NOT_FOUND, ["install", "admin/tictactoe@9.9.9"], "9.9.9"),
    "a missing model folder": (NOT_FOUND, [*PLAYED, "./no-model"], "no-model"),
    "a missing scripted model": (NOT_FOUND, [*PLAYED, "scripted:tictactoe.players:nobody"], "nobody"),
    "a missing run": (NOT_FOUND, ["post", "runs/none"], "none"),
    "a missing environment folder": (NOT_FOUND, ["publish", "./nothing"], "nothing"),
    "a folder that is no package": (USAGE, ["publish", "."], "pyproject.toml"),
    "an unknown option": (USAGE, ["eval", "admin/tictactoe", "--modle", "x"], "--modle"),
    "a bad environment argument": (USAGE, [*OPTIMAL, "-a", "num_groups=0"], "num_groups"),
}


@pytest.mark.full  # `tests/client` has the same errors within the process
@pytest.mark.parametrize("what", TABLE)
def test_bad_names_and_arguments_are_rejected(bundled, what):
    status, arguments, named = TABLE[what]
    assert named in bundled.refused(status, *arguments)
    assert not (bundled.home / "runs").exists()
    assert not list((bundled.home / "data").rglob("*.part"))


@pytest.mark.full
def test_a_wrong_token_is_rejected(machine, bundled, tmp_path):
    machine.wander("new", machine.home / "rhyme")
    wrong = {**machine.environment, "WANDER_TOKEN": "wnd_" + "x" * 46}
    assert "token" in machine.refused(LOGIN, "publish", "./rhyme", env=wrong)
    none = {name: value for name, value in machine.environment.items() if name != "WANDER_TOKEN"}
    assert "login" in machine.refused(LOGIN, "publish", "./rhyme", env=none)
    assert machine.run("wander", "env", "info", "admin/rhyme").returncode == NOT_FOUND


def test_an_unreachable_hub_is_named(machine):
    nobody = f"http://127.0.0.1:{free_port()}"
    assert nobody in machine.refused(UNAVAILABLE, "search", "--hub", nobody)


def test_a_server_that_is_not_a_hub_is_named(machine):
    with chat_endpoint(lambda messages: "x") as endpoint:
        said = machine.refused(UNAVAILABLE, "search", "--hub", endpoint.base_url.removesuffix("/v1"))
    assert endpoint.base_url.removesuffix("/v1") in said


@pytest.mark.full
def test_an_unreachable_endpoint_is_named(bundled, tmp_path):
    url = f"http://127.0.0.1:{free_port()}/v1"
    model = ["-m", "x", "-b", url, "-n", 2, "--out", tmp_path / "run"]
    said = bundled.refused(UNAVAILABLE, "eval", "admin/reverse-text", *model)
    assert url in said


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"<html>502 Bad Gateway</html>", UNAVAILABLE),
        (b'{"object": "list"}', UNAVAILABLE),
        # Those may be cut answers, so they are tried again and fail their rollouts.
        (b'{"choices": []}', ALL_FAILED),
        (b"", ALL_FAILED),
        (b"\xff\xfe\x00", ALL_FAILED),
    ],
    ids=["html", "another object", "no choices", "nothing", "bytes"],
)
def test_an_endpoint_with_invalid_responses_is_named(bundled, tmp_path, answer, status):
    with chat_endpoint(lambda messages: answer) as endpoint:
        model = ["-m", "x", "-b", endpoint.base_url, "-n", 2, "--out", tmp_path / "run"]
        said = bundled.refused(status, "eval", "admin/reverse-text", *model)
    assert "127.0.0.1" in said


def test_errors_are_json_if_requested(machine, bundled):
    done = machine.run("wander", "install", "admin/no-such-game", "--json")
    assert done.returncode == NOT_FOUND
    error = json.loads(done.stdout)["error"]
    assert error["code"]
    assert "no-such-game" in error["message"]
    assert error["hint"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB, where the machine lets us mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.full
def test_a_full_disk_loses_no_written_data(machine, bundled, small_disk):
    long_answer = f"<reversed_text>{'x' * 200_000}</reversed_text>"
    run = small_disk / "run"
    with chat_endpoint(lambda messages: long_answer) as endpoint:
        arguments = ["eval", "admin/reverse-text", "-m", "x", "-b", endpoint.base_url, "-n", 30, "-c", 1]
        said = machine.refused(1, *arguments, "--out", run)
    assert "space" in said
    lines = (run / "rollouts.jsonl").read_bytes().split(b"\n")
    assert len(lines) > 2
    assert all(json.loads(line)["example_id"] for line in lines[:-1] if line)


@pytest.mark.full
def test_an_install_on_a_full_disk_leaves_nothing(machine, bundled, small_disk):
    full = {**machine.environment, "WANDER_DATA_DIR": str(small_disk / "data"), "UV_LINK_MODE": "copy"}
    machine.refused(1, "install", "admin/tictactoe", env=full)
    assert machine.run("wander", "env", "list", "--json", env=full).returncode == 0
    assert "tictactoe" not in machine.run("wander", "env", "list", env=full).stdout
    assert sum(path.stat().st_size for path in Path(small_disk).rglob("*") if path.is_file()) < 1_000_000


def test_an_unwritable_storage_is_named(machine, bundled):
    if os.geteuid() == 0:
        place = machine.home / "a-file"
        place.write_text("in the way")
    else:
        place = Path("/")
    blocked = {**machine.environment, "WANDER_DATA_DIR": str(place)}
    said = machine.refused(1, "install", "admin/tictactoe", env=blocked)
    assert str(place) in said
