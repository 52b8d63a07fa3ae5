"""Wander's evaluator: in this process or through a worker, with or without a run folder."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from stopwatch import arguments, measured, report
from wander import LocalEnvironment
from wander.clients.openai import OpenAIClient
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.handle import EnvironmentHandle
from wander.loading import load_path
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

ENVIRONMENT = Path(__file__).with_name("addition.py")


async def opened(worker: bool, n: int, turns: int, folder: Path) -> EnvironmentHandle:
    if not worker:
        return LocalEnvironment(load_path(ENVIRONMENT, n=n, turns=turns))
    return await WorkerEnvironment.start(
        None, None, path=ENVIRONMENT, arguments={"n": n, "turns": turns}, log_path=folder / "worker.log"
    )


async def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = await opened(given.worker, given.n, given.turns, folder)
        client = OpenAIClient("instant", given.url, "")
        pin = EnvironmentPin(name="addition", info=environment.info)
        await evaluate(environment, client, EvaluationPlan(num_examples=8), None, pin)
        plan = EvaluationPlan(concurrency=given.concurrency)
        with measured(given.n) as times:
            result = await evaluate(environment, client, plan, folder / "run" if given.save else None, pin)
        assert result.summary.rollouts == given.n
        assert result.summary.failed == 0
        await environment.close()
        await client.close()
        report(times)


asyncio.run(main())
