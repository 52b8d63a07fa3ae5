"""Compares the speed of an evaluation on Ray with the plain evaluator at the same concurrency.

    python benchmarks/ray_engine.py            five pairs of each case (some minutes)

It plays tic-tac-toe with 32 concurrent calls, in two shards on a running cluster. `http` calls an endpoint
that takes 200 ms per turn. `scripted` answers immediately in the process of the environment. The engines
alternate in who comes first. The rate is that of the middle three fifths of the rollouts by end time, so
neither the start of the shards nor the last rollouts count. Processor seconds include all processes of the
command and of the cluster. The cost of starting is measured with an evaluation of two rollouts.
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
    """Measurement of one evaluation."""

    rate: float
    """Rollouts per second while playing."""
    seconds: float
    """Seconds from start to end of the command."""
    processor: float
    """Processor seconds of all its processes, and of the cluster in that time."""


def measure(words: list[str], place: Path) -> Measured:
    """Run an evaluation in a separate process, and measure everything that it starts."""
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
    """Return the rollouts per second in the middle."""
    ends = sorted(ends)
    first, last = len(ends) // 5, len(ends) * 4 // 5
    return (last - first) / (ends[last] - ends[first]) if last > first else 0.0


def marked() -> dict[str, str]:
    """Return the variables that mark processes whose processor time counts."""
    name, _, value = MARK.partition("=")
    return os.environ | {name: value, "OPENAI_API_KEY": "none"}


def processor_seconds() -> list[tuple[str, float]]:
    """Return the processor time so far of every marked process."""
    times = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                times.append((folder.name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return times


@contextmanager
def cluster() -> Iterator[str]:
    """Run a cluster of one node for the duration of a block. Yields its address."""
    from ray.cluster_utils import Cluster

    os.environ.update(marked())
    facts = {"num_cpus": SHARDS, "include_dashboard": False, "object_store_memory": 100 << 20}
    ray_cluster = Cluster(initialize_head=True, head_node_args=facts)
    try:
        yield ray_cluster.address
    finally:
        ray_cluster.shutdown()


def main(pairs: int) -> None:
    """Print the medians, and the median ratio within the pairs."""
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
    """Print the result of a case."""
    print(f"{case}: {rollouts} rollouts, {CALLS} concurrent calls; load {os.getloadavg()[0]:.0f}")
    for engine, measured in found.items():
        rate, seconds, processor = (
            statistics.median(getattr(one, name) for one in measured)
            for name in ("rate", "seconds", "processor")
        )
        each = (processor - started[engine].processor) / rollouts * 1000
        print(
            f"{engine:5}  {rate:7.1f} rollouts/s  {seconds:6.1f} s in all  {processor:6.1f} s of processor, "
            f"including {started[engine].processor:.1f} to start, {each:.2f} ms a rollout"
        )
    ratios = [after.rate / before.rate for before, after in zip(found["plain"], found["ray"], strict=True)]
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio of the rates {statistics.median(ratios):.2f}, of {listed}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    main(parser.parse_args().pairs)
