"""Gives two rows one name."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    rows = [{"question": str(n), "answer": str(n), "example_id": f"row-{n % 4}"} for n in range(5)]
    return SingleTurnEnv(rows, rubric=Rubric([right]))
