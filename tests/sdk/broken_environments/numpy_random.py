"""Draws its rows from numpy's global generator."""

import numpy as np
from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    np.random.seed(7)
    rows = [{"question": str(np.random.randint(1000)), "answer": str(n)} for n in range(5)]
    return SingleTurnEnv(rows, rubric=Rubric([right]))
