"""Tells the model the time, which was imported by its own name."""

from datetime import datetime
from time import time

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"it is {time()}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    rows = [{"question": f"what day is it? {datetime.now():%Y}", "answer": "today"}]
    return Env(rows, rubric=Rubric([right]), max_turns=3)
