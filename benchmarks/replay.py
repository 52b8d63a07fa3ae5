"""Compares the speed of replays with that of the original evaluations, with a model that costs nothing.

    python benchmarks/replay.py            tic-tac-toe on one core, three repetitions (under a minute)
    python benchmarks/replay.py --quick    fewer rollouts, one repetition

Each repetition evaluates into a folder, reads it back and replays it, in one process pinned to one core. The
endpoint is a separate process. It prints medians of rates, and of the ratios within each repetition. The
rates depend on the machine. Those by processor time are what an idle core would achieve.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import instant_endpoint
from wander import LocalEnvironment, ScriptedClient
from wander.clients.base import Client
from wander.clients.openai import OpenAIClient
from wander.evals.replay import replay_run
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.evals.store.folder import RunFolder
from wander.loading import load_path
from wander.wire import EnvironmentPin

GAME = Path(__file__).parents[1] / "environments" / "tictactoe"


@dataclass(frozen=True)
class Rates:
    """Rollouts per second, by the clock and by this process's processor time."""

    evaluated: float
    replayed: float
    evaluated_by_cpu: float
    replayed_by_cpu: float


async def measured(client: Client, examples: int, folder: Path) -> Rates:
    """Evaluate into a folder and replay it, including reading and writing the record."""
    environment = LocalEnvironment(load_path(GAME, num_examples=examples))
    pin = EnvironmentPin(name="tictactoe", path=str(GAME), info=environment.info)
    times = [(time.perf_counter(), time.process_time())]
    await evaluate(environment, client, EvaluationPlan(concurrency=64), folder, pin)
    times.append((time.perf_counter(), time.process_time()))
    record = RunFolder.open(folder)
    report = await replay_run(environment, record.manifest, record.rollouts())
    times.append((time.perf_counter(), time.process_time()))
    assert report.level == "replayed", report
    by_clock, by_cpu = zip(*times, strict=True)
    rates = [examples / (at - before) for each in (by_clock, by_cpu) for before, at in pairwise(each)]
    return Rates(*rates)


async def main(repetitions: int, examples: int) -> None:
    """Measure with a scripted player in this process, and over HTTP."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.path.insert(0, str(GAME))
    from tictactoe.players import careless

    models = {"a scripted player in the process": None, "an instant endpoint over HTTP": "endpoint"}
    found: dict[str, list[Rates]] = {name: [] for name in models}
    with instant_endpoint.running() as url, tempfile.TemporaryDirectory() as place:
        for number in range(repetitions):
            for name, over in models.items():
                client: Client = OpenAIClient("instant", url, "") if over else ScriptedClient(careless)
                run = Path(place) / f"{number}-{over}"
                found[name].append(await measured(client, examples, run))
                await client.close()
    for name, rates in found.items():
        told(f"{name}, by the clock", [(one.evaluated, one.replayed) for one in rates])
        told(f"{name}, by processor time", [(one.evaluated_by_cpu, one.replayed_by_cpu) for one in rates])


def told(name: str, rates: list[tuple[float, float]]) -> None:
    """Print medians."""
    evaluated, replayed = (statistics.median(each) for each in zip(*rates, strict=True))
    ratio = statistics.median(after / before for before, after in rates)
    print(f"{name}: evaluated {evaluated:,.0f}/s, replayed {replayed:,.0f}/s, ratio {ratio:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rollouts, one repetition")
    quick = parser.parse_args().quick
    asyncio.run(main(1 if quick else 3, 300 if quick else 2000))
