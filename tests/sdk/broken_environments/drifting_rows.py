"""Makes each row with one generator for all, so that a row depends on those asked for before."""

import random

from wander import ProceduralRows, Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment(seed=0):
    rng = random.Random(seed)

    def row_at(index):
        number = rng.randint(0, 10**9)
        return {"question": f"double {number}", "answer": str(2 * number)}

    return SingleTurnEnv(ProceduralRows(row_at, 20), rubric=Rubric([right]))
