"""Measures the cost of the sandbox for starting a worker and for a rollout of two turns.

    .venv/bin/python benchmarks/sandbox_overhead.py

Both modes are measured alternately in one run, so that a busy machine slows both. Read the differences, not
the times.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from wander import ScriptedClient
from wander.sandbox import SandboxPolicy
from wander.worker.host.environment import WorkerEnvironment

BODY = """
from wander import MultiTurnEnv, Rubric

class Echo(MultiTurnEnv):
    async def env_response(self, messages, state):
        return [{"role": "user", "content": messages[-1]["content"]}]

def load_environment():
    return Echo(eval_dataset=[{"question": "go"}], rubric=Rubric(), max_turns=2, name="echo")
"""


def written(folder: Path) -> Path:
    """Write the environment's module."""
    module = folder / "echo_environment.py"
    module.write_text(BODY)
    return module


async def measured(module: Path, policy: SandboxPolicy | None, rollouts: int) -> tuple[float, float, float]:
    """Return seconds to start, median milliseconds per rollout, and rollouts per second at concurrency 64."""
    begun = time.perf_counter()
    environment = await WorkerEnvironment.start(
        None, None, path=module, log_path=module.with_suffix(".log"), sandbox=policy
    )
    started = time.perf_counter() - begun
    try:
        (example,) = await environment.examples("eval")
        client = ScriptedClient(lambda request: "x" * 1000)
        times = []
        for index in range(rollouts):
            begun = time.perf_counter()
            await environment.rollout(client, example, index=index)
            times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        for first in range(0, rollouts, 64):
            indices = range(first, min(first + 64, rollouts))
            await asyncio.gather(
                *(
                    environment.rollout(client, example, index=index, rollout_id=f"r{index}")
                    for index in indices
                )
            )
        rate = rollouts / (time.perf_counter() - begun)
        return started, statistics.median(times) * 1000, rate
    finally:
        await environment.close()


async def main() -> None:
    """Measure alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rollouts", type=int, default=256)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        module = written(Path(folder))
        found: dict[str, list[tuple[float, float, float]]] = {"plain": [], "sandbox": []}
        for _ in range(given.rounds):
            for name, policy in (("plain", None), ("sandbox", SandboxPolicy())):
                found[name].append(await measured(module, policy, given.rollouts))
    print(f"{'':<10}{'start, s':>12}{'rollout, ms':>14}{'rollouts/s':>12}")
    for name, rows in found.items():
        start, each, rate = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:<10}{start:>12.3f}{each:>14.2f}{rate:>12.0f}")


if __name__ == "__main__":
    asyncio.run(main())
