"""What `import wander` gives, as its users meet it: notebooks and a script on a machine with a real hub."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from live_hub import BIN
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "examples/notebooks"


def execute(name: str, machine, monkeypatch) -> list[str]:
    """Execute a notebook in the machine's home; return what its cells showed, a text each."""
    for variable, value in machine.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(machine.home)}})
    client.execute()
    return [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell) -> str:
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        texts += [output.get("text", ""), data.get("text/html", ""), data.get("text/plain", "")]
        texts.append(data.get("image/svg+xml", ""))
    return "\n".join(texts)


@pytest.mark.full
def test_the_evaluation_notebook_runs(machine, bundled, monkeypatch):
    cells = execute("evaluate", machine, monkeypatch)
    assert "<table>" in cells[1]
    assert "40 of 40" in cells[1]
    assert "clear" in cells[3] or "within chance" in cells[3]
    assert "<svg" in cells[4]
    assert "assistant |" in cells[5]


@pytest.mark.full
def test_the_publishing_notebook_runs(machine, monkeypatch):
    cells = execute("author", machine, monkeypatch)
    assert "<th style" in cells[4]
    assert "1.000 [" in cells[4]
    assert "scripted:add_up:adder" in cells[-1]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_training_notebook_runs(machine, bundled, monkeypatch):
    cells = execute("train", machine, monkeypatch)
    assert "in the last step" in cells[3]
    assert "<svg" in cells[4]
    assert "->" in cells[5]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_whole_loop_runs_as_a_script(machine, bundled):
    done = machine.run("python", ROOT / "examples/loop.py", "admin/tictactoe")
    assert done.returncode == 0, done.stderr
    difference, *posted = done.stdout.splitlines()
    assert "difference" in difference
    assert [line.startswith(machine.hub.url) for line in posted[:2]] == [True, True]
    assert all(line.endswith("complete") for line in posted[2:])
    assert len(posted) == 4


SCRIPT = """
import asyncio, json, threading, wander

env = wander.load("admin/reverse-text@0.1.0", progress=False)
optimal = "scripted:reverse_text.players:PLAYER"
run = env.evaluate_sync(optimal, n=4)
async def main():
    return (await env.evaluate(optimal, n=4)).reward
rewards = [run.reward, asyncio.run(main())]
thread = threading.Thread(target=lambda: rewards.append(env.evaluate_sync(optimal, n=4).reward))
thread.start()
thread.join()
digest = run.manifest.environment.wheel_sha256
print(json.dumps({"rewards": rewards, "digest": digest, "path": str(run.path)}))
"""


@pytest.mark.full  # tests/client/test_python_environment.py loads one by its name
def test_a_script_loads_hub_environments_by_name(machine, bundled, hub):
    player = "careful"
    done = subprocess.run(
        [str(BIN / "python"), "-W", "error", "-c", SCRIPT.replace("PLAYER", player)],
        cwd=machine.home, env=machine.environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["rewards"] == [1.0] * 3
    files = hub.get("/api/v1/environments/admin/reverse-text/versions/0.1.0").json()["files"]
    assert said["digest"] in [one["sha256"] for one in files]
    assert machine.wander("post", said["path"])["level"] == "complete"
    assert machine.wander("env", "list")
    shutil.rmtree(machine.home / "runs")
