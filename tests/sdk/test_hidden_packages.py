"""What code of a model finds of the environment that it plays in: nothing, wherever it looks."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import venv

import pytest
from sandboxes import needs_sandbox
from wander.clients.scripted import ScriptedClient
from wander.sandbox import SandboxPolicy
from wander.types import Rollout
from wander.worker.host.environment import WorkerEnvironment

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

SECRET = "the-answer-is-" + "4711"
MODULE = f'''
from pathlib import Path
from wander import RLMEnv, Rubric

KEY = "{SECRET}"

def own(answer):
    return float((Path(__file__).parent / "answers.txt").read_text() == answer)

def load_environment():
    row = {{"question": "Look.", "context": "nothing", "answer": KEY}}
    return RLMEnv([row], rubric=Rubric([own]), sandbox="auto")
'''
SEARCH = """
import glob, importlib, os, subprocess, sys
found, opened = [], 0
def look(name, read):
    global opened
    try:
        said = read()
    except OSError:
        return
    opened += 1
    if b"the-answer-is-" + b"4711" in said:
        found.append(name)
def contents(path):
    with open(path, "rb") as file:
        return file.read(1 << 20)
for place in PLACES + [place for place in sys.path if os.path.isdir(place)]:
    for path in [one for below in ("/*", "/secret*/*", "/__pycache__/*") for one in glob.glob(place + below)]:
        if os.path.isfile(path):
            look(path, lambda: contents(path))
for process in glob.glob("/proc/[0-9]*"):
    for name in ("environ", "cmdline", "maps"):
        look(process + name, lambda: contents(process + "/" + name))
    for path in glob.glob(process + "/root" + PLACES[0] + "/*"):
        look(path, lambda: contents(path))
    for path in glob.glob(process + "/fd/*"):
        look(path, lambda: contents(path) if os.path.isfile(os.readlink(path)) else b"")
for name, value in os.environ.items():
    look(name, value.encode)
shell = subprocess.run("cat " + PLACES[0] + "/*.py " + PLACES[0] + "/*/*", shell=True, capture_output=True)
look("cat", lambda: shell.stdout)
try:
    look("import", lambda: repr(vars(importlib.import_module("secretive"))).encode())
except ImportError:
    pass
assert opened > 20, opened
FINAL(repr(found))
"""


def searching(*places: str) -> ScriptedClient:
    code = SEARCH.replace("PLACES", repr(list(places)))
    return ScriptedClient(lambda request: f"```repl\n{code}\n```" if request.turn == 0 else "FINAL(none)")


def require_hidden(rollout) -> None:
    assert rollout.failure is None
    assert rollout.info["rlm"]["final_answer"] == "[]", rollout.completion
    assert SECRET not in json.dumps(rollout.completion)
    assert rollout.reward == 1.0  # the environment reads its file


def has_landlock() -> bool:
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


@needs_sandbox
@pytest.mark.skipif(not has_landlock(), reason="the kernel has no Landlock")
async def test_code_in_a_sandboxed_worker_reads_nothing_of_its_folder(tmp_path):
    folder = tmp_path / "secretive"
    folder.mkdir()
    (folder / "secretive.py").write_text(MODULE)
    (folder / "answers.txt").write_text(SECRET)
    tmp_path.chmod(0o755)
    worker = await WorkerEnvironment.start(
        None, None, path=folder, log_path=tmp_path / "worker.log", sandbox=SandboxPolicy()
    )
    try:
        (example,) = await worker.examples("eval")
        require_hidden(await worker.rollout(searching(str(folder)), example))
    finally:
        await worker.close()


PLAY = """
import asyncio, sys
from wander.clients.scripted import ScriptedClient
from wander.loading import load_environment

async def main():
    env = load_environment("secretive")
    (example,) = env.dataset("eval").examples()
    code = sys.stdin.read()
    client = ScriptedClient(lambda request: code if request.turn == 0 else "FINAL(none)")
    print((await env.rollout(client, example)).model_dump_json())

asyncio.run(main())
"""


def test_code_in_a_sandbox_of_its_own_reads_nothing_of_the_installed_package(tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "secretive").mkdir()
    (site / "secretive" / "__init__.py").write_text(MODULE)
    (site / "secretive" / "answers.txt").write_text(SECRET)
    (site / "secretive_data.py").write_text(f"KEY = '{SECRET}'")
    (site / "plain.py").write_text("SEEN = True")
    information = site / "secretive-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Name: secretive\nVersion: 1.0\nRequires-Dist: wander-sdk>=0.1\n\n{SECRET}"
    )
    names = ("secretive/__init__.py", "secretive/answers.txt", "secretive_data.py")
    (information / "RECORD").write_text(
        "".join(f"{name},,\n" for name in (*names, f"{information.name}/METADATA"))
    )
    (site / "ours.pth").write_text("".join(f"{path}\n" for path in sys.path if path))
    code = f"```repl\nimport plain\n{SEARCH.replace('PLACES', repr([str(site)]))}\n```"
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run([python, "-c", PLAY], input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    require_hidden(Rollout.model_validate_json(done.stdout))
