"""Every kind of environment plays in a worker as it does here, mixed into one group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.environment import LocalEnvironment
from wander.loading import load_path
from wander.worker.host.environment import WorkerEnvironment

pytestmark = pytest.mark.usefixtures("warm_workers")

SERVER = Path(__file__).parent / "mcp_servers" / "bare.py"

BODY = f"""
import sys
from wander import EnvGroup, MCPEnv, MCPServer, RLMEnv, Rubric, StatefulToolEnv, ToolEnv

def rows(kind):
    return [{{"question": f"{{kind}} {{number}}", "answer": str(number)}} for number in range(2)]

def correct(completion, answer):
    return float(answer in completion[-1]["content"])

def answered(state, answer):
    return float(state["final_answer"] == answer)

def double(number: int) -> int:
    "Double a number."
    return 2 * number

def draw(sides: int, rng) -> int:
    "Roll a die."
    return rng.randrange(sides)

class Dice(StatefulToolEnv):
    def update_tool_args(self, tool_name, tool_args, messages, state):
        return {{**tool_args, "rng": self.rng(state, "die", len(state.turns))}}

def load_environment():
    dice = Dice(eval_dataset=rows("dice"), rubric=Rubric([correct]))
    dice.add_tool(draw, args_to_skip=["rng"])
    server = MCPServer("bare", command=sys.executable, args=({str(SERVER)!r}, "ok"))
    long = [{{**row, "context": "x" * 1000 + row["answer"]}} for row in rows("rlm")]
    return EnvGroup({{
        "tool": ToolEnv(eval_dataset=rows("tool"), tools=[double], rubric=Rubric([correct])),
        "dice": dice,
        "mcp": MCPEnv(eval_dataset=rows("mcp"), mcp_servers=[server], rubric=Rubric([correct])),
        "rlm": RLMEnv(eval_dataset=long, rubric=Rubric([answered])),
    }}, name="kinds")
"""


def script(request):
    """Play every kind as its question asks."""
    question = request.messages[-1]["content"]
    if "/sub:" in request.rollout_id:
        return question[-1]
    asked = next(message["content"] for message in request.messages if message["role"] == "user").split()
    kind, number = asked[0], asked[1]
    if request.turn == 1:
        return f"the answer is {number}"
    if kind == "rlm":
        return "```repl\nprint(llm_query('what?', context[-10:]))\nFINAL(context[-1])\n```"
    tool, arguments = {
        "tool": ("double", {"number": 4}),
        "dice": ("draw", {"sides": 10**9}),
        "mcp": ("say", {}),
    }[kind]
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


async def everything(environment, client):
    examples = await environment.examples("eval")
    return [await environment.rollout(client, example, run_seed=3) for example in examples]


async def test_a_worker_gives_the_same_rollouts_for_every_kind(tmp_path):
    client = ScriptedClient(script)
    module = tmp_path / "kinds_environment.py"
    module.write_text(BODY)
    local = LocalEnvironment(load_path(module))
    here = await everything(local, client)
    await local.close()
    worker = await WorkerEnvironment.start(None, None, path=module, log_path=tmp_path / "worker.log")
    try:
        there = await everything(worker, client)
        again = await everything(worker, ReplayClient(there))
    finally:
        await worker.close()
    assert worker.info.kind == "group"
    assert len(here) == 8
    assert [rollout.failure for rollout in here] == [None] * 8
    assert [rollout.reward for rollout in here] == [1.0] * 8
    for ours, theirs, replayed in zip(here, there, again, strict=True):
        assert theirs.completion == ours.completion
        assert (theirs.metrics, theirs.info, theirs.stop_reason) == (
            ours.metrics,
            ours.info,
            ours.stop_reason,
        )
        assert (replayed.completion, replayed.info) == (theirs.completion, theirs.info)
