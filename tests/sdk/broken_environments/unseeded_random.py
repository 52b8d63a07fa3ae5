"""Draws its rows and its replies from the global generator."""

import random

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"roll {random.randint(1, 1_000_000)}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    rows = [{"question": f"{random.choice('abcdef')}{random.random()}", "answer": str(n)} for n in range(5)]
    return Env(rows, rubric=Rubric([right]), max_turns=3)
