"""How fast an evaluation is played on Ray, beside the plain evaluator with as many calls at once.

    python benchmarks/ray_engine.py            three repetitions, interleaved (some minutes)
    python benchmarks/ray_engine.py --quick    one repetition of fewer rollouts

Tic-tac-toe over HTTP against an endpoint that takes 50 ms for a turn, 32 calls at once, in two shards on a
Ray that is started on this machine. Rates are by the record, from the first start of a rollout to the last
end, so what it takes to start Ray (told apart) is not in them; the seconds of processor time are those of all
processes, Ray's own included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import instant_endpoint
from wander.evals.store.folder import RunFolder

GAME = Path(__file__).parents[1] / "environments" / "tictactoe"
CALLS, DELAY, SHARDS = 32, 0.05, 2
ENGINES = {"plain": (), "ray": ("--engine", "ray", "--shards", str(SHARDS), "--ray-address", "local")}


@dataclass(frozen=True)
class Measured:
    """One evaluation."""

    rate: float
    """Rollouts a second while they played."""
    seconds: float
    """From the command's start to its end."""
    processor: float
    """Seconds of processor time of all its processes."""


def measure(engine: str, url: str, rollouts: int, place: Path) -> Measured:
    """Evaluate in a process of its own, and all that it starts."""
    mark = f"WANDER_BENCHMARK={place.name}"
    words = [
        str(GAME),
        "-m",
        "instant",
        "-b",
        url,
        "-n",
        str(rollouts),
        "-c",
        str(CALLS),
        "--max-tokens",
        "16",
    ]
    command = [sys.executable, "-m", "wander_client", "eval", *words, "--out", str(place), *ENGINES[engine]]
    variables = os.environ | {"WANDER_BENCHMARK": place.name, "OPENAI_API_KEY": "none"}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spent: dict[str, float] = {}
    while process.poll() is None:
        spent |= {pid: ticks for pid, ticks in processor_seconds(mark)}
        time.sleep(0.25)
    seconds = time.perf_counter() - began
    assert process.returncode == 0, process.returncode
    starts, ends = [], []
    for rollout in RunFolder.open(place).rollouts():
        starts.append(datetime.fromisoformat(rollout.started_at).timestamp())
        ends.append(starts[-1] + rollout.seconds)
    return Measured(rollouts / (max(ends) - min(starts)), seconds, sum(spent.values()))


def processor_seconds(mark: str) -> list[tuple[str, float]]:
    """Return the processor time so far of every process that has a variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found.append((folder.name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def main(repetitions: int, rollouts: int) -> None:
    """Print medians, and that of the ratios within each repetition."""
    found: dict[str, list[Measured]] = {engine: [] for engine in ENGINES}
    with instant_endpoint.running(DELAY) as url, tempfile.TemporaryDirectory() as place:
        for number in range(repetitions):
            for engine, measured in found.items():
                measured.append(measure(engine, url, rollouts, Path(place, f"{engine}-{number}")))
    print(
        f"{rollouts} rollouts, {CALLS} calls at once, {DELAY * 1000:.0f} ms each; "
        f"load {os.getloadavg()[0]:.0f}"
    )
    for engine, measured in found.items():
        rate, seconds, processor = (
            statistics.median(getattr(one, name) for one in measured)
            for name in ("rate", "seconds", "processor")
        )
        print(f"{engine:5}  {rate:6.1f} rollouts/s  {seconds:6.1f} s in all  {processor:6.1f} s of processor")
    ratios = [after.rate / before.rate for before, after in zip(found["plain"], found["ray"], strict=True)]
    print(
        f"ratio of the rates {statistics.median(ratios):.2f}, of {', '.join(f'{one:.2f}' for one in ratios)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition of fewer rollouts")
    quick = parser.parse_args().quick
    main(1 if quick else 3, 300 if quick else 1500)
