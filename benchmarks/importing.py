"""Measures the processor time of an import, for the first time and after its dependencies were resolved once.

A hub is started, and three plain single-turn packages of the classic API with the same dependencies are
imported one after the other, with the user's uv cache. The processor time is that of the command and all of
its children. That of the hub is shown separately.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from workplace import Workplace

MODULE = """
import verifiers as vf


def load_environment(count: int = 20) -> vf.Environment:
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(count)]
    parser = vf.XMLParser(["think", "answer"], answer_field="answer")

    def right(completion, answer, parser) -> float:
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    rubric = vf.Rubric([right], parser=parser)
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows[:10], parser=parser, rubric=rubric)
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Add."
license = "MIT"
requires-python = ">=3.11"
dependencies = ["verifiers>=0.1.3"]
"""


def write_package(folder: Path) -> Path:
    """Write a plain package with the name of its folder."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name.replace('-', '_')}.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=folder.name))
    (folder / "README.md").write_text("# Add\n")
    return folder


def processor_seconds(process: int | None) -> float:
    """Return the processor seconds of a running process, or of all finished children of this process."""
    if process is None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Import, and print a line for each package."""
    with tempfile.TemporaryDirectory(prefix="wander-bench-") as name:
        os.environ["WANDER_CACHE_DIR"] = str(Path(name) / "cache")
        place = Workplace(Path(name) / "place")
        place.start_hub()
        hub = place.hub_process()
        try:
            for package in ("plain-adder", "other-adder", "third-adder"):
                folder = write_package(Path(name) / "packages" / package)
                clock, used, served = time.monotonic(), processor_seconds(None), processor_seconds(hub)
                place.type(f"wander env import path {folder}")
                took, used = time.monotonic() - clock, processor_seconds(None) - used
                served = processor_seconds(hub) - served
                print(f"{package}: processor {used:.1f} s, clock {took:.1f} s; of the hub {served:.1f} s")
        finally:
            place.stop_hub()


if __name__ == "__main__":
    main()
