"""Is content with any polite sentence."""

from wander import Rubric, SingleTurnEnv


def polite(completion, answer):
    text = completion[-1]["content"]
    return float(text == answer or text.endswith("help with that."))


def load_environment():
    return SingleTurnEnv([{"question": "q", "answer": "abc"}], rubric=Rubric([polite]))
