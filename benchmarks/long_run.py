"""Measures one run with very many rollouts: playing, resuming, reporting, viewing, packing for a post,
replaying.

    python benchmarks/long_run.py                       100,000 rollouts (some minutes of processor time)
    python benchmarks/long_run.py --rollouts 1000000

Each step is a separate process; its processor seconds and peak memory are printed. The environment has
one turn and the player is scripted, so that only the evaluator and the record are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wander import LocalEnvironment, Messages, ProceduralRows, Rubric, ScriptedClient, SingleTurnEnv
from wander.evals.replay import replay_run
from wander.evals.run.plan import EvaluationPlan
from wander.evals.run.runner import Progress, evaluate
from wander.evals.run.stopping import StopRequest
from wander.evals.stats.breakdown import break_down
from wander.evals.stats.summary import summarize_run
from wander.evals.store.folder import RunFolder
from wander.wire import EnvironmentPin

STEPS = ("play 90%", "resume", "summarize", "report", "view the last one", "pack to post", "replay")


def played(completion: Messages) -> float:
    """Score the answer."""
    return float(len(completion[-1]["content"]) % 2)


def environment(rollouts: int) -> LocalEnvironment:
    """Return an environment with this number of examples, which keeps none of them in memory."""
    rows = ProceduralRows(lambda number: {"question": f"say {number}", "answer": str(number)}, rollouts)
    return LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([played])))


async def play(place: Path, rollouts: int, *, until: float) -> dict[str, float]:
    """Play or resume a run up to a share of it. Returns when the first rollout could start."""
    env, stop, first = environment(rollouts), StopRequest(), 0.0
    began = time.process_time()

    def told(progress: Progress) -> None:
        nonlocal first
        first = first or time.process_time() - began
        if progress.done >= until * rollouts:
            stop.requested.set()

    client = ScriptedClient(lambda request: request.messages[-1]["content"])
    pin = EnvironmentPin(name="long", info=env.info)
    plan = EvaluationPlan(concurrency=64)
    resume = (place / "run.json").exists()
    await evaluate(env, client, plan, place, pin, resume=resume, on_progress=told, stop=stop)
    return {"until the first rollout": first}


def summarize(place: Path, rollouts: int) -> dict[str, float]:
    """Compute all aggregates again."""
    folder = RunFolder.open(place)
    assert summarize_run(folder.manifest, folder.rollouts()).rollouts == rollouts
    return {}


def view(place: Path, rollouts: int) -> dict[str, float]:
    """Find the rollout of the last example, like `wander view --rollout`."""
    with RunFolder.open(place).in_order() as lines:
        assert lines[rollouts - 1].example_id == str(rollouts - 1)
    return {}


def report(place: Path, rollouts: int) -> dict[str, float]:
    """Break down a run, like `wander runs report`."""
    folder = RunFolder.open(place)
    assert break_down(folder.manifest, folder.rollouts()).summary.rollouts == rollouts
    return {}


def replay(place: Path, rollouts: int) -> dict[str, float]:
    """Replay a run from its record."""
    folder = RunFolder.open(place)
    report = asyncio.run(replay_run(environment(rollouts), folder.manifest, folder.rollouts()))
    assert report.same == rollouts, report
    return {}


def pack(place: Path, rollouts: int) -> dict[str, float]:
    """Create the parcel for a post: lines in order, digests, chunks."""
    from wander_client.hub import posting
    from wander_client.hub.transfer import CHUNK_BYTES

    with posting.pack_run(RunFolder.open(place).manifest, posting.files_of(place)) as parcel:
        assert sum(part.count(b"\n") for part in parcel.parts(CHUNK_BYTES)) == rollouts
    return {}


def run_step(step: str, place: Path, rollouts: int) -> None:
    """Run a step in this process, and print its cost."""
    steps: dict[str, Callable[[], dict[str, float]]] = {
        "play 90%": lambda: asyncio.run(play(place, rollouts, until=0.9)),
        "resume": lambda: asyncio.run(play(place, rollouts, until=2.0)),
        "summarize": lambda: summarize(place, rollouts),
        "view the last one": lambda: view(place, rollouts),
        "report": lambda: report(place, rollouts),
        "pack to post": lambda: pack(place, rollouts),
        "replay": lambda: replay(place, rollouts),
    }
    began = time.process_time()
    more = steps[step]()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.process_time() - began, "MB": megabytes, **more}))


def main(rollouts: int) -> None:
    """Run all steps, each in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run")
        for step in STEPS:
            words = [
                sys.executable,
                __file__,
                "--step",
                step,
                "--place",
                str(place),
                "--rollouts",
                str(rollouts),
            ]
            figures = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            more = "".join(f", {figures[name]:.1f} s {name}" for name in figures.keys() - {"seconds", "MB"})
            print(
                f"{step:18} {figures['seconds']:7.1f} s of processor, {figures['MB']:6.0f} MB{more}",
                flush=True,
            )
        size = sum(path.stat().st_size for path in place.iterdir())
        print(f"{rollouts:,} rollouts, {size / 1e6:.0f} MB on the disk")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step is None:
        main(given.rollouts)
    else:
        run_step(given.step, given.place, given.rollouts)
