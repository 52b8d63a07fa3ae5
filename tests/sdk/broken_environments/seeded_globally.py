"""Seeds the global generator and draws from it: right alone, wrong beside anybody else."""

import random

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment(seed=0):
    random.seed(seed)
    rows = [{"question": str(random.random()), "answer": str(n)} for n in range(5)]
    return SingleTurnEnv(rows, rubric=Rubric([right]))
