"""Names its rows by random identifiers and draws from an unseeded generator."""

import random
import uuid

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"code {random.Random().randint(0, 10**9)}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    rows = [{"question": "q", "answer": str(n), "example_id": str(uuid.uuid4())} for n in range(5)]
    return Env(rows, rubric=Rubric([right]), max_turns=3)
