"""Looks for the answer anywhere in the text."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(answer in completion[-1]["content"])


def load_environment():
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(5)]
    return SingleTurnEnv(rows, rubric=Rubric([right]))
