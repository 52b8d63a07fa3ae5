"""A sandboxed environment that ends its process: whose code did it is named, the others finish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sandboxes import confined, needs_groups, needs_sandbox
from wander import Rollout, ScriptedClient
from wander.evals.run.plan import EvaluationPlan
from wander.evals.run.runner import evaluate
from wander.wire import EnvironmentPin

pytestmark = needs_sandbox

BODY = '''
import asyncio, ctypes, os, resource, signal, time
from wander import MultiTurnEnv, Rubric

FINE = "pass"

class Env(MultiTurnEnv):
    """Runs what the row says, which the test wrote."""

    async def env_response(self, messages, state):
        exec(state["info"]["code"], globals())
        await asyncio.sleep(0)
        return [{"role": "user", "content": "go on"}]

def done(completion):
    return float(len(completion) > 1)

def load_environment(codes):
    rows = [{"question": "go", "info": {"code": code}} for code in codes]
    return Env(eval_dataset=rows, rubric=Rubric([done]), max_turns=2, name="mortal")
'''

FINE = "pass"
EAT = "taken = [bytearray(os.urandom(1 << 20) * 10) for _ in range(100)]"


async def evaluated(
    folder: Path, codes: list[str], *limits: str, concurrency: int, max_retries: int
) -> list[Rollout]:
    async with confined(folder, *limits, body=BODY, arguments={"codes": codes}) as environment:
        result = await evaluate(
            environment,
            ScriptedClient(lambda messages: "yes"),
            EvaluationPlan(concurrency=concurrency, max_retries=max_retries),
            None,
            EnvironmentPin(name="mortal", info=environment.info),
        )
    return sorted(result.rollouts, key=lambda each: int(each.example_id))


def ending(rollout: Rollout) -> tuple[Any, ...]:
    assert rollout.failure is not None
    failure = rollout.failure
    return failure.boundary, failure.type, failure.retryable


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os._exit(3)", "ended with status 3"),
        ("os.abort()", "was killed by SIGABRT"),
        pytest.param("ctypes.string_at(0)", "was killed by SIGSEGV", marks=pytest.mark.full),
        pytest.param("os.closerange(3, 1 << 10); os._exit(4)", "ended with status 4", marks=pytest.mark.full),
    ],
)
async def test_a_rollout_that_ends_the_process_fails_and_others_finish(
    tmp_path: Path, code: str, said: str
) -> None:
    first, culprit, *others = await evaluated(
        tmp_path, [FINE, code, FINE, FINE], concurrency=4, max_retries=2
    )
    assert ending(culprit) == ("environment", "ProcessEnded", False)
    assert culprit.failure is not None
    assert said in culprit.failure.message
    assert [each.reward for each in (first, *others)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "code",
    ["os.kill(os.getpid(), signal.SIGKILL)", pytest.param(EAT, marks=[needs_groups, pytest.mark.full])],
)
async def test_external_kills_are_blamed_on_no_rollout(tmp_path: Path, code: str) -> None:
    codes = [FINE, code, FINE, FINE]
    first, culprit, *others = await evaluated(tmp_path, codes, "memory=300M", concurrency=1, max_retries=0)
    assert ending(culprit) == ("environment", "WorkerLost", True)
    assert [each.reward for each in (first, *others)] == [1.0, 1.0, 1.0]


@pytest.mark.full
async def test_code_that_blocks_everything_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rollout_timeout": 1.0, "stall_seconds": 1.0}
    codes = [FINE, "time.sleep(10_000)"]
    async with confined(tmp_path, body=BODY, arguments={"codes": codes}, **options) as environment:
        example = (await environment.examples("eval"))[1]
        rollout = await environment.rollout(ScriptedClient(lambda messages: "yes"), example)
    assert rollout.failure is not None
    assert rollout.failure.type == "RolloutTimeout"
    assert "its code blocked the worker" in rollout.failure.message
    assert "<string>:1" in rollout.failure.message
