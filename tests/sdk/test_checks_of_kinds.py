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
def test_a_correct_environment_passes(tmp_path, source, kind):
    path = tmp_path / f"sound_{kind}.py"
    path.write_text(source)
    report = check_environment(path, rows=12, examples=2)
    found = {
        check.id: (check.status, check.message)
        for check in report.checks
        if check.status != "pass" and not check.id.startswith("package.")
    }
    shared = {"dataset.splits": ("warn", "both splits use the same rows")}
    assert found == shared
    assert report.by_id("determinism.replay").message.endswith("rollouts compared")


SCORED = """
from wander import Rubric, SingleTurnEnv


def right(completion, answer) -> float:
    said = completion[-1]["content"]
    return WON if said == answer else IDLE if not said.strip() or len(said) > 3 else LOST


def load_environment():
    rows = [{"question": f"{n} + {n}?", "answer": str(n + n)} for n in range(8)]
    return SingleTurnEnv(rows, rubric=Rubric([right]), reward_bounds=BOUNDS)
"""


@pytest.mark.parametrize(
    ("bounds", "won", "idle", "fails"),
    [
        ((-1.0, 1.0), 1.0, 0.0, False),
        ((-1.0, 1.0), 0.3, 0.0, False),
        ((-1.0, 1.0), 1.0, 0.5, True),
        ((0.0, 1.0), 1.0, 0.5, True),
        ((-1.0, 0.0), 0.0, 0.0, True),
    ],
)
def test_a_draw_may_earn_nothing(tmp_path, bounds, won, idle, fails):
    path = tmp_path / "scored.py"
    source = SCORED.replace("WON", str(won)).replace("IDLE", str(idle)).replace("LOST", str(bounds[0]))
    path.write_text(source.replace("BOUNDS", str(bounds)))
    report = check_environment(path, rows=8, examples=1)
    low = {"rewards.empty", "rewards.noop"}
    assert {check.id for check in report.failed} & low == (low if fails else set())


def test_a_classic_environment_may_import_datasets(tmp_path):
    for name in ("verifiers", "datasets", "tensorflow"):
        (tmp_path / f"{name}.py").write_text("")
    source = SCORED.replace("WON", "1.0").replace("IDLE", "0.0").replace("LOST", "0.0")
    source = source.replace("BOUNDS", "(0.0, 1.0)")
    found = []
    for number, imports in enumerate(("datasets, verifiers", "datasets", "datasets, tensorflow, verifiers")):
        path = tmp_path / f"imports{number}.py"
        path.write_text(f"import {imports}\n{source}")
        found.append(check_environment(path, rows=8, examples=1).by_id("load.light").message)
    assert found[0] == ""
    assert "`datasets`" in found[1]
    assert ("`tensorflow`" in found[2], "`datasets`" in found[2]) == (True, False)
