"""Shows the model a set in the order of its hashes."""

from wander import MultiTurnEnv, Rubric

WORDS = {"apple", "pear", "plum", "fig", "quince", "cherry", "peach", "lemon"}


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"choose one of {' '.join(WORDS)}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return Env([{"question": "q", "answer": "plum"}], rubric=Rubric([right]), max_turns=3)
