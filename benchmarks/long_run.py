"""One run of very many rollouts: playing, resuming, reporting, viewing, packing it to be posted, replaying.

    python benchmarks/long_run.py                       100,000 rollouts (some minutes of processor time)
    python benchmarks/long_run.py --rollouts 1000000

Each step is a process of its own, of which the seconds of processor time and the most memory are printed. The
environment has one turn and the player is scripted, so that what is measured is the evaluator and the record.
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
from wander.evals.stats.summary import summarise_run
from wander.evals.store.folder import RunFolder
from wander.wire import EnvironmentPin

STEPS = ("play 90 %", "resume", "summarise", "report", "view the last one", "pack to post", "replay")


def played(completion: Messages) -> float:
    """Score the answer."""
    return float(len(completion[-1]["content"]) % 2)


def environment(rollouts: int) -> LocalEnvironment:
    """Return an environment of so many examples, which holds none of them."""
    rows = ProceduralRows(lambda number: {"question": f"say {number}", "answer": str(number)}, rollouts)
    return LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([played])))


async def play(place: Path, rollouts: int, *, until: float) -> dict[str, float]:
    """Play, or go on with, a run until a part of it is done; tell when the first rollout could begin."""
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


def summarise(place: Path, rollouts: int) -> dict[str, float]:
    """Derive all aggregates anew."""
    folder = RunFolder.open(place)
    assert summarise_run(folder.manifest, folder.rollouts()).rollouts == rollouts
    return {}


def view(place: Path, rollouts: int) -> dict[str, float]:
    """Find the rollout of the last example, as `wander view --rollout` does."""
    with RunFolder.open(place).in_order() as lines:
        assert lines[rollouts - 1].example_id == str(rollouts - 1)
    return {}


def report(place: Path, rollouts: int) -> dict[str, float]:
    """Break a run down, as `wander runs report` does."""
    folder = RunFolder.open(place)
    assert break_down(folder.manifest, folder.rollouts()).summary.rollouts == rollouts
    return {}


def replay(place: Path, rollouts: int) -> dict[str, float]:
    """Play a run again from its record."""
    folder = RunFolder.open(place)
    found = asyncio.run(replay_run(environment(rollouts), folder.manifest, folder.rollouts()))
    assert found.same == rollouts, found
    return {}


def pack(place: Path, rollouts: int) -> dict[str, float]:
    """Make the parcel that is posted: lines in order, digests, chunks."""
    from wander_client.hub import posting
    from wander_client.hub.transfer import CHUNK_BYTES

    with posting.pack_run(RunFolder.open(place).manifest, posting.files_of(place)) as parcel:
        assert sum(part.count(b"\n") for part in parcel.parts(CHUNK_BYTES)) == rollouts
    return {}


def run_step(step: str, place: Path, rollouts: int) -> None:
    """Do one step in this process, and print what it took."""
    steps: dict[str, Callable[[], dict[str, float]]] = {
        "play 90 %": lambda: asyncio.run(play(place, rollouts, until=0.9)),
        "resume": lambda: asyncio.run(play(place, rollouts, until=2.0)),
        "summarise": lambda: summarise(place, rollouts),
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
    """Do all steps, each in a process of its own."""
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
            found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            more = "".join(f", {found[name]:.1f} s {name}" for name in found.keys() - {"seconds", "MB"})
            print(
                f"{step:18} {found['seconds']:7.1f} s of processor, {found['MB']:6.0f} MB{more}", flush=True
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
