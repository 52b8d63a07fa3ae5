"""Goes on until the model says the word, which it may never do."""

from wander import MultiTurnEnv, Rubric, stop


class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": "again"}]

    @stop
    def said_it(self, state):
        return bool(state.turns) and state.completion[-1]["content"] == "please"


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    return Env([{"question": "say it", "answer": "please"}], rubric=Rubric([right]))
