"""Has a row that is no JSON value, in the middle."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    rows = [{"question": str(n), "answer": str(n), "info": {"n": {n} if n == 3 else n}} for n in range(5)]
    return SingleTurnEnv(rows, rubric=Rubric([right]))
