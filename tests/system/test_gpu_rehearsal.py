"""The GPU kit from packing to the second slice, on a CPU, with every size cut down."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from gpu_scripts import gpu_script
from package_mirror import build_mirror

kit, pack = gpu_script("kit"), gpu_script("pack")
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
LACKING = "docstring-parser"
SMALL = (
    "phases.teacher.environment.arguments={num_examples=24}",
    "phases.teacher.rollouts.examples=24",
    "phases.new.tiny={hidden=32,layers=1,vocabulary=330}",
    "phases.warm-up.batch.rows=4",
    "phases.warm-up.schedule={steps=2,warmup_steps=0}",
    *("batch.rollouts=8", "batch.group_size=4", "batch.rows_at_once=8"),
    *("sampling.max_tokens=6", "evaluation.every=100000"),
    "phases.rl.schedule.steps=100000",
)


class Machine(NamedTuple):
    """A folder with the kit, and the loads that were carried there."""

    kit: Path
    carried: Path

    def command(self, *words: str) -> list[str]:
        load = self.carried / "load-1"
        place = ["--kit", str(self.kit), "--device", "cpu"]
        return [sys.executable, str(load / "kit.py"), words[0], *place, *words[1:]]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Pack for this Python as if it lacked a package, in loads of 1 MiB, and carry them elsewhere."""
    folder = tmp_path_factory.mktemp("gpu")
    target = folder / "target.toml"
    target.write_text(re.sub(rf'(?m)^"{LACKING}".*\n', "", kit.describe()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", build_mirror(folder / "mirror", [LACKING]))
        patch.setattr(pack, "wanted", lambda: [f"{LACKING}>=0.16"])
        options = ["--target", str(target), "--out", str(folder / "packed"), "--cache", str(folder / "cache")]
        assert pack.main([*options, "--no-weights", "--most", "1"]) == 0
    shutil.copytree(folder / "packed", folder / "carried")
    return Machine(folder / "kit", folder / "carried")


def test_loads_install_without_an_index_and_missing_ones_are_named(machine: Machine) -> None:
    loads = sorted(path.name for path in machine.carried.glob("load-*"))
    assert len(loads) >= 2
    assert all(path.stat().st_size <= 1 << 20 for path in machine.carried.glob("*/load-*.tar"))
    first = machine.run("run", "--loads", str(machine.carried / loads[-1]), "--", "wander", "--version")
    assert first.returncode == 2
    assert "number 1" in first.stderr
    for load in loads[:-1]:
        taken = machine.run("take", "--loads", str(machine.carried / load))
        assert taken.returncode == 0, taken.stderr
    where = (
        "import wander as w, docstring_parser as d, tictactoe as t; print(w.__file__, d.__file__, t.__file__)"
    )
    done = machine.run("run", "--", "python", "-c", where)
    assert done.returncode == 0, done.stderr
    assert all(word.startswith(str(machine.kit / "venv")) for word in done.stdout.split())
    again = time.monotonic()
    assert machine.run("run", "--", "python", "-c", "print(1)").stdout == "1\n"
    assert time.monotonic() - again < 60, "it is installed once"


@pytest.mark.slow
def test_smoke_tries_every_item_and_writes_a_report(machine: Machine, tmp_path: Path) -> None:
    loads = [word for load in sorted(machine.carried.glob("load-*")) for word in ("--loads", str(load))]
    sizes = ["--games", "8", "--warm-up", "6", "--hidden", "32", "--layers", "1"]
    done = machine.run("smoke", *loads, "--out", str(tmp_path), *sizes)
    report = json.loads((tmp_path / "smoke.json").read_bytes())
    assert [item["name"] for item in report["items"]] == [
        *("fine-tuning", "numbers", "rollouts", "training"),
        *("steps played ahead", "tool calls", "self-play"),
        *("adapters, KL, autocast, checkpointed gradients", "checkpoint and resumption", "larger batch"),
    ], done.stderr
    assert [item["error"] for item in report["items"]] == [None] * 10
    # So small a policy may win nothing in its few games, call no tool, and then learns nothing.
    assert [fault for fault in report["faults"] if "last step" not in fault and "nan" not in fault] == []
    assert "games a second" in done.stdout


def stop_after(machine: Machine, steps: int, metrics: Path, *words: str) -> str:
    """Play a slice until so many steps are done; return what it said after SIGTERM."""
    given = [word for each in SMALL for word in ("--set", each)]
    command = machine.command("experiment", "tictactoe", *words, "--slice", "800", "--games", "2", *given)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and (not metrics.is_file() or len(metrics.read_text().splitlines()) < steps):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 75, said
    return said


@pytest.mark.slow
def test_the_second_slice_resumes_the_first(machine: Machine, tmp_path: Path) -> None:
    loads = [word for load in sorted(machine.carried.glob("load-*")) for word in ("--loads", str(load))]
    run = machine.kit / "runs/tictactoe-tiny"
    metrics = run / "seed-0/training/4-rl/metrics.jsonl"
    said = stop_after(machine, 2, metrics, "--first", "--out", str(tmp_path / "one"), *loads)
    assert "there is more to do" in said
    first = metrics.read_text().splitlines()
    files = [path for path in (tmp_path / "one").iterdir() if path.is_file()]
    assert len(files) <= 8
    assert all(path.stat().st_size < 16 << 20 for path in files)
    shutil.rmtree(run)  # the machine forgets

    other = machine.run("experiment", "tictactoe", "--back", str(tmp_path / "one"), "--seeds", "1")
    assert other.returncode == 2
    assert "is a slice of something else" in other.stderr
    assert not run.exists()

    stop_after(
        machine, len(first) + 2, metrics, "--back", str(tmp_path / "one"), "--out", str(tmp_path / "two")
    )
    second = metrics.read_text().splitlines()
    assert second[: len(first)] == first, "no step was played again"
    assert [json.loads(line)["step"] for line in second] == list(range(1, len(second) + 1))
    state = json.loads((tmp_path / "two/state.json").read_bytes())
    assert state["slice"] == 2
    assert not (run / "done.json").exists(), "training is not done"
