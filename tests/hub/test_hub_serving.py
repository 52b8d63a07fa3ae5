"""The server as a process: first start, second start, taken port, end; and what its wheel ships."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import make_wheel
from wander_hub import security

COMMAND = [sys.executable, "-m", "wander_hub.cli.main"]
HUB = Path(__file__).parents[2] / "hub"


@contextmanager
def served(
    data: Path, *words: str, log: list[str] | None = None, start: list[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a hub on a free port and give its process and address once it answers.

    `start` gets what it says until then, `log` the rest.
    """
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--data", str(data), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"WANDER_HUB_BUNDLED_PACKAGES": "false"},
        umask=0,
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        address = ""
        begun = start if start is not None else []
        assert process.stderr
        for line in process.stderr:
            begun.append(line)
            if match := re.search(r"listens on (http://\S+)", line):
                address = match[1]
                break
        assert address, "the hub ended before it listened"
        kept = log if log is not None else []
        drain = threading.Thread(target=lambda: kept.extend(process.stderr), daemon=True)
        drain.start()
        yield process, address
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        drain.join(10)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stderr.close()


def test_first_start_prints_a_token_once_and_ends_well(tmp_path):
    log: list[str] = []
    with served(tmp_path / "data", log=log) as (process, address):
        token = process.stdout.readline().strip()
        assert security.well_formed(token)
        answer = httpx.get(f"{address}/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
        assert answer.json()["user"] == "admin"
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
        asked = [httpx.get(f"{address}{path}").headers["x-request-id"] for path in ("/nobody", "/simple/")]
        asked.append(httpx.get(f"{address}/", headers={"Host": "other"}).headers["x-request-id"])
    assert process.returncode == 0
    line = re.compile(r"[\dT:.+-]{29} [A-Z]+ (\S+) .+\n")
    told = [line.fullmatch(one) for one in log]
    assert all(told), log
    assert [one[1] for one in told if "GET" in one[0]][-3:] == asked
    with served(tmp_path / "data") as (process, address):
        answer = httpx.get(f"{address}/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
        assert answer.json()["admin"] is True
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stdout.read() == ""


@pytest.mark.full
def test_the_data_folder_is_private_and_an_open_one_is_said(tmp_path):
    data, file = tmp_path / "data", tmp_path / "keys" / "token"
    for mode, warned in ((None, False), (0o755, True)):
        if mode is not None:
            data.chmod(mode)
        start: list[str] = []
        with served(data, "--token-file", str(file), start=start) as (_process, address):
            assert stat.S_IMODE(data.stat().st_mode) == (mode or 0o700)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            if mode is None:
                upload = {":action": "file_upload", "protocol_version": "1"}
                answer = httpx.post(
                    f"{address}/admin/legacy/",
                    auth=("admin", file.read_text().strip()),
                    data=upload,
                    files={"content": ("say_env-0.1.0-py3-none-any.whl", make_wheel(tmp_path).read_bytes())},
                )
                assert answer.status_code == 200, answer.text
            inside = [path for path in data.rglob("*") if not path.is_symlink()]
            assert any(path.is_file() and "objects" in path.parts for path in inside)
            modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in inside}
            assert modes == {(True, 0o700), (False, 0o600)}
        assert any(f"can read `{data}`" in line for line in start) == warned
        findings = json.loads(run("doctor", "--data", str(data), "--json").stdout)
        (found,) = [one for one in findings if one["check"] == "data folder"]
        assert (found["state"] == "ok") != warned


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["file", "broken database"])
def test_an_unusable_data_folder_is_said(tmp_path, kind):
    data = tmp_path / "data"
    if kind == "file":
        data.write_text("not a folder")
    else:
        data.mkdir()
        (data / "hub.db").write_text("not a database, but longer than the header of one" * 40)
    answer = run("serve", "--port", "0", "--data", str(data))
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr


def test_the_wheel_and_the_source_archive_ship_the_migrations_and_the_documentation(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=HUB, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        shipped = archive.namelist()
    assert "wander_hub/migrations/env.py" in shipped
    assert any(re.fullmatch(r"wander_hub/migrations/versions/0100_\w+\.py", name) for name in shipped)
    assert "wander_hub/web/templates/base.html" in shipped
    pages = {"wander_hub/web/docs/pages/menu.toml", "wander_hub/web/docs/pages/decisions/README.md"}
    assert pages <= {*shipped}
    assert {"wander_hub/web/static/wander.js", "wander_hub/web/static/styles/1-tokens.css"} <= {*shipped}
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = [*command[:-1], str(tmp_path / "again"), "--target", "wheel"]
    subprocess.run(again, cwd=unpacked, check=True, capture_output=True)
    with zipfile.ZipFile(next((tmp_path / "again").glob("*.whl"))) as archive:
        assert sorted(archive.namelist()) == sorted(shipped)


PARENT = """
import subprocess, sys, time
with open(sys.argv[1], "w") as log:
    hub = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log)
while hub.poll() is None and "listens on" not in open(sys.argv[1]).read():
    time.sleep(0.05)
"""


@pytest.mark.full
def test_the_hub_ends_with_the_process_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDER_HUB_BUNDLED_PACKAGES", "false")
    log = tmp_path / "log"
    serve = [*COMMAND, "serve", "--port", "0", "--data", str(tmp_path / "data"), "--exit-with-parent"]
    subprocess.run([sys.executable, "-c", PARENT, str(log), *serve], check=True, timeout=60)
    match = re.search(r"listens on (http://\S+)", log.read_text())
    assert match
    for _ in range(300):
        try:
            httpx.get(f"{match[1]}/health", timeout=5)
        except httpx.RemoteProtocolError:  # it ended before it answered
            continue
        except httpx.ConnectError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the hub outlived its parent")
