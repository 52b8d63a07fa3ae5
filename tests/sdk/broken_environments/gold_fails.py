"""Gives no reward to what it says is right."""

from wander import Rubric, SingleTurnEnv


class Env(SingleTurnEnv):
    def gold(self, example):
        return example.answer


def right(completion, answer):
    return float(completion[-1]["content"] == f"the answer is {answer}")


def load_environment():
    return Env([{"question": "q", "answer": "a"}], rubric=Rubric([right]))
