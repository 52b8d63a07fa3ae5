"""Looks something up in every rollout and does not declare it."""

import socket

from wander import MultiTurnEnv, Rubric


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        with socket.socket() as connection:
            connection.settimeout(0.01)
            status = connection.connect_ex(("127.0.0.1", 9))
        return [{"role": "user", "content": "there" if status == 0 else "not there"}]


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment(deterministic=True):
    return Env(
        [{"question": "q", "answer": "there"}],
        rubric=Rubric([right]),
        max_turns=2,
        deterministic=deterministic,
    )
