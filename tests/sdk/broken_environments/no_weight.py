"""Has metrics only."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return SingleTurnEnv([{"question": "q", "answer": "a"}], rubric=Rubric([right], [0.0]))
