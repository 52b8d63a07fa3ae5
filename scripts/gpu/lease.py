"""Measures everything that one lease of a GPU machine has time for, in at most nine minutes.

    python scripts/gpu/lease.py --out OUT
    python scripts/gpu/lease.py --device cpu --out OUT       # a rehearsal with small sizes

The parts run one after the other, each in its own process with its own share of the time. Time that a part
leaves over goes to the next ones. A part that takes longer is stopped, and what it had measured by then is
kept. OUT gets a folder for each part, and `lease.md` and `lease.json`, which are written after every part.
The exit status is 1 if a part failed or was stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 540.0
"""Seconds for all parts. A lease lasts 15 minutes, and bringing the kit over takes some of them."""
LEAVING = 10.0
"""Seconds that a stopped part has to exit."""


@dataclass(frozen=True)
class Part:
    """A program of the lease."""

    name: str
    script: str
    share: float
    """Share of the time."""
    options: str
    rehearsal: str
    """Options with `--device cpu`."""
    goal: float | None = None
    """Largest ratio of our step's time to a bare TRL step's."""


SMOLLM2 = "--model smollm2 --at-once 256 --steps 2 --rounds 1"
SMALL_SMOLLM2 = (
    "--model smollm2 --layers 2 --at-once 8 --rows 8 --steps 1 --rounds 1 --threads 1 --max-tokens 6"
)
"""With all 30 layers, one step and its bare step took more than 200 s of a busy core."""
PARTS = (
    Part(
        "smoke",
        "scripts/gpu/smoke.py",
        0.28,
        "",
        "--games 8 --warm-up 8 --hidden 32 --layers 1 --only roll_out train_plain",
    ),
    Part(
        "tiny",
        "benchmarks/gpu.py",
        0.24,
        "--at-once 256 1024 --steps 3 --rounds 1",
        "--at-once 16 --rows 16 --steps 2 --rounds 1 --warm-up 8 --threads 1",
        goal=0.85,
    ),
    Part(
        "smollm2-lora",
        "benchmarks/gpu.py",
        0.24,
        f"{SMOLLM2} --lora-rank 8 --autocast",
        f"{SMALL_SMOLLM2} --lora-rank 8 --autocast",
        goal=1.0,
    ),
    Part(
        "smollm2", "benchmarks/gpu.py", 0.24, f"{SMOLLM2} --autocast", f"{SMALL_SMOLLM2} --autocast", goal=1.0
    ),
)


@dataclass
class Outcome:
    """Result of a part."""

    name: str
    status: int | None
    """Exit status; None if the part was stopped."""
    seconds: float
    goal: float | None
    report: dict[str, Any] | None
    """Content of the `smoke.json` or `gpu.json` that it wrote."""


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let a program exit, if it still runs."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(LEAVING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_part(part: Part, device: str, out: Path, seconds: float) -> Outcome:
    """Run a part for at most this time."""
    out.mkdir(parents=True, exist_ok=True)
    options = (part.rehearsal if device == "cpu" else part.options).split()
    command = [sys.executable, str(ROOT / part.script), "--device", device, *options, "--out", str(out)]
    began = time.monotonic()
    with (out / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also if this process is stopped
            stop(process)
    files = [file for name in ("smoke.json", "gpu.json") if (file := out / name).is_file()]
    report = json.loads(files[0].read_bytes()) if files else None
    return Outcome(part.name, status, time.monotonic() - began, part.goal, report)


def as_markdown(outcomes: list[Outcome], device: str) -> str:
    """Return the figures of all parts so far."""
    lines = ["# One lease", "", "| part | seconds | result |", "|---|---:|---|"]
    for outcome in outcomes:
        ended = {0: "finished", None: "stopped, because its time was over"}
        result = ended.get(outcome.status, f"failed with status {outcome.status}")
        lines.append(f"| {outcome.name} | {outcome.seconds:.0f} | {result} |")
    lines += [
        "",
        "| policy | games a step | games a second | tokens a second | step, s | bare TRL, s | ratio | goal |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for outcome in outcomes:
        report = outcome.report or {}
        for played in report.get("rollouts", []):
            size = played["at_once"]
            step, bare = (
                next((each for each in report[name] if each["at_once"] == size), None)
                for name in ("steps", "bare")
            )
            figures = [
                f"{played['games']:,.1f}",
                f"{played['tokens']:,.0f}",
                f"{step['seconds']['step']:.2f}" if step else "",
                f"{bare['seconds']['bare']:.2f}" if bare else "",
                f"{bare['ratio']:.2f}" if bare else "",
                f"{outcome.goal}",
            ]
            lines.append(f"| {outcome.name} | {size:,} | {' | '.join(figures)} |")
    faults = [fault for outcome in outcomes for fault in (outcome.report or {}).get("faults", [])]
    lines += ["", *(f"- out of bounds: {fault}" for fault in faults)]
    if device == "cpu":
        lines += ["A rehearsal on a CPU: nothing here was measured on a GPU."]
    return "\n".join(lines).rstrip() + "\n"


def measure(parts: list[Part], device: str, limit: float, out: Path) -> int:
    """Run these parts in at most `limit` seconds, and return the exit status."""
    outcomes: list[Outcome] = []
    ends = time.monotonic() + limit
    for number, part in enumerate(parts):
        share = part.share / sum(later.share for later in parts[number:])
        seconds = share * (ends - time.monotonic())
        print(f"{part.name}: at most {seconds:.0f} s", flush=True)
        outcomes.append(run_part(part, device, out / part.name, seconds - LEAVING))
        text = as_markdown(outcomes, device)
        (out / "lease.md").write_text(text, encoding="utf-8")
        data = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
        (out / "lease.json").write_text(data + "\n", encoding="utf-8")
    print(text)
    return int(any(outcome.status != 0 for outcome in outcomes))


def main(given: list[str] | None = None) -> int:
    """Run all parts, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="run only these")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    options = parser.parse_args(given)
    parts = [part for part in PARTS if not options.only or part.name in options.only]
    before = signal.signal(signal.SIGTERM, lambda *unused: sys.exit(128 + signal.SIGTERM))
    try:
        return measure(parts, options.device, options.limit, options.out.resolve())
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
