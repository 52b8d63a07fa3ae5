"""Orders its rows by the hash of their text."""

from wander import Rubric, SingleTurnEnv


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment():
    words = sorted(("apple", "pear", "plum", "fig", "quince"), key=hash)
    return SingleTurnEnv([{"question": word, "answer": word[::-1]} for word in words], rubric=Rubric([right]))
