"""Loops for ever when it gets an empty reply."""

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        while not messages[-1]["content"]:
            pass
        return [{"role": "user", "content": "go on"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return Env([{"question": "q", "answer": "a"}], rubric=Rubric([right]), max_turns=2)
