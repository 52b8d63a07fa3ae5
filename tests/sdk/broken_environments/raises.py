"""Cannot bear an answer without a number in it."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(int(completion[-1]["content"]) == int(answer))


def load_environment():
    return SingleTurnEnv([{"question": "1+1?", "answer": "2"}], rubric=Rubric([right]))
