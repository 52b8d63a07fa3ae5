"""Finds nothing wrong with an empty answer."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(answer.startswith(completion[-1]["content"]))


def load_environment():
    return SingleTurnEnv([{"question": "q", "answer": "abc"}], rubric=Rubric([right]))
