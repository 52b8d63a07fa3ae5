"""Answers differently for each rollout of a group."""

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"number {self.rng(state, state['index']).randint(0, 10**9)}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return Env([{"question": "q", "answer": "a"}], rubric=Rubric([right]), max_turns=3)
