"""Rewards length without a bound."""

from wander import Rubric, SingleTurnEnv


def length(completion):
    return len(completion[-1]["content"])


def load_environment():
    return SingleTurnEnv([{"question": "q", "answer": "a"}], rubric=Rubric([length]))
