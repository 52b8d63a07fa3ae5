"""Plays Inspect tasks through the bridge; run where `wander-integrations[inspect]` is installed."""

from __future__ import annotations

import asyncio

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, accuracy, choice, includes, match, scorer
from wander import ScriptedClient
from wander.errors import ConfigError
from wander_integrations import InspectEnv


@scorer(metrics=[accuracy()])
def half():
    async def score(state, target):
        return Score(value="P")

    return score


@scorer(metrics=[accuracy()])
def several():
    async def score(state, target):
        return Score(value={"a": 1, "b": 0})

    return score


@task
def sums(count: int = 2):
    samples = [Sample(input=f"{i} + 1?", target=str(i + 1), id=f"sum-{i}") for i in range(count)]
    return Task(dataset=samples, scorer=[match(), half()])


def play(env, reply, index=0):
    return asyncio.run(env.rollout(ScriptedClient([reply]), env.dataset("eval")[index]))


def refused(make) -> str:
    try:
        make()
    except ConfigError as error:
        return str(error)
    raise AssertionError("it was not refused")


env = InspectEnv("sums", arguments={"count": 3})
assert [example.example_id for example in env.dataset("eval")] == ["sum-0", "sum-1", "sum-2"]
assert play(env, "The answer is 2", 1).metrics == {"score": 1.0, "score_2": 0.5}
assert play(env, "9", 1).reward == 0.0

choices = [Sample(input="Which?", choices=["red", "blue"], target="B")]
env = InspectEnv(Task(dataset=choices, scorer=choice()))
assert "A) red\nB) blue" in env.dataset("eval")[0].prompt[0]["content"]
assert [play(env, said).reward for said in ("So\nANSWER: B", "answer: b", "ANSWER: A", "B")] == [1, 1, 0, 0]

chat = [
    Sample(input=[ChatMessageSystem(content="Hi"), ChatMessageUser(content="Greet")], target=["hello", "hey"])
]
env = InspectEnv(Task(dataset=chat, scorer=includes()))
assert [message["role"] for message in env.dataset("eval")[0].prompt] == ["system", "user"]
assert [play(env, said).reward for said in ("oh hey", "bye")] == [1.0, 0.0]
assert play(InspectEnv(Task(dataset=chat, scorer=several())), "hey").failure.boundary == "rubric"

assert "no scorer" in refused(lambda: InspectEnv(Task(dataset=chat)))
assert "wants a sandbox" in refused(lambda: InspectEnv(Task(dataset=chat, scorer=match(), sandbox="docker")))
assert "`nowhere/task`" in refused(lambda: InspectEnv("nowhere/task"))
print("played")
