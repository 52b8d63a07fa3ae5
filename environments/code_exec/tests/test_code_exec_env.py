"""The problems, and answers that try to pass without solving them."""

from __future__ import annotations

import json

import pytest
from code_exec import find_code, load_environment, run_tests
from code_exec.players import expert
from code_exec.problems import PROBLEMS, draw_inputs, task
from wander import ScriptedClient
from wander.clients import ModelRequest
from wander.seeding import derived_rng


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_every_problem_has_json_results_that_no_constant_meets(name):
    problem, rng = PROBLEMS[name], derived_rng("test", name)
    for number in (2, 7, 25):
        for _ in range(20):
            results = [json.dumps(problem(each, number)) for each in draw_inputs(problem, number, rng, 3)]
            assert len(results) == 3
            assert len(set(results)) > 1
    said = task(problem, 7)
    assert "{" not in said
    reply = expert(ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": said}]))
    assert "def solve(" in find_code(reply)


def test_the_last_block_is_the_answer():
    assert find_code("```python\nx = 1\n```\nor\n```python\nx = 2\n```") == "x = 2\n"
    assert find_code("def solve(x): return x") is None


ATTACKS = {
    "equal to all": "class Any:\n    def __eq__(self, other): return True\ndef solve(x): return Any()",
    "ends the process": "import os\ndef solve(x): os._exit(0)",
    "raises": "def solve(x): raise SystemExit(0)",
    "prints": "print('[\"1\"]')\ndef solve(x): print(1)",
    "own json": "import json\njson.dumps = lambda *_: '[\"0\"]'\ndef solve(x): return 0",
    "final": "FINAL('[\"0\"]')\ndef solve(x): return x",
    "this package": "from code_exec.problems import sum_multiples\ndef solve(x): return sum_multiples(x, 3)",
    "no function": "answer = 3",
    "no Python": "def solve(x) return",
}


@pytest.mark.parametrize("attack", ["equal to all", "this package", "own json"])
async def test_attacks_pass_nothing(attack):
    expected = [json.dumps(PROBLEMS["sum_multiples"](each, 3)) for each in ([3, 4], [6, 9], [1, 30])]
    said = await run_tests(ATTACKS[attack], [[3, 4], [6, 9], [1, 30]], "auto")
    assert sum(a == b for a, b in zip(said, expected, strict=False)) == 0


@pytest.mark.full
@pytest.mark.parametrize("attack", sorted(ATTACKS))
async def test_every_attack_earns_nothing(attack):
    env = load_environment(num_examples=2)
    for example in env.dataset("eval"):
        rollout = await env.rollout(ScriptedClient([f"```python\n{ATTACKS[attack]}\n```"]), example)
        assert (rollout.failure, rollout.reward) == (None, 0.0)


@pytest.mark.full
async def test_code_that_does_not_end_is_stopped():
    assert await run_tests("def solve(x):\n    while True: pass", [1], "auto") == []
