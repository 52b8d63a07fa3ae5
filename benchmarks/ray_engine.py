"""How fast an evaluation is played on Ray, beside the plain evaluator with as many calls at once.

    python benchmarks/ray_engine.py            five pairs of each case (some minutes)

Tic-tac-toe, 32 calls at once, in two shards on a cluster that runs already: `http` asks an endpoint that
takes 200 ms for a turn, `scripted` answers at once, where the environment is. The pairs take turns in who is
first. A rate is that of the middle three fifths of the rollouts by when they ended, so neither the start of
the shards nor the last rollouts count. Seconds of processor time are those of all processes of the command
and of the cluster; what starting takes is told by an evaluation of two rollouts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import instant_endpoint
from wander.evals.store.folder import RunFolder

GAME = Path(__file__).parents[1] / "environments" / "tictactoe"
MARK = f"WANDER_BENCHMARK={os.getpid()}"
CALLS, DELAY, SHARDS = 32, 0.2, 2
SCRIPT = "def answer(request):\n    return 'The answer is 42.'\n"


@dataclass(frozen=True)
class Measured:
    """One evaluation."""

    rate: float
    """Rollouts a second while they played."""
    seconds: float
    """From the command's start to its end."""
    processor: float
    """Seconds of processor time of all its processes, and the cluster's meanwhile."""


def measure(words: list[str], place: Path) -> Measured:
    """Evaluate in a process of its own, and all that it starts."""
    command = [sys.executable, "-m", "wander_client", "eval", *words, "-c", str(CALLS), "--out", str(place)]
    before = dict(processor_seconds())
    began, spent = time.perf_counter(), dict(before)
    process = subprocess.Popen(
        command, env=marked(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        spent |= dict(processor_seconds())
        time.sleep(0.25)
    seconds = time.perf_counter() - began
    assert process.stderr is not None
    assert process.returncode in (0, 6), process.stderr.read()
    ends = [
        datetime.fromisoformat(rollout.started_at).timestamp() + rollout.seconds
        for rollout in RunFolder.open(place).rollouts()
    ]
    shutil.rmtree(place)
    return Measured(steady_rate(ends), seconds, sum(spent.values()) - sum(before.values()))


def steady_rate(ends: list[float]) -> float:
    """Return the rollouts a second in the middle."""
    ends = sorted(ends)
    first, last = len(ends) // 5, len(ends) * 4 // 5
    return (last - first) / (ends[last] - ends[first]) if last > first else 0.0


def marked() -> dict[str, str]:
    """Return the variables of processes whose processor time counts."""
    name, _, value = MARK.partition("=")
    return os.environ | {name: value, "OPENAI_API_KEY": "none"}


def processor_seconds() -> list[tuple[str, float]]:
    """Return the processor time so far of every process that counts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found.append((folder.name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@contextmanager
def cluster() -> Iterator[str]:
    """Run a cluster of one node for the length of a block; gives its address."""
    from ray.cluster_utils import Cluster

    os.environ.update(marked())
    facts = {"num_cpus": SHARDS, "include_dashboard": False, "object_store_memory": 100 << 20}
    found = Cluster(initialize_head=True, head_node_args=facts)
    try:
        yield found.address
    finally:
        found.shutdown()


def main(pairs: int) -> None:
    """Print medians, and that of the ratios within the pairs."""
    with (
        instant_endpoint.running(DELAY) as url,
        tempfile.TemporaryDirectory() as place,
        cluster() as address,
    ):
        game = shutil.copytree(GAME, Path(place, "tictactoe"))
        (game / "tictactoe" / "script.py").write_text(SCRIPT)
        on_ray = ["--engine", f"ray://{address}/{SHARDS}"]
        cases = {
            "http": ([str(game), "-m", "instant", "-b", url, "-n", "1000", "--max-tokens", "16"], 1),
            "scripted": ([str(game), "-m", "scripted:tictactoe.script:answer", "-n", "1000"], 10),
        }
        for case, (words, repeated) in cases.items():
            found: dict[str, list[Measured]] = {"plain": [], "ray": []}
            further = {"plain": [], "ray": on_ray}
            started = {
                engine: measure([*words, "-n", "2", *further[engine]], Path(place, f"{case}-{engine}"))
                for engine in found
            }
            for number in range(pairs):
                for engine in sorted(found, reverse=number % 2 == 1):
                    played = [*words, "-r", str(repeated), *further[engine]]
                    found[engine].append(measure(played, Path(place, f"{case}-{engine}")))
            report(case, 1000 * repeated, started, found)


def report(case: str, rollouts: int, started: dict[str, Measured], found: dict[str, list[Measured]]) -> None:
    """Print what one case came to."""
    print(f"{case}: {rollouts} rollouts, {CALLS} calls at once; load {os.getloadavg()[0]:.0f}")
    for engine, measured in found.items():
        rate, seconds, processor = (
            statistics.median(getattr(one, name) for one in measured)
            for name in ("rate", "seconds", "processor")
        )
        each = (processor - started[engine].processor) / rollouts * 1000
        print(
            f"{engine:5}  {rate:7.1f} rollouts/s  {seconds:6.1f} s in all  {processor:6.1f} s of processor, "
            f"of which {started[engine].processor:.1f} to start, {each:.2f} ms a rollout"
        )
    ratios = [after.rate / before.rate for before, after in zip(found["plain"], found["ray"], strict=True)]
    said = ", ".join(f"{one:.2f}" for one in ratios)
    print(f"ratio of the rates {statistics.median(ratios):.2f}, of {said}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    main(parser.parse_args().pairs)
