"""Sound environments of every kind pass the checks: tools, members, group rewards, endless rows."""

from __future__ import annotations

import pytest
from wander.checks import check_environment

TOOLS = '''
from wander import Rubric, ToolEnv
from wander.seeding import derived_rng


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def right(completion, answer):
    return float(completion[-1].get("content") == answer)


class Env(ToolEnv):
    def gold(self, example):
        first, second = example.columns["numbers"]
        call = {"id": "c", "type": "function", "function": {
            "name": "add", "arguments": f'{{"a": {first}, "b": {second}}}'}}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}, example.answer]


def load_environment():
    rows = []
    for index in range(6):
        first, second = derived_rng("tools", index).choices(range(1000), k=2)
        rows.append({"question": f"{first} + {second}?", "answer": str(first + second),
                     "numbers": [first, second]})
    return Env(rows, tools=[add], rubric=Rubric([right]), max_turns=4)
'''

GROUP = """
from wander import EnvGroup, MultiTurnEnv, Rubric, SingleTurnEnv, XMLParser


def right(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


class Asks(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"and {self.rng(state, len(state.turns)).randint(0, 9)}?"}]

    def gold(self, example):
        return lambda request: example.answer


def load_environment():
    one = SingleTurnEnv([{"question": f"q{n}", "answer": f"word{n}"} for n in range(4)],
                        rubric=Rubric([right], parser=XMLParser(["answer"])))
    two = Asks([{"question": f"q{n}", "answer": f"word{n}"} for n in range(4)],
               rubric=Rubric([right]), max_turns=3)
    return EnvGroup({"one": one, "two": two})
"""

RANKED = '''
from wander import Rubric, SingleTurnEnv
from wander.dataset import ProceduralRows


def shortest_right(completions, answers):
    """Share of the group that is not better: right ones before wrong ones."""
    right = [completion[-1]["content"] == answer for completion, answer in zip(completions, answers)]
    return [float(each) for each in right]


def row(index):
    return {"question": f"name {index}", "answer": f"name {index * index + 7}"}


def load_environment():
    return SingleTurnEnv(ProceduralRows(row), rubric=Rubric([shortest_right]))
'''

REASONING = """
import math
import time

from wander import SingleTurnEnv, Rubric, ThinkParser


def right(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


def load_environment():
    stamp = time.strftime("%Y", time.gmtime(0))  # a conversion, no reading of the clock
    rows = [{"question": f"{math.factorial(n)}! {stamp}", "answer": str(n)} for n in range(5)]
    return SingleTurnEnv(rows, parser=ThinkParser(), rubric=Rubric([right]))
"""


@pytest.mark.parametrize(
    ("source", "kind"), [(TOOLS, "tool"), (GROUP, "group"), (RANKED, "ranked"), (REASONING, "reasoning")]
)
def test_a_sound_environment_passes(tmp_path, source, kind):
    path = tmp_path / f"sound_{kind}.py"
    path.write_text(source)
    report = check_environment(path, rows=12, examples=2)
    found = {
        check.id: (check.status, check.message)
        for check in report.checks
        if check.status != "pass" and not check.id.startswith("package.")
    }
    shared = {"dataset.splits": ("warn", "there is one set of rows for both splits")}
    assert found == shared
    assert report.by_id("determinism.replay").message.endswith("rollouts compared")
