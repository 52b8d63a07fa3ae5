"""Has a dataset without rows."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return SingleTurnEnv([], rubric=Rubric([right]))
