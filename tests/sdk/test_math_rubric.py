"""Mathematical answers count by their meaning, and no expression can hang or kill the rubric."""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib.util import find_spec

import pytest
from wander import ScriptedClient, SingleTurnEnv
from wander.errors import MissingExtra, RubricError
from wander.rubrics import math as math_rubric
from wander.rubrics.math import MathProcesses, MathRubric

pytestmark = pytest.mark.skipif(find_spec("math_verify") is None, reason="could not import 'math_verify'")


@pytest.fixture
async def processes():
    made = MathProcesses(count=2, timeout_seconds=60)
    yield made
    made.close()


async def played(env, reply):
    return await env.rollout(ScriptedClient([reply]), env.dataset()[0])


async def test_answers_are_compared_by_their_meaning():
    rows = [{"question": "half?", "answer": r"\frac{1}{2}"}]
    env = SingleTurnEnv(rows, rubric=MathRubric(timeout_seconds=60, max_workers=1))
    try:
        replies = [
            r"\boxed{1/2}",
            r"<think>\boxed{1/2}</think> \boxed{3}",
            r"\boxed{0.5}",
            "1/2",
            r"\boxed{}",
        ]
        rewards = [(await played(env, reply)).reward for reply in replies]
        assert rewards == [1.0, 0.0, 1.0, 0.0, 0.0]
    finally:
        await env.teardown()


@pytest.mark.full
async def test_many_comparisons_share_few_processes(processes):
    answers = await asyncio.gather(*(processes.equal("x+1", f"1+x+{n % 2}") for n in range(20)))
    assert answers == [True, False] * 10
    assert processes._idle.qsize() <= 2


@pytest.mark.full
async def test_a_killed_process_is_replaced(processes):
    assert await processes.equal("2", "1+1")
    process = processes._idle.get_nowait()
    process.kill()
    process.wait()
    processes._idle.put(process)
    assert await processes.equal("4", "2+2")
    assert process.returncode == -signal.SIGKILL


async def test_a_slow_comparison_is_an_error_instead_of_zero(processes):
    assert await processes.equal("2", "1+1")
    process = processes._idle.get_nowait()
    process.send_signal(signal.SIGSTOP)  # as an expression does that holds the interpreter for good
    processes._idle.put(process)
    processes.timeout_seconds = 0.2
    with pytest.raises(RubricError, match=r"took more than 0\.2 s"):
        await processes.equal("4", "2+2")
    assert process.returncode == -signal.SIGKILL
    processes.timeout_seconds = 60
    assert await processes.equal("4", "2+2")


async def test_a_library_that_does_not_load_is_reported(processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RubricError, match="cannot be loaded"):
        await processes.equal("1", "2")


@pytest.mark.full
async def test_an_expression_that_kills_every_process_is_an_error(processes, monkeypatch):
    def died(*_):
        raise math_rubric._Died

    monkeypatch.setattr(math_rubric, "_exchange", died)
    with pytest.raises(RubricError, match="crashed two processes"):
        await processes.equal("1", "2")


async def test_an_overlong_answer_is_wrong_without_a_comparison():
    rubric = MathRubric(max_characters=10)
    env = SingleTurnEnv([{"question": "q", "answer": "1"}], rubric=rubric)
    rollout = await played(env, f"\\boxed{{1{'+0' * 20}}}")
    assert rollout.reward == 0.0
    assert rubric.processes._idle.qsize() == 0


@pytest.mark.full
async def test_an_environment_can_be_used_again_after_it_was_closed(processes):
    assert await processes.equal("2", "1+1")
    processes.close()
    assert await processes.equal("2", "1+1")


@pytest.mark.full
async def test_an_abandoned_rubric_ends_its_processes():
    rubric = MathRubric(timeout_seconds=60)
    assert await rubric.processes.equal("2", "1+1")
    process = rubric.processes._idle.get_nowait()
    rubric.processes._idle.put(process)
    rubric.processes._ended()
    assert process.returncode == -signal.SIGKILL


def test_without_the_library_the_installation_command_is_printed(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra) as caught:
        MathRubric()
    assert "wander-sdk[math]" in caught.value.hint
