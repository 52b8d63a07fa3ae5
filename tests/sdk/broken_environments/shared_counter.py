"""Counts in the module: a rollout depends on how many were played before it."""

from wander import MultiTurnEnv, Rubric

PLAYED = [0]


class Env(MultiTurnEnv):
    def setup_state(self, state):
        PLAYED[0] += 1
        state["number"] = PLAYED[0]

    def env_response(self, messages, state):
        return [{"role": "user", "content": f"game {state['number']}"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return Env([{"question": "q", "answer": "a"}], rubric=Rubric([right]), max_turns=3)
