"""The package `harbor` reads what Wander writes, and accepts what Wander accepts. Needs a package index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import TASK_TOML, write_task
from wander.boxes.base import BoxLimits, BoxSpec
from wander.envs import SandboxEnv, run_commands
from wander.errors import DatasetError
from wander_integrations.harbor.export import export_tasks, write_folders
from wander_integrations.harbor.folder import read_task
from wander_integrations.harbor.task_file import parse_task_file

VERSION = "0.26.0"
MODELS = ("pydantic>=2.14", "toml", "pathspec", "packaging")
"""What the models of `harbor` import. The package itself requires 30 more."""
PROBE = Path(__file__).parent / "library_probes" / "harbor_probe.py"
Ask = Callable[[list[dict[str, str]]], list[dict[str, Any]]]

pytestmark = pytest.mark.full


def python_3_12() -> Path | None:
    """Return an interpreter that `harbor` runs on."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    found = [Path(path) for path in candidates if path]
    found += sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python3"))
    for python in [Path(sys.executable), *found]:
        check = "import sys; sys.exit(sys.version_info < (3, 12))"
        if subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def harbor(tmp_path_factory) -> Ask:
    """Provide a function that asks the package's own models about texts and folders."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    base = python_3_12()
    if base is None:
        pytest.skip("harbor needs Python 3.12")
    folder = tmp_path_factory.mktemp("harbor")
    python = folder / "venv" / "bin" / "python"
    install = [uv, "pip", "install", "-q", "--python", str(python)]
    subprocess.run([uv, "venv", "-q", "--python", str(base), str(folder / "venv")], check=True)
    for words in (["--no-deps", f"harbor=={VERSION}"], MODELS):
        done = subprocess.run([*install, *words], capture_output=True, text=True)
        if done.returncode and "lookup address" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr

    def ask(requests: list[dict[str, str]]) -> list[dict[str, Any]]:
        lines = "\n".join(map(json.dumps, requests))
        done = subprocess.run([python, PROBE], input=lines, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


class Greet(SandboxEnv):
    async def setup_box(self, box, state):
        await box.upload({"/data/names.txt": state["example"].answer})

    def gold(self, example):
        return run_commands(f"echo {example.answer} > out.txt")

    def harbor_tests(self, example):
        return {"test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n", "data/x.bin": b"\0\1"}


def test_exported_tasks_are_read(harbor, tmp_path):
    box = BoxSpec(
        image="debian:12",
        working_folder="/app",
        state_paths=["/app", "/srv"],
        environment={"A B": 'quoted "text"\n', "C": "ö"},
        limits=BoxLimits(memory_mb=512, disk_mb=100),
    )
    rows = [
        {"question": f'Say "{name}".\nThen stop.', "answer": name, "example_id": f"x/{name}"}
        for name in ("ada", "bo.2")
    ]
    env = Greet(eval_dataset=rows, box=box, name="greet", summary='Greets "people".', timeout_seconds=60)
    write_folders(export_tasks(env, organization="acme"), tmp_path)
    write_folders(
        export_tasks(
            Greet(eval_dataset=rows[:1], box=box.model_copy(update={"allowed_hosts": ["pypi.org"]})),
            organization="acme",
        ),
        tmp_path / "hosts",
    )
    folders = [tmp_path / "ada", tmp_path / "bo.2", tmp_path / "hosts" / "ada"]
    read = harbor([{"folder": str(folder)} for folder in folders])
    assert all(answer["ok"] for answer in read), read
    assert [answer["name"] for answer in read] == ["acme/ada", "acme/bo.2", "acme/ada"]
    assert read[0]["instruction"] == 'Say "ada".\nThen stop.' == read_task(folders[0]).instruction
    settings = harbor([{"toml": (folders[0] / "task.toml").read_text()}])[0]["settings"]
    assert settings["environment"]["env"] == box.environment
    assert settings["environment"]["workdir"] == "/app"
    assert settings["agent"]["timeout_sec"] == 60.0
    assert settings["metadata"]["wander"]["state_paths"] == ["/srv"]


TOML = TASK_TOML.format(name="hello")
BOTH_READ = [
    "",
    TOML,
    'version = "1.0"\n[environment]\nmemory = "1.5G"\nstorage = "100M"\nallow_internet = false\n',
    TOML + 'healthcheck = {command = "true"}\ncpus = 2\ntpu = {type = "v6e", topology = "2x4"}\n',
    TOML + 'mcp_servers = [{name = "a", command = "x", transport = "stdio"}]\nos = "LINUX"\n',
    'artifacts = ["/a", {source = "/b", service = "db"}]\n[verifier.environment]\ndocker_image = "a:1"\n',
    '[[steps]]\nname = "one"\nmin_reward = {a = 0.5}\n[[steps]]\nname = "zwei ö"\nmin_reward = 1\n',
    '[[verifier.collect]]\ncommand = "x"\nservice = "db"\nuser = 5\n[agent]\nuser = "ada"\n',
]
BOTH_REFUSE = [
    '[task]\nname = "no-organization"\n',
    '[task]\nversion = "1"\n',
    '[environment]\nmemory = "big"\n',
    '[environment]\nnetwork_mode = "sometimes"\n',
    '[environment]\nallowed_hosts = ["a.org"]\n',
    '[environment]\ntpu = {type = "v6e", topology = "2"}\n',
    "[environment]\ncpus = inf\n",
    '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n',
    'artifacts = ["../a"]\n',
    'artifacts = [{source = "b", service = "db"}]\n',
    '[[steps]]\nname = "a"\n[[steps]]\nname = "A"\n',
    '[[steps]]\nname = "a."\n',
    "[[verifier.collect]]\ntimeout_sec = 5\n",
    "[agent]\ntimeout_sec = 'soon'\n",
]


def test_harbor_and_wander_accept_and_reject_the_same_settings(harbor):
    texts = [*BOTH_READ, *BOTH_REFUSE]
    theirs = [answer["ok"] for answer in harbor([{"toml": text} for text in texts])]
    assert theirs == [True] * len(BOTH_READ) + [False] * len(BOTH_REFUSE)
    for text in BOTH_READ:
        parse_task_file(text.encode(), "task.toml")
    for text in BOTH_REFUSE:
        with pytest.raises(DatasetError):
            parse_task_file(text.encode(), "task.toml")


def test_defaults_match_harbor(harbor):
    (theirs,) = harbor([{"toml": ""}])
    ours = parse_task_file(b"", "task.toml").model_dump(mode="json")
    theirs["settings"]["steps"] = []
    # An absent network mode is `public`, and Wander has to know that it is absent.
    assert theirs["settings"]["environment"].pop("network_mode") == "public"
    assert ours["environment"].pop("network_mode") is None
    assert ours == theirs["settings"]


def test_task_folders_are_read_equally(harbor, tmp_path):
    folder = write_task(tmp_path / "hello", {"instruction.md": "# canary\n\nDo it.\n"})
    (theirs,) = harbor([{"folder": str(folder)}])
    ours = read_task(folder)
    assert (theirs["name"], theirs["instruction"]) == (ours.name, ours.instruction)
